//! Names of devices and exports, and of the groups of a path.

use crate::diagnostic::shorten;

/// Most bytes of a name.
pub const MAX_NAME_BYTES: usize = 64;

/// Checks the name of a device that is created while the stack is served.
///
/// # Errors
/// One sentence with what would be right.
pub fn check_name(name: &str) -> Result<(), String> {
    match is_name(name) {
        true => Ok(()),
        false => Err(format!("`{}` is not a name: use {}", shorten(name), name_hint())),
    }
}

/// True if `name` can name a device or an export.
pub(crate) fn is_name(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.chars().all(letters)
        && !matches!(name, "." | "..")
}

/// The characters of a name.
pub(crate) fn name_hint() -> String {
    format!("1 to {MAX_NAME_BYTES} letters, digits, `-`, `_` or `.`")
}
