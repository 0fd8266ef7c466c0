//! From a checked stack to a running one.

use std::sync::Arc;

use drystone_core::clock::{Clock, SystemClock};
use drystone_stack::StackSpec;
use drystone_stack::runtime::Runtime;

use crate::ending::Ending;
use crate::server::Server;

/// How to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Take nothing new, finish what is in flight, flush, close.
    Drain,
    /// Close; used when starting failed half-way, before any client was told of the exports.
    Now,
}

/// A running stack with its exports.
pub trait ServerHandle: Send {
    /// The URIs that clients reach the exports by, the default export's first.
    fn announce(&self) -> Vec<String>;

    /// A view of the stack for the control socket. Called once; the view must stay usable, if only
    /// to say that devices are gone, until the process ends.
    fn runtime(&self) -> Box<dyn Runtime>;

    /// Stops and gives everything back. Unix sockets of exports are removed.
    ///
    /// # Errors
    /// Data that could not be flushed, by device.
    fn stop(self: Box<Self>, mode: StopMode) -> anyhow::Result<()>;
}

/// Opens the devices and starts the exports of a stack.
///
/// # Errors
/// What could not be opened or bound; then nothing is left running.
pub fn start(stack: &StackSpec, ending: &Ending) -> anyhow::Result<Box<dyn ServerHandle>> {
    start_by(stack, ending, SystemClock::new())
}

/// The same by another clock than the machine's, for tests of what takes long.
///
/// # Errors
/// As those of [`start`].
pub fn start_by(
    stack: &StackSpec,
    ending: &Ending,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Box<dyn ServerHandle>> {
    Ok(Box::new(Server::start(stack, ending, clock)?))
}
