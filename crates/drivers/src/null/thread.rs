//! The thread that completes a null device's requests: takes them in order and sends each one's
//! message to its context. It sleeps when there is nothing to complete, and ends with the device.

use drystone_core::mailbox::Message;
use drystone_core::{Error, Result};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// Handle of the completing thread; dropping it ends the thread once it has completed all.
pub(crate) struct CompletionThread {
    sender: Sender<Arc<Message>>,
}

impl CompletionThread {
    pub(crate) fn start() -> Result<Self> {
        let (sender, receiver) = channel::<Arc<Message>>();
        std::thread::Builder::new()
            .name("null-complete".to_owned())
            .spawn(move || receiver.iter().for_each(Message::send))
            .map_err(|e| Error::os("no thread for irqmode=1", e))?;
        Ok(CompletionThread { sender })
    }

    pub(crate) fn complete(&self, message: Arc<Message>) {
        // The receiver lives as long as this sender.
        let _ = self.sender.send(message);
    }
}
