//! The program's work for a front end, in the order in which the server asks for it.

use std::sync::Arc;

use drystone_core::sync::LockCounters;
use drystone_exports::server::Inbox;
use drystone_stack::StackSpec;
use drystone_stack::live::LiveStack;

use crate::ending::Ending;

/// The program's part of a front end. Its functions are called in this order, all on the thread
/// that starts and stops the server. Things that others can see they make by [`Ending::making`].
pub trait FrontEnd: Send {
    /// Before the process has threads, for what it has to be. Nothing is made.
    fn prepare(&mut self, _spec: &StackSpec) {}

    /// The devices are open, and no data thread runs.
    ///
    /// # Errors
    /// One sentence; then [`FrontEnd::leave`] is called.
    fn open(&mut self, _at: &At<'_>) -> anyhow::Result<()> {
        Ok(())
    }

    /// The data threads run: clients may come. After a request to stop it makes nothing more.
    ///
    /// # Errors
    /// One sentence; then [`FrontEnd::leave`] is called.
    fn begin(&mut self, at: &At<'_>) -> anyhow::Result<()>;

    /// How clients reach the exports: URIs or paths, in the order in which they are printed.
    fn announce(&self) -> Vec<String>;

    /// Lets nobody new in, as far as that takes no waiting.
    fn close(&mut self);

    /// After that, while data threads still serve: waits until nobody uses what has to be taken
    /// away before they end.
    ///
    /// # Errors
    /// One sentence on what could not be taken away; all else is.
    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Instead of both: takes everything away at once, though it be in use.
    fn leave(&mut self) {
        self.close();
    }
}

/// The surroundings of a front end.
pub struct At<'a> {
    /// The stack that is served.
    pub stack: &'a LiveStack,
    /// The doors of all data threads.
    pub inboxes: &'a [Arc<Inbox>],
    /// Counts the locks of the calling thread.
    pub locks: &'a Arc<LockCounters>,
    /// The lowest number of a descriptor that no client gets: the rest is for others.
    pub descriptors_max: i32,
    /// The end of the process.
    pub ending: &'a Ending,
}
