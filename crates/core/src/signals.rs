//! Threads of the library that take no signals of the program, and a signal that no server should
//! end by.
//!
//! A program that embeds the library may block a signal in its own threads, to take it with
//! signalfd(2) or sigwait(3). A thread of ours that does not block it would be where it comes
//! instead, and ends the process by its default action. So each thread of ours is started by
//! [`blocked`].
#![allow(unsafe_code, reason = "masks of signals have no safe wrapper")]

/// Signals that a thread causes itself. They cannot be blocked: it would be killed.
const OWN: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// The mask of the calling thread as it was, set again when this is dropped.
struct Mask(libc::sigset_t);

impl Mask {
    fn block_all() -> Option<Self> {
        // SAFETY: sets of signals are plain memory, which these calls fill, and they change the
        // mask of the calling thread alone.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            for signal in OWN {
                libc::sigdelset(&raw mut all, signal);
            }
            let set = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            (set == 0).then_some(Mask(before))
        }
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: the set is one that the kernel has given.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

/// Do `work` with all signals blocked that come from outside: threads that it starts have them
/// blocked for ever.
pub fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let _mask = Mask::block_all();
    work()
}

/// Ignore SIGXFSZ in the whole process, for a program that begins: a write past the limit of file
/// size (`RLIMIT_FSIZE`, setrlimit(2)) then fails with EFBIG, which becomes "no space" for its
/// client. The signal's default action would end the process, and with it the exports of all.
pub fn ignore_file_size_signal() {
    // SAFETY: to ignore a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The signals that the calling thread has blocked, as proc(5) tells.
    fn mask() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn threads_begin_with_signals_blocked_and_their_maker_goes_on_without() {
        let before = mask();
        let theirs = blocked(|| std::thread::spawn(mask).join().unwrap());
        let bit = |signal: libc::c_int| 1 << (signal - 1);
        assert_ne!(theirs & bit(libc::SIGTERM), 0);
        assert_ne!(theirs & bit(libc::SIGALRM), 0);
        assert_eq!(theirs & bit(libc::SIGSEGV), 0);
        assert_eq!(mask(), before);
    }
}
