//! An open stack: its devices, and the export tables by which front ends serve them.
//!
//! Invariants:
//! * A device is opened after its members, and stays open as long as the stack or a context refers
//!   to it.
//! * This module has no threads and no sockets, and waits only by a [`SleepFn`] that the program
//!   gives. The program opens contexts on [`LiveStack::engine`] and hands [`LiveStack::tables`] to
//!   its front ends.

mod device;
mod devices;
mod event_reader;
mod exports;
mod finish;
mod groups;
mod logs;
mod md;
mod open;
mod open_env;
mod raid;
mod reopen;
mod runtime;
mod shape;
mod stack;
mod table;
mod uses;
mod volumes;

pub use device::{engine_of, open_device, open_with};
pub use devices::LiveDevice;
pub use event_reader::EventReader;
pub use exports::{LiveExport, LiveListener, LiveMount};
pub use open::open_one;
pub use open_env::{
    Files, Find, OpenContext, OpenDevice, OpenEnv, OpenError, OpenFile, Platform, SleepFn, Spawn,
};
pub use runtime::LiveRuntime;
pub use stack::LiveStack;
pub use table::{open_table, open_volume};
