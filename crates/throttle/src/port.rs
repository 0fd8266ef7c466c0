//! The channels of a device, as a dispatcher finds them.

use drystone_core::SharedBioList;
use drystone_core::primitive::{AtomicBool, Ordering::*, fence};

/// One channel. Its doorbell makes it take the bios that may pass.
pub(crate) type Port = drystone_core::Port<PortState>;

/// All of them, by number.
pub(crate) type Ports = drystone_core::Ports<PortState>;

/// The state that a channel shares with dispatchers.
#[derive(Default)]
pub(crate) struct PortState {
    /// Bios of it that may pass.
    pub(crate) granted: SharedBioList,
    /// Its context was dropped: what waits ends.
    gone: AtomicBool,
}

impl PortState {
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Release);
        // Before the read of the rules: a thread that changes them reads this after that, past a
        // fence, too.
        fence(SeqCst);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Acquire)
    }
}
