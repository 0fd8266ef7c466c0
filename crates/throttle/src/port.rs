//! The channels of a device, as whoever dispatches finds them.

use drystone_core::SharedBioList;
use drystone_core::mailbox::Message;
use drystone_core::primitive::{AtomicBool, Ordering::*, fence};
use std::sync::Arc;

/// One channel.
pub(crate) struct Port {
    /// Its number among the device's channels, free again when it is closed.
    pub(crate) index: u32,
    /// Makes it look what may pass.
    pub(crate) word: Arc<Message>,
    /// Bios of it that may pass.
    pub(crate) granted: SharedBioList,
    /// Its context was dropped: what waits ends.
    gone: AtomicBool,
}

impl Port {
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Release);
        // Before the look at the rules: whoever changes them looks here after that, past a fence, too.
        fence(SeqCst);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Acquire)
    }

    /// Have the channel look, wherever its context's owner is.
    pub(crate) fn send_and_kick(&self) {
        let Some(handle) = self.word.receiver() else { return };
        handle.send(self.word.clone());
        handle.kick();
    }

    /// True if nobody else has the port or its word.
    pub(crate) fn is_ours_alone(port: &mut Arc<Port>) -> bool {
        Arc::get_mut(port).is_some_and(|port| Arc::get_mut(&mut port.word).is_some())
    }
}

/// All of them, by number.
#[derive(Clone, Default)]
pub(crate) struct Ports(Vec<Option<Arc<Port>>>);

impl Ports {
    pub(crate) fn get(&self, index: u32) -> Option<&Arc<Port>> {
        self.0.get(index as usize)?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.0.iter().flatten()
    }

    /// A port for a new channel, which `word` reaches.
    pub(crate) fn open(&mut self, word: Arc<Message>) -> Arc<Port> {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        let port = Arc::new(Port {
            index: free as u32,
            word,
            granted: SharedBioList::new(),
            gone: AtomicBool::new(false),
        });
        self.0.resize(self.0.len().max(free + 1), None);
        self.0[free] = Some(port.clone());
        port
    }

    pub(crate) fn close(&mut self, port: &Arc<Port>) {
        let place = self.0.get_mut(port.index as usize);
        if let Some(place) = place.filter(|it| it.as_ref().is_some_and(|p| Arc::ptr_eq(p, port))) {
            *place = None;
        }
    }
}
