//! The kernel's own scheduler beside ours.

use std::path::Path;

use crate::Options;
use crate::outcome::Row;

/// What was found, and what is to be said of it.
#[derive(Default)]
pub struct Found {
    pub rows: Vec<Row>,
    pub remarks: Vec<String>,
}

pub fn measure(_: &Options, _: &Path, _: &mut dyn FnMut(&str)) -> Found {
    Found::default()
}
