//! The checks of a stack that depend on today's date.

use std::time::{SystemTime, UNIX_EPOCH};

use drystone_stack::{StackSpec, certificate_warnings};

/// Adds warnings of certificates that have expired, or are not valid yet.
pub fn judge_certificates(stack: &mut StackSpec) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let warnings = certificate_warnings(stack, now.as_secs());
    stack.warnings.extend(warnings);
}
