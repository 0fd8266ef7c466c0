//! The commands that concern throttle groups. The root is `/` here.

use serde_json::{Value, json};

use super::volumes::error;
use super::{Control, ControlError};
use crate::group::{check_path, from_shown, shown};
use crate::iomax::parse_io_max;

type Result<T> = std::result::Result<T, ControlError>;

impl Control<'_> {
    /// Answers one of the commands here; `None` if it is none of them.
    pub(super) fn groups(&self, command: &str, texts: &[Option<&str>]) -> Option<Result<Value>> {
        Some(match (command, texts) {
            ("group-create", [Some(path)]) => path_of(path)
                .and_then(|path| self.runtime.create_group(path).map_err(error))
                .map(|()| json!({ "path": path })),
            ("group-remove", [Some(path)]) => path_of(path)
                .and_then(|path| self.runtime.remove_group(path).map_err(error))
                .map(|()| json!({ "path": path })),
            ("group-set", [Some(path), Some(line)]) => self.set_group(path, line),
            ("group-list", []) => Ok(self.group_list()),
            ("group-stat", [path, reset]) => self.group_stat(*path, *reset == Some("true")),
            _ => return None,
        })
    }

    fn set_group(&self, path: &str, line: &str) -> Result<Value> {
        let path = path_of(path)?;
        let line = parse_io_max(line)
            .map_err(|error| ControlError::new("bad-request", error.to_string()))?;
        if self.runtime.device(&line.device).is_none() {
            return Err(self.no_device(&line.device));
        }
        let now = self.runtime.set_group(path, &line).map_err(error)?;
        Ok(json!({ "path": path, "io_max": now }))
    }

    fn group_list(&self) -> Value {
        let mut groups = self.runtime.groups();
        groups.iter_mut().for_each(|group| group.path = shown(&group.path).to_owned());
        json!({ "groups": groups })
    }

    fn group_stat(&self, path: Option<&str>, reset: bool) -> Result<Value> {
        let mut groups = self.runtime.group_stats(path.map(from_shown), reset).map_err(error)?;
        groups.iter_mut().for_each(|group| group.path = shown(&group.path).to_owned());
        Ok(json!({ "groups": groups }))
    }
}

/// The path of a group that is made, removed or limited.
fn path_of(path: &str) -> Result<&str> {
    match check_path(path) {
        Ok(()) => Ok(path),
        Err((message, hint)) => Err(ControlError::new("bad-request", format!("{message}: {hint}"))),
    }
}
