//! The attributes of a volume: a row for each, with its name, its getter and its setter.
//!
//! Invariants:
//! * A name stands in exactly one row. All other names are attributes that every device has.
//! * A refused value leaves everything unchanged.

use super::Volume;
use crate::shared::{IO_POLL, Live};
use crate::table::FILE_LIMIT;
use drystone_core::attribute::{self, not_settable, parse_in};
use drystone_core::{Device, Error, Result};

/// An attribute of a volume.
struct Attribute {
    name: &'static str,
    /// The value; `None` for a volume without this attribute.
    get: fn(&Volume, &Live) -> Option<String>,
    /// Sets a value; `None` for an attribute that is only shown.
    set: Option<Setter>,
}

type Setter = fn(&Volume, &str, &str) -> Result<()>;

fn digit(switch: bool) -> Option<String> {
    Some(u8::from(switch).to_string())
}

/// The rows.
const ATTRIBUTES: &[Attribute] = &[
    Attribute {
        name: "queue/iostats",
        get: |_, live| digit(live.iostats),
        set: Some(Volume::set_iostats),
    },
    Attribute { name: IO_POLL, get: |_, live| digit(live.io_poll), set: Some(Volume::set_io_poll) },
    Attribute { name: "dm/name", get: |volume, _| Some(volume.shared.name.clone()), set: None },
    Attribute { name: "dm/suspended", get: |_, live| digit(live.suspended), set: None },
    Attribute {
        name: FILE_LIMIT,
        get: |_, live| Some(live.table.as_deref()?.file_limit()?.to_string()),
        set: None,
    },
];

fn row(name: &str) -> Option<&'static Attribute> {
    ATTRIBUTES.iter().find(|row| row.name == name)
}

impl Volume {
    /// The value of an attribute, of any kind.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        match row(name) {
            Some(row) => (row.get)(self, &self.shared.live()),
            None => attribute::of_device(name, &self.info(), || self.stats()),
        }
    }

    /// Set an attribute.
    pub(super) fn set(&self, name: &str, value: &str) -> Result<()> {
        match row(name).and_then(|row| row.set) {
            Some(set) => set(self, name, value),
            None => Err(not_settable(name, &self.shared.name, self.get(name).is_some())),
        }
    }

    fn set_iostats(&self, name: &str, value: &str) -> Result<()> {
        let on = parse_in(name, value, 0, 1)? == 1;
        let _control = self.control();
        self.shared.publish(|live| live.iostats = on);
        Ok(())
    }

    fn set_io_poll(&self, name: &str, value: &str) -> Result<()> {
        let on = parse_in(name, value, 0, 1)? == 1;
        let live = self.shared.live();
        if on && !live.can_poll {
            let text = format!("{name}: not every device below {} polls", self.shared.name);
            return Err(Error::invalid(text));
        }
        if !on {
            self.shared.holders.polling_ends();
        }
        let control = self.control();
        self.shared.publish(|live| {
            (live.wants_poll, live.io_poll) = (on, on && live.can_poll);
        });
        drop(control);
        self.shared.kick_all();
        self.shared.holders.changed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::VolumeOptions;
    use drystone_core::clock::ManualClock;
    use drystone_core::sync::LockCounters;

    fn volume() -> Volume {
        Volume::new("v", VolumeOptions::default(), LockCounters::new(ManualClock::new(1)))
    }

    #[test]
    fn a_name_stands_in_one_row() {
        for (at, row) in ATTRIBUTES.iter().enumerate() {
            assert!(!row.name.is_empty());
            assert!(ATTRIBUTES[..at].iter().all(|other| other.name != row.name), "{}", row.name);
            assert_eq!(attribute::of_device(row.name, &volume().info(), || volume().stats()), None);
        }
    }

    #[test]
    fn refused_values_change_nothing() {
        let volume = volume();
        let refused = |name: &str, value: &str| volume.set(name, value).unwrap_err().message;
        assert!(refused("queue/iostats", "2").ends_with("a whole number from 0 to 1 is"));
        assert_eq!(refused("queue/io_poll", "1"), "queue/io_poll: not every device below v polls");
        assert_eq!(refused("dm/suspended", "1"), "dm/suspended of v cannot be changed");
        assert_eq!(refused("size", "1"), "size of v cannot be changed");
        assert_eq!(refused("dm/uuid", "1"), "dm/uuid is not an attribute of v");
        let shown = ["queue/iostats", "queue/io_poll", "dm/suspended"].map(|name| volume.get(name));
        assert_eq!(shown, ["1", "0", "0"].map(|value| Some(value.to_owned())));
        volume.set("queue/iostats", "0").unwrap();
        assert_eq!(volume.get("queue/iostats").as_deref(), Some("0"));
    }
}
