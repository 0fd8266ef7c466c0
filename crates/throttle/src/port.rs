//! The channels of a device, as a dispatcher finds them.

use drystone_core::SharedBioList;
use drystone_core::primitive::{AtomicBool, Ordering::*, fence};

/// One channel. Its doorbell makes the channel take its granted bios.
pub(crate) type Port = drystone_core::Port<PortState>;

/// The channels of a device, by number.
pub(crate) type Ports = drystone_core::Ports<PortState>;

/// The state that a channel shares with dispatchers.
#[derive(Default)]
pub(crate) struct PortState {
    /// Granted bios of the channel.
    pub(crate) granted: SharedBioList,
    /// The channel's context was dropped: its waiting bios end.
    gone: AtomicBool,
}

impl PortState {
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Release);
        // This fence lies between the flag and the read of the rules. A thread that changes the
        // rules passes a fence between that and its read of the flag.
        fence(SeqCst);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Acquire)
    }
}
