//! Children of fork(2). They have the memory of their parent's stacks and contexts, and neither the
//! threads nor the rings behind them: a call there would wait for ever, or touch memory that is
//! gone.
//!
//! Invariant: what was made before a fork is refused on the child's side of it. The parent goes on
//! as before, and what the child makes itself is as good as anybody's.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::failure::{Failure, Result};

/// The number of forks that lie between the process that used the library first and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The function that the C library calls in the child of each fork (`pthread_atfork(3)`). Only what
/// a signal handler may do is permitted there.
pub(crate) extern "C" fn in_child() {
    // The child has one thread; everybody it starts later sees this.
    FORKS.fetch_add(1, Relaxed);
}

/// The process that something was made in. Kept with it, so that a look costs no system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker {
    forks: u32,
}

impl Maker {
    /// This process.
    pub(crate) fn this() -> Self {
        Maker { forks: FORKS.load(Relaxed) }
    }

    /// # Errors
    /// EPERM if this process is a child of the maker's.
    #[inline]
    pub(crate) fn check(self) -> Result<()> {
        if self.forks == FORKS.load(Relaxed) { Ok(()) } else { Err(refused()) }
    }
}

#[cold]
fn refused() -> Failure {
    let message = "this is a child of fork, and the stack was opened by its parent: open the stack \
                   in the child";
    Failure::new(libc::EPERM, message)
}
