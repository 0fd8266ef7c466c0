//! The objects that commands of the control socket work on.

use crate::diagnostic::shorten;
use crate::graph::{MEMBER_TIMEOUT_HINT, MEMBER_TIMEOUT_MIN_NS, array_above, short_timeout};
use crate::md::MemberReport;
use crate::nearest::nearest;
use crate::runtime::{DeviceSummary, Runtime};
use crate::schema::queue::IO_TIMEOUT;

use super::error::ControlError;

/// The identity of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// The program's version.
    pub version: String,
    /// The server's process.
    pub pid: u32,
    /// The stack's name.
    pub stack: String,
}

/// Answers requests of one client, or of several at a time.
pub struct Control<'r> {
    pub(super) runtime: &'r dyn Runtime,
    pub(super) server: &'r ServerInfo,
}

impl<'r> Control<'r> {
    /// Answers for `runtime`.
    pub fn new(runtime: &'r dyn Runtime, server: &'r ServerInfo) -> Self {
        Self { runtime, server }
    }

    /// A warning if one of the devices is a member of an array, or below one, and has so short a
    /// time-out that a slow disk would fail.
    pub(super) fn timeout_warning(&self, devices: &[String]) -> Option<String> {
        let is_short = |name: &&String| {
            let device = self.runtime.device(name);
            let shown =
                device.and_then(|device| device.attributes.get(IO_TIMEOUT.attribute).cloned());
            let timeout = shown.and_then(|ms| ms.trim().parse().ok());
            timeout.is_some_and(|ms: u64| ms < MEMBER_TIMEOUT_MIN_NS / 1_000_000)
        };
        let mut short = devices.iter().filter(is_short).peekable();
        short.peek()?;
        let arrays = self.runtime.arrays(None).unwrap_or_default();
        let array_of = |name: &str| {
            let is_it = |member: &MemberReport| member.device.as_deref() == Some(name);
            let array = arrays.iter().find(|array| array.devices.iter().any(is_it));
            array.map(|array| array.name.clone())
        };
        let users = |name: &str| {
            let device = |user: &DeviceSummary| self.runtime.device(&user.name);
            let stands_on = |user: &DeviceSummary| {
                device(user).is_some_and(|user| user.members.iter().any(|member| member == name))
            };
            let all = self.runtime.devices().into_iter().filter(stands_on);
            all.map(|user| user.name).collect()
        };
        let told = |name: &String| {
            let (member, array) = array_above(name, array_of, users)?;
            Some(short_timeout(name, (&member, &array)))
        };
        let texts: Vec<String> = short.filter_map(told).collect();
        (!texts.is_empty()).then(|| format!("{}: {MEMBER_TIMEOUT_HINT}", texts.join(", ")))
    }

    pub(super) fn no_device(&self, name: &str) -> ControlError {
        let names: Vec<String> =
            self.runtime.devices().into_iter().map(|device| device.name).collect();
        let near = nearest(name, names.iter().map(String::as_str));
        let hint = near.map(|near| format!(": did you mean `{near}`?")).unwrap_or_default();
        ControlError::new("not-found", format!("there is no device `{}`{hint}", shorten(name)))
    }
}
