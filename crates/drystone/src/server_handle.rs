//! A running stack, as the commands that serve and measure hold it.

use drystone_stack::runtime::Runtime;

/// The kinds of a stop.
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
