//! The wake-up of a user of a range lock that must look at the queue again.

use crate::context::Handle;

/// Has a user of a lock look again. Any thread may call it.
pub trait Wake: Send + Sync {
    /// Make the user's thread look.
    fn wake(&self);
}

impl Wake for Handle {
    fn wake(&self) {
        Handle::wake(self);
    }
}
