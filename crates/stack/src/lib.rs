//! The one library that knows every kind of device and export: stack files, their checks, the
//! attributes of devices, and the control protocol of a running server.
//!
//! [`load`] reads a stack file and looks at what it names without opening anything, [`live`] opens
//! the devices of a checked stack, [`control::Control`] turns a request line into a response line
//! with the live stack behind [`runtime::Runtime`]. Sockets and threads are the program's.
//!
//! A program that embeds a stack loads it ([`load`], or [`check`] for a text), opens it
//! ([`live::LiveStack::open`]), opens a context for each of its threads on
//! [`live::LiveStack::contexts`], and ends with [`live::LiveStack::stop`] and
//! [`live::LiveStack::finish`]: see `examples/embed.rs`.
//!
//! * **Threads**: a live stack and its view for control are shared by all; they are slow paths and
//!   may take locks. Contexts belong to one thread at a time.
//! * **Units**: bytes and nanoseconds; values of attributes are in those of sysfs.
//! * **Errors**: a [`Report`] names the line, column and word of a stack file that is wrong; other
//!   errors are one sentence each.
//! * **Lifetimes**: a device stays open as long as the stack or a context refers to it.
//!
//! # Example
//!
//! ```
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use drystone_core::clock::SystemClock;
//! use drystone_core::{Bio, BioList, IoBuf, Sector};
//! use drystone_stack::live::{LiveStack, OpenEnv, SleepFn};
//! use drystone_stack::{Source, check};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "[device.memory]\ntype = \"ram\"\nsize = \"16MiB\"\n".to_owned();
//! let spec = check("example", Source { name: "example".to_owned(), text }, Path::new("."))?;
//! let stack = LiveStack::open(&spec, &OpenEnv::new(1, SystemClock::new()))?;
//!
//! // One context for each thread. A bio owns its buffer until the context returns it.
//! let mut context = stack.contexts().open(stack.engine())?;
//! let device = context.open(&stack.devices()[0].device)?;
//! let (mut bios, mut done) = (BioList::new(), BioList::new());
//! bios.push(Bio::write(Sector(8), IoBuf::from_slice(&[b'x'; 4096])));
//! context.submit(device, &mut bios);
//! while context.reap(&mut done) == 0 {
//!     context.wait(None);
//! }
//! assert!(done.pop().is_some_and(|bio| bio.status.is_ok()));
//!
//! drop(context);
//! stack.stop();
//! let pause: SleepFn = Box::new(|ns| std::thread::sleep(Duration::from_nanos(ns)));
//! stack.finish(&pause)?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

mod arrays;
pub mod attributes;
mod availability;
mod check_groups;
pub mod control;
pub mod diagnostic;
pub mod duration;
pub mod events;
mod explain;
mod files;
mod front_ends;
mod graph;
pub mod group;
pub mod iomax;
pub mod iostat;
mod lines;
pub mod live;
mod load;
pub mod md;
mod names;
mod nearest;
mod parse;
pub mod runtime;
pub mod schema;
mod setting;
pub mod size;
pub mod spec;
mod uri;
mod used_files;

pub use diagnostic::{Report, Source};
pub use explain::explain;
pub use front_ends::certificate_warnings;
pub use lines::one_line;
pub use load::{
    DEFAULT_STACK, DEFAULT_STACK_FOLDER, DEFAULT_STACK_NAME, LoadError, LoadOptions, check,
    fuzz_stack_file, fuzz_table, load, load_default, load_with,
};
pub use names::check_name;
pub use parse::parse;
pub use spec::StackSpec;
pub use uri::nbd_uri;
