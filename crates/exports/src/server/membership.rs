//! The rules for the throttle group of a client's I/O.

use drystone_throttle::{Groups, Member};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The groups of an export's clients, by path. A path is resolved when a client connects, so a
/// group may be removed and created again meanwhile. If a rule's group does not exist, the next
/// rule counts.
#[derive(Clone)]
pub struct Membership {
    groups: Arc<Groups>,
    export: String,
    by_name: BTreeMap<String, String>,
    by_uid: BTreeMap<u32, String>,
}

impl Membership {
    /// All clients belong to the group `export` of `groups`; the empty path is the root.
    pub fn new(groups: Arc<Groups>, export: &str) -> Self {
        let (by_name, by_uid) = Default::default();
        Membership { groups, export: export.to_owned(), by_name, by_uid }
    }

    /// Adds a rule: clients whose certificate has `name` belong to `group`.
    pub fn set_name(&mut self, name: &str, group: &str) {
        self.by_name.insert(name.to_owned(), group.to_owned());
    }

    /// Adds a rule: clients with user id `uid` belong to `group`, unless their certificate says
    /// otherwise.
    pub fn set_uid(&mut self, uid: u32, group: &str) {
        self.by_uid.insert(uid, group.to_owned());
    }

    /// The membership of a client with these names; `uid` is called only if it matters.
    pub(crate) fn of<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        uid: impl FnOnce() -> Option<u32>,
    ) -> Member {
        let by_name = names.into_iter().filter_map(|name| self.by_name.get(name));
        let uid = if self.by_uid.is_empty() { None } else { uid() };
        let by_uid = uid.and_then(|uid| self.by_uid.get(&uid));
        let mut paths = by_name.chain(by_uid).chain([&self.export]).map(String::as_str).chain([""]);
        paths.find_map(|path| self.groups.join(path).ok()).expect("the root is always there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::tls::PeerNames;
    use drystone_core::clock::ManualClock;
    use drystone_core::sync::LockRegistry;

    fn names(common: &str, others: &[&str]) -> PeerNames {
        PeerNames {
            common_name: Some(common.to_owned()),
            dns_names: others.iter().map(|name| (*name).to_owned()).collect(),
            uri_names: vec!["spiffe://host/job".to_owned()],
        }
    }

    #[test]
    fn the_certificate_goes_before_the_user_id_and_that_before_the_export() {
        let clock = ManualClock::new(1);
        let groups = Groups::new(clock.clone(), &LockRegistry::new(clock));
        for path in ["export", "uid", "name", "other", "uri"] {
            groups.create(path).unwrap();
        }
        let mut membership = Membership::new(groups.clone(), "export");
        let of = |membership: &Membership, names: Option<PeerNames>, uid: Option<u32>| {
            membership.of(names.iter().flat_map(PeerNames::all), || uid).path().to_owned()
        };
        assert_eq!(of(&membership, Some(names("alice", &[])), Some(7)), "export");
        membership.set_uid(7, "uid");
        membership.set_uid(0, "");
        membership.set_name("alice", "name");
        membership.set_name("a.example", "other");
        membership.set_name("spiffe://host/job", "uri");
        let cases = [
            (None, None, "export"),
            (None, Some(8), "export"),
            (None, Some(7), "uid"),
            (None, Some(0), ""),
            (Some(names("alice", &["a.example"])), Some(7), "name"),
            (Some(names("bob", &["b.example", "a.example"])), Some(7), "other"),
            (Some(names("bob", &[])), Some(7), "uri"),
        ];
        for (names, uid, expected) in cases {
            assert_eq!(of(&membership, names.clone(), uid), expected, "{names:?} {uid:?}");
        }
        groups.remove("uid").unwrap();
        assert_eq!(of(&membership, None, Some(7)), "export", "the next rule counts");
        let member = groups.create("uid").map(|_| membership.of([], || Some(7))).unwrap();
        assert_eq!(member.path(), "uid", "it is there again");
        assert!(groups.remove("uid").is_err(), "a member keeps its group");
        drop(member);
        groups.remove("uid").unwrap();
    }
}
