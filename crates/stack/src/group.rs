//! Paths of throttle groups.
//!
//! A path is that of a cgroup below the root: names with `/` between them. The parent of a group is
//! the path before the last `/`. The root is written `/`; it always exists and has no limits.

use crate::diagnostic::shorten;
use crate::names::{check_name, name_hint};
use crate::nearest::nearest;

/// Most groups of a stack file.
pub const MAX_GROUPS: usize = 1 << 16;
/// The most levels of groups: each I/O checks the limits of so many levels.
pub const MAX_GROUP_LEVELS: usize = 16;
/// The way the root is written.
pub const ROOT: &str = "/";

/// The path of the group above, empty for the root.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// A path as people write it: the root as `/`.
pub fn shown(path: &str) -> &str {
    if path.is_empty() { ROOT } else { path }
}

/// The path that people mean: the root is empty.
pub fn from_shown(text: &str) -> &str {
    if text == ROOT { "" } else { text }
}

/// Checks the path of a group that a command makes or limits.
///
/// # Errors The fault, and what would be right.
pub fn check_path(path: &str) -> Result<(), (String, String)> {
    let levels = path.split('/').count();
    if path.is_empty() || path == ROOT {
        let message = "the root is always there and takes no limits".to_owned();
        return Err((message, "name a group below it, as in tenants".to_owned()));
    }
    if levels > MAX_GROUP_LEVELS {
        let message = format!("group `{}` is on level {levels}", shorten(path));
        return Err((message, format!("at most {MAX_GROUP_LEVELS} stand below one another")));
    }
    if path.split('/').any(|name| check_name(name).is_err()) {
        let message = format!("`{}` is not a path of groups", shorten(path));
        return Err((message, format!("use names with `/` between them, each of {}", name_hint())));
    }
    Ok(())
}

/// A section's name in the paths of [`crate::spec::Places`], in which `/` separates keys.
pub(crate) fn place(path: &str) -> String {
    path.replace('/', ":")
}

/// The path behind [`place`].
pub(crate) fn path_of_place(place: &str) -> String {
    place.replace(':', "/")
}

/// The path among `known` that is nearest to a mistyped one.
pub fn nearest_group<'a>(path: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    nearest(path, known.filter(|path| !path.is_empty()))
}

/// The header of a group's section.
pub(crate) fn header(path: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    match path.chars().all(bare) {
        true => format!("[group.{path}]"),
        false => format!("[group.\"{path}\"]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_names_below_one_another() {
        let deep = ["g"; MAX_GROUP_LEVELS].join("/");
        for path in ["a", "tenants/a", "a.b/c_d/e-f/0", &deep] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        let long = "n".repeat(65);
        let cases = [
            ("", "the root is always there"),
            ("/", "the root is always there"),
            ("/a", "`/a` is not a path of groups"),
            ("a/", "`a/` is not a path"),
            ("a//b", "`a//b` is not a path"),
            ("a/../b", "`a/../b` is not a path"),
            ("a b", "`a b` is not a path"),
            (&long, "is not a path"),
            (&format!("{deep}/g"), "is on level 17"),
        ];
        for (path, message) in cases {
            let error = check_path(path).expect_err(path).0;
            assert!(error.contains(message), "{path}: {error}");
        }
    }

    #[test]
    fn paths_have_parents_and_headers() {
        assert_eq!((parent("a/b/c"), parent("a"), parent("")), ("a/b", "", ""));
        assert_eq!((shown(""), shown("a"), from_shown("/"), from_shown("a")), ("/", "a", "", "a"));
        assert_eq!(header("a-1"), "[group.a-1]");
        assert_eq!(header("a/b"), "[group.\"a/b\"]");
        assert_eq!(header("a.b"), "[group.\"a.b\"]");
    }
}
