//! The program `drystone`: serves a stack, controls a running one, explains and checks stack files,
//! measures devices. A library, so that tests can run its parts with a stack of their own, and
//! `drystone-lab` and `drystone-sim` speak to their users in the same way.
//!
//! ```
//! use drystone::draft::Draft;
//!
//! // The result of a long command needs a place: `Draft::new` fails before the command begins.
//! let name = format!("drystone-example-{}.json", std::process::id());
//! let path = std::env::temp_dir().join(name);
//! let draft = Draft::new(&path)?;
//! draft.write("{}\n")?;
//! assert_eq!(std::fs::read_to_string(&path)?, "{}\n");
//! # std::fs::remove_file(&path)?;
//! # anyhow::Ok(())
//! ```

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

mod alloc;
mod args;
pub mod bench;
mod calendar;
pub mod cli;
mod client;
mod commands;
mod companion;
mod control_socket;
mod descriptors;
pub mod draft;
pub mod ending;
mod events;
pub mod failure;
mod folder;
pub mod front_ends;
mod groups;
pub mod io_flusher;
mod log_writes;
mod md;
mod memory;
pub mod output;
mod paths;
pub mod serve;
pub mod server;
pub mod server_handle;
pub mod signals;
mod stop_limit;
mod terminal;
pub mod unix_socket;
mod volumes;
