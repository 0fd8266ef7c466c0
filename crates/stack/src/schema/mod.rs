//! The one table of every parameter that a stack file knows.
//!
//! The checker (`parse::check`), `drystone help stack` and `docs/stack-file.md` all come from
//! it: a parameter is added by one line in the table of its section.

mod devices;
mod exports;
pub(crate) mod queue;
mod render;
mod server;

use crate::duration::{Unit, format_duration};
use crate::iomax::{KEYS, LINE};
use crate::size::format_size;

pub use devices::{
    DEVICE_COMMON, DEVICE_KINDS, DEVICE_WHAT, LATENCY_DOC, NOT_OF_VOLUMES, NULL_DEFAULT_SIZE,
    VOLUME_KINDS, VOLUME_QUEUE,
};
pub(crate) use devices::{STRIPE_CACHE_SIZE, STRIPE_CACHE_SIZE_DOC};
pub use exports::{ALLOW_DOC, CLIENTS_DOC, EXPORT, IO, IO_PRIO, TLS};
pub use queue::QUEUE;
pub(crate) use render::indented;
pub use render::{help_text, markdown};
pub use server::{GROUP, GROUP_IO, SERVER};

/// Largest device: the largest power of two that a signed 64-bit file offset reaches.
pub(crate) const MAX_SIZE: u64 = 1 << 62;
const SECTOR: u64 = 512;
const SECOND: u64 = 1_000_000_000;
pub(crate) const HOUR: u64 = 3600 * SECOND;

/// One parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Param {
    /// Its key.
    pub key: &'static str,
    /// The values that it takes.
    pub ty: Type,
    /// The value when it is not given.
    pub default: IfAbsent,
    /// One line on what it does.
    pub doc: &'static str,
}

const fn param(key: &'static str, ty: Type, default: IfAbsent, doc: &'static str) -> Param {
    Param { key, ty, default, doc }
}

/// The value of a parameter that is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfAbsent {
    /// It must be given.
    Required,
    /// Nothing is set; the text says what that means.
    Unset(&'static str),
    /// This text, read by the parameter's own type.
    Value(&'static str),
}

/// The values that a parameter (or an attribute) takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Type {
    /// `true` or `false`.
    Bool,
    /// Bytes within a range, a multiple of `multiple`.
    Size {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
        /// Whole multiples of this many bytes.
        multiple: u64,
    },
    /// A power of two of bytes within a range.
    PowerOfTwo {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A whole number within a range.
    Integer {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// One of these words. `true` and `false` may be among them.
    Choice(&'static [&'static str]),
    /// One of these words, or its number from 0.
    Numbered(&'static [&'static str]),
    /// A time within a range, in nanoseconds; `unit` is what a plain number means.
    Duration {
        /// Unit of a plain number.
        unit: Unit,
        /// Shortest, in nanoseconds.
        min: u64,
        /// Longest, in nanoseconds.
        max: u64,
    },
    /// An octal file mode, as "0660".
    Mode,
    /// A path, relative to the stack file.
    Path,
    /// One line of text of at most so many bytes.
    Text {
        /// Most bytes.
        max: usize,
    },
    /// The name of a device of the stack.
    Device,
    /// Where an NBD server listens.
    Listener,
    /// A sector or `first-last`, inclusive.
    Sectors,
    /// Latency percentiles.
    Latency,
    /// Lines of dmsetup's table syntax.
    Table,
    /// A table of parameters.
    Fields(&'static [Param]),
    /// A line of `io.max`.
    IoMax,
    /// The path of a throttle group.
    Group,
    /// Clients with their throttle groups.
    Clients,
    /// Clients with what they may do.
    Allow,
    /// A list of values; a single one stands for a list of one.
    List(&'static Type),
}

impl Type {
    /// The permitted values, for hints and docs: "a size from 512B to 4KiB, a power of two".
    pub fn expected(&self) -> String {
        match self {
            Type::Bool => "true or false".to_owned(),
            Type::Size { min, max, multiple } => size_range(*min, *max, *multiple),
            Type::PowerOfTwo { min, max } => {
                format!("a power of two from {} to {}", format_size(*min), format_size(*max))
            }
            Type::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Type::Choice(names) => choices(names),
            Type::Numbered(names) => {
                format!("{}, or its number from 0 to {}", choices(names), names.len() - 1)
            }
            Type::Duration { unit, min, max } => format!(
                "a time from {} to {} (a plain number is in {})",
                format_duration(*min),
                format_duration(*max),
                unit.name()
            ),
            Type::Mode => "an octal file mode, as in \"0660\"".to_owned(),
            Type::Path => "a path".to_owned(),
            Type::Text { max } => format!("one line of text of at most {max} bytes"),
            Type::Device => "the name of a device".to_owned(),
            Type::Listener => {
                "\"unix:PATH\", \"unix:PATH,mode=0660\" or \"tcp:HOST:PORT\"".to_owned()
            }
            Type::Sectors => "a sector or \"FIRST-LAST\"".to_owned(),
            Type::Latency => LATENCY_DOC.to_owned(),
            Type::Table => "\"START LENGTH TARGET ARGUMENTS\" in sectors, as dmsetup's".to_owned(),
            Type::IoMax => format!("{LINE} with any of {}", KEYS.join(", ")),
            Type::Group => "the path of a group, as in \"tenants/a\", or \"/\"".to_owned(),
            Type::Clients => CLIENTS_DOC.to_owned(),
            Type::Allow => ALLOW_DOC.to_owned(),
            Type::Fields(params) => {
                let keys: Vec<&str> = params.iter().map(|param| param.key).collect();
                format!("a table of {}", keys.join(", "))
            }
            Type::List(item) => format!("{}, or a list of them", item.expected()),
        }
    }
}

fn size_range(min: u64, max: u64, multiple: u64) -> String {
    let steps = match multiple {
        0 | 1 => String::new(),
        multiple => format!(", a multiple of {}", format_size(multiple)),
    };
    format!("a size from {} to {}{steps}", format_size(min), format_size(max))
}

fn choices(names: &[&str]) -> String {
    let quoted: Vec<String> = names
        .iter()
        .map(|name| match *name {
            "true" | "false" => (*name).to_owned(),
            name => format!("\"{name}\""),
        })
        .collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// A kind of device with the parameters of its own (beside [`DEVICE_COMMON`]).
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The word after `type =`.
    pub name: &'static str,
    /// One line on what it is.
    pub doc: &'static str,
    /// Its parameters.
    pub params: &'static [Param],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_read_well() {
        assert_eq!(Type::Choice(&["auto", "true", "false"]).expected(), "\"auto\", true or false");
        let size = Type::Size { min: 512, max: 1 << 20, multiple: 512 };
        assert_eq!(size.expected(), "a size from 512B to 1MiB, a multiple of 512B");
    }

    #[test]
    fn keys_are_unique_and_documented() {
        let common: Vec<Param> = DEVICE_COMMON.to_vec();
        let mut groups: Vec<Vec<Param>> = DEVICE_KINDS
            .iter()
            .map(|kind| kind.params.iter().chain(&common).copied().collect())
            .collect();
        groups.extend(
            [QUEUE, EXPORT, IO, IO_PRIO, TLS, GROUP, GROUP_IO, SERVER].map(<[Param]>::to_vec),
        );
        for group in groups {
            let mut keys: Vec<&str> = group.iter().map(|param| param.key).collect();
            keys.sort_unstable();
            assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{keys:?}");
            assert!(group.iter().all(|param| !param.doc.is_empty() && !param.doc.contains('\n')));
        }
    }
}
