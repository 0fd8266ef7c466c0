//! The parts that tests of several crates and the simulator share. No product links them.
//!
//! * [`alloc`]: an allocator that counts.
//! * [`device`]: fake devices.
//! * [`program`]: programs and their output.
//! * `nbd` (a feature of its own, since it needs the exports): the client of the NBD server.
//!
//! ```
//! use std::path::Path;
//! use drystone_testkit::program::{Program, stdout};
//!
//! let output = Program::new("/bin/echo").run(Path::new("/"), &["hello"]);
//! assert_eq!(stdout(&output), "hello\n");
//! ```

pub mod alloc;
pub mod device;
#[cfg(feature = "nbd")]
pub mod nbd;
pub mod program;

#[doc(hidden)]
pub use drystone_core as core;
