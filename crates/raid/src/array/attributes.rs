//! The attributes of an array: a row for each, with its name, its getter, and its setter with the
//! range of its values.
//!
//! Invariants:
//! * A name stands in exactly one row. All other names are attributes that every device has.
//! * A refused value leaves everything unchanged.
//!
//! Source: `Documentation/admin-guide/md.rst`.

use super::control::Command;
use super::device::Array;
use super::status::{FROZEN, IDLE, action_name};
use crate::engine::{Conf, RmwLevel, SyncAction};
use drystone_core::attribute::{self, not_settable, parse_in};
use drystone_core::primitive::Ordering::*;
use drystone_core::{Device, Error, Result, SECTOR_SIZE};

/// Fewest and most stripes of the cache (`md/stripe_cache_size`).
pub const CACHE_STRIPES: (u64, u64) = (17, 32768);
/// Least and most of `md/sync_speed_min` and `md/sync_speed_max`, KiB a second of each member.
pub const SYNC_SPEEDS: (u64, u64) = (1, 1 << 30);
/// Least and most of `md/rmw_level`.
pub const RMW_LEVELS: (u64, u64) = (0, RmwLevel::ALL.len() as u64 - 1);
/// The values that `md/sync_action` accepts.
pub const SYNC_ACTIONS: [&str; 4] =
    [action_name(SyncAction::Check), action_name(SyncAction::Repair), IDLE, FROZEN];

/// An attribute of an array.
struct Attribute {
    name: &'static str,
    get: fn(&Array, &Conf) -> String,
    set: Setter,
}

/// How a value is set.
enum Setter {
    /// The attribute is only shown.
    None,
    /// The configuration takes a number in a range.
    Conf { range: (u64, u64), set: fn(&mut Conf, u64) },
    /// The manager executes the command that a name and a value stand for.
    Manager(fn(&str, &str) -> Result<Command>),
}

/// The rows.
const ATTRIBUTES: &[Attribute] = &[
    Attribute { name: "queue/io_poll", get: |_, _| "0".to_owned(), set: Setter::None },
    Attribute { name: "queue/iostats", get: |_, _| "1".to_owned(), set: Setter::None },
    Attribute { name: "md/level", get: |array, _| array.info().kind.to_owned(), set: Setter::None },
    Attribute {
        name: "md/layout",
        get: |_, conf| conf.layout.number().to_string(),
        set: Setter::None,
    },
    Attribute {
        name: "md/raid_disks",
        get: |_, conf| conf.layout.disks().to_string(),
        set: Setter::None,
    },
    Attribute {
        name: "md/chunk_size",
        get: |_, conf| (conf.layout.chunk_sectors() * SECTOR_SIZE).to_string(),
        set: Setter::None,
    },
    Attribute {
        name: "md/degraded",
        get: |array, _| array.status().degraded().to_string(),
        set: Setter::None,
    },
    Attribute {
        name: "md/array_state",
        get: |array, _| array.status().array_state().to_owned(),
        set: Setter::None,
    },
    Attribute {
        name: "md/sync_action",
        get: |array, _| array.status().sync_action().to_owned(),
        set: Setter::Manager(sync_action),
    },
    Attribute {
        name: "md/sync_completed",
        get: |array, _| array.status().sync_completed(),
        set: Setter::None,
    },
    Attribute {
        name: "md/sync_speed_min",
        get: |array, _| array.status().speed.0.to_string(),
        set: Setter::Manager(|name, value| {
            Ok(Command::Speed { min: Some(sync_speed(name, value)?), max: None })
        }),
    },
    Attribute {
        name: "md/sync_speed_max",
        get: |array, _| array.status().speed.1.to_string(),
        set: Setter::Manager(|name, value| {
            Ok(Command::Speed { min: None, max: Some(sync_speed(name, value)?) })
        }),
    },
    Attribute {
        name: "md/mismatch_cnt",
        get: |array, _| array.shared().mismatches.load(Relaxed).to_string(),
        set: Setter::None,
    },
    Attribute {
        name: "md/stripe_cache_size",
        get: |_, conf| conf.cache_stripes.to_string(),
        set: Setter::Conf {
            range: CACHE_STRIPES,
            set: |conf, stripes| conf.cache_stripes = stripes as u32,
        },
    },
    Attribute {
        name: "md/stripe_cache_active",
        get: |array, _| array.shared().counts().1.to_string(),
        set: Setter::None,
    },
    Attribute {
        name: "md/rmw_level",
        get: |_, conf| (conf.rmw_level as u8).to_string(),
        set: Setter::Conf {
            range: RMW_LEVELS,
            set: |conf, level| conf.rmw_level = RmwLevel::ALL[level as usize],
        },
    },
];

