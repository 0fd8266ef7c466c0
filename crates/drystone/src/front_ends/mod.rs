//! The program's work for each front end, beside the data threads: sockets, mounts, and taking them
//! away.
//!
//! A front end is a file or folder here, and a line in [`all`]. Its options of `drystone serve` are
//! a field of [`crate::serve::ServeOptions`].

mod front_end;
pub mod fuse;
mod nbd;

pub use front_end::{At, FrontEnd};

/// All front ends, in the order in which ways in are printed.
pub fn all() -> Vec<Box<dyn FrontEnd>> {
    vec![Box::new(nbd::Nbd::default()), Box::new(fuse::Fuse::default())]
}
