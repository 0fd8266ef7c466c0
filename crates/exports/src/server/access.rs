//! Access to an export: the clients that may use it, and whether they may write.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// The access of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// Addresses whose first `prefix` bits are the same. `Display` writes `192.0.2.0/24`, or one
/// address without `/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// The first address.
    address: IpAddr,
    prefix: u32,
}

impl Network {
    /// Reads `192.0.2.0/24`, `2001:db8::/32` or a single address; `None` for anything else, also an
    /// address that has bits behind the prefix.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address.parse::<IpAddr>().ok()?, Some(prefix)),
            None => (text.parse::<IpAddr>().ok()?, None),
        };
        let width = bits(address).1;
        let prefix = match prefix {
            None => width,
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().ok().filter(|prefix| *prefix <= width)?
            }
            Some(_) => return None,
        };
        let network = Network { address, prefix };
        (address == address.to_canonical() && network.start(address) == bits(address).0)
            .then_some(network)
    }

    /// True if the address is one of these. An IPv4 address that is written as IPv6 is that IPv4
    /// address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        bits(address).1 == bits(self.address).1 && self.start(address) == bits(self.address).0
    }

    /// The bits of `address` without those behind the prefix.
    fn start(&self, address: IpAddr) -> u128 {
        let (bits, width) = bits(address);
        let behind = width - self.prefix;
        bits.checked_shr(behind).and_then(|bits| bits.checked_shl(behind)).unwrap_or(0)
    }
}

/// The bits of an address, and how many there are.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix == bits(self.address).1 {
            true => write!(f, "{}", self.address),
            false => write!(f, "{}/{}", self.address, self.prefix),
        }
    }
}

/// The clients that may use an export. An empty list admits nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList {
    by_name: BTreeMap<String, Access>,
    by_uid: BTreeMap<u32, Access>,
    by_network: BTreeMap<Network, Access>,
}

impl AllowList {
    /// Admits clients whose certificate has `name`.
    pub fn allow_name(&mut self, name: &str, access: Access) {
        self.by_name.insert(name.to_owned(), access);
    }

    /// Admits clients with user id `uid`.
    pub fn allow_uid(&mut self, uid: u32, access: Access) {
        self.by_uid.insert(uid, access);
    }

    /// Admits clients whose address is in `network`.
    pub fn allow_network(&mut self, network: Network, access: Access) {
        self.by_network.insert(network, access);
    }

    /// The access of a client, or `None` if it may not use the export. A name of its certificate
    /// takes precedence over its user id, and that over its address. Of several networks the
    /// smallest counts.
    pub fn access<'a>(
        &self,
        mut names: impl Iterator<Item = &'a str>,
        uid: Option<u32>,
        address: Option<IpAddr>,
    ) -> Option<Access> {
        let by_name = names.find_map(|name| self.by_name.get(name));
        let by_uid = || self.by_uid.get(&uid?);
        let by_network = || {
            let address = address?;
            let around = self.by_network.iter().filter(|(network, _)| network.contains(address));
            Some(around.max_by_key(|(network, _)| network.prefix)?.1)
        };
        by_name.or_else(by_uid).or_else(by_network).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        Network::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn networks_contain_their_addresses() {
        let cases = [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::1", false),
            ("192.0.2.0/24", "::ffff:192.0.2.9", true),
            ("::/0", "ffff::1", true),
            ("::/0", "192.0.2.1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::", false),
        ];
        for (text, address, inside) in cases {
            assert_eq!(
                network(text).contains(address.parse().unwrap()),
                inside,
                "{text} {address}"
            );
            assert_eq!(network(text).to_string(), text);
        }
        for wrong in [
            "",
            "/",
            "a",
            "192.0.2.0/33",
            "192.0.2.0/-1",
            "192.0.2.0/+1",
            "192.0.2.0/",
            "192.0.2.1/24",
            "::ffff:192.0.2.0",
            "::/129",
            "192.0.2",
        ] {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_nearest_rule_counts() {
        use Access::{ReadOnly, ReadWrite};
        let mut list = AllowList::default();
        let access = |list: &AllowList, names: &[&str], uid, address: Option<&str>| {
            let address = address.map(|address| address.parse().unwrap());
            list.access(names.iter().copied(), uid, address)
        };
        assert_eq!(access(&list, &["alice"], Some(0), Some("::1")), None, "nobody");
        list.allow_name("alice", ReadWrite);
        list.allow_uid(7, ReadOnly);
        list.allow_network(network("192.0.2.0/24"), ReadOnly);
        list.allow_network(network("192.0.2.7"), ReadWrite);
        let cases = [
            (&["alice"][..], None, None, Some(ReadWrite)),
            (&["bob", "alice"], Some(7), None, Some(ReadWrite)),
            (&["bob"], Some(7), None, Some(ReadOnly)),
            (&["bob"], Some(8), None, None),
            (&[], None, Some("192.0.2.8"), Some(ReadOnly)),
            (&["alice"], None, Some("192.0.2.8"), Some(ReadWrite)),
            (&[], None, Some("192.0.2.7"), Some(ReadWrite)),
            (&[], None, Some("192.0.3.7"), None),
            (&[], None, None, None),
        ];
        for (names, uid, address, expected) in cases {
            assert_eq!(
                access(&list, names, uid, address),
                expected,
                "{names:?} {uid:?} {address:?}"
            );
        }
    }
}