fn row(name: &str) -> Option<&'static Attribute> {
    ATTRIBUTES.iter().find(|row| row.name == name)
}

fn sync_action(name: &str, value: &str) -> Result<Command> {
    match value.trim() {
        IDLE => Ok(Command::Idle),
        FROZEN => Ok(Command::Freeze(true)),
        value => {
            let mut actions = [SyncAction::Check, SyncAction::Repair].into_iter();
            let action = actions.find(|action| action_name(*action) == value);
            action.map(Command::Sync).ok_or_else(|| {
                let [others @ .., last] = SYNC_ACTIONS;
                let names = format!("{} or {last}", others.join(", "));
                Error::invalid(format!("{name}: '{value}' is not permitted: {names} is"))
            })
        }
    }
}

fn sync_speed(name: &str, value: &str) -> Result<u64> {
    parse_in(name, value, SYNC_SPEEDS.0, SYNC_SPEEDS.1)
}

impl Command {
    /// The command that sets an attribute; `None` for an attribute that the manager does not set.
    ///
    /// # Errors
    /// The value is not permitted; the message says which values are.
    pub fn of_attribute(name: &str, value: &str) -> Option<Result<Self>> {
        match row(name)?.set {
            Setter::Manager(command) => Some(command(name, value)),
            Setter::Conf { .. } | Setter::None => None,
        }
    }
}

impl Array {
    /// The value of an attribute, of any kind.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        match row(name) {
            Some(row) => Some((row.get)(self, &self.shared().conf())),
            None => attribute::of_device(name, &self.info(), || self.stats()),
        }
    }

    /// Set an attribute. Does not wait until the manager has executed the command.
    pub(super) fn set(&self, name: &str, value: &str) -> Result<()> {
        match row(name).map_or(&Setter::None, |row| &row.set) {
            Setter::Conf { range: (min, max), set } => {
                let number = parse_in(name, value, *min, *max)?;
                self.set_conf(|conf| set(conf, number));
            }
            Setter::Manager(command) => {
                self.request(command(name, value)?);
            }
            Setter::None => {
                let is_known = self.get(name).is_some();
                return Err(not_settable(name, &self.shared().name, is_known));
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_in_one_row() {
        for (at, row) in ATTRIBUTES.iter().enumerate() {
            assert!(!row.name.is_empty());
            assert!(ATTRIBUTES[..at].iter().all(|other| other.name != row.name), "{}", row.name);
        }
    }

    #[test]
    fn levels_stand_at_their_numbers() {
        for (number, level) in RmwLevel::ALL.into_iter().enumerate() {
            assert_eq!(level as usize, number);
        }
    }

    #[test]
    fn the_manager_gets_what_a_value_means() {
        let command = |name, value| Command::of_attribute(name, value).expect("the manager's");
        assert!(matches!(
            SYNC_ACTIONS.map(|value| command("md/sync_action", value)),
            [
                Ok(Command::Sync(SyncAction::Check)),
                Ok(Command::Sync(SyncAction::Repair)),
                Ok(Command::Idle),
                Ok(Command::Freeze(true)),
            ]
        ));
        assert!(matches!(
            command("md/sync_speed_max", " 7 "),
            Ok(Command::Speed { min: None, max: Some(7) })
        ));
        assert!(matches!(
            command("md/sync_speed_min", "1073741824"),
            Ok(Command::Speed { min: Some(1_073_741_824), max: None })
        ));
        let refused = |name, value| command(name, value).err().expect("it is refused").message;
        assert_eq!(
            refused("md/sync_action", "resync"),
            "md/sync_action: 'resync' is not permitted: check, repair, idle or frozen is"
        );
        let range = "a whole number from 1 to 1073741824 is";
        assert!(refused("md/sync_speed_min", "0").ends_with(range));
        assert!(refused("md/sync_speed_max", "1073741825").ends_with(range));
        assert!(Command::of_attribute("md/rmw_level", "1").is_none());
        assert!(Command::of_attribute("md/level", "raid5").is_none());
        assert!(Command::of_attribute("md/nonsense", "1").is_none());
    }
}
