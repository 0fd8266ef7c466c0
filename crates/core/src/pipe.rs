//! Data of a read that nobody copies: a pipe that holds references to pages (splice(2)).
//!
//! A front end that would send what it reads gives the bio an empty pipe. A device whose memory or
//! page cache holds the data may put that into the pipe instead of copying it to the bio's memory.
//! The front end then moves the pages from the pipe to the socket. Where a device leaves the pipe
//! as it is, the data is in the bio's memory, as ever.
//!
//! The pages are the device's own. So whoever takes them from the socket late may see a later write
//! to them, as one who is sent a file by sendfile(2) may. While the request is under way the
//! protocol lets it see that write. Therefore only a bio that no volume remapped is filled this way
//! ([`crate::Bio::pipe_to_fill`]): a volume that gets another table may give the place to others.
//! Whoever hands one device from client to client without making it anew says so to the front end,
//! which then gives no pipes. The kernel keeps the pages for as long as a pipe or socket refers to
//! them, also if the device is closed.
//!
//! splice(2) to a socket whose client has gone sends SIGPIPE. The threads of the library have it
//! blocked ([`crate::signals`]), and a program in Rust ignores it; others that visit a context
//! must, too.
//!
//! Invariants:
//! * A pipe that is [`Pipe::is_idle`] holds nothing.
//! * Between [`Pipe::begin`] and [`Pipe::filled`] what it holds is not known. If that never comes,
//!   it is dropped and not used again.
//! * At most [`PIPES_MAX`] pipes are open in the process.

#![allow(unsafe_code, reason = "the kernel is told of memory and descriptors")]

use crate::buf::Segment;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// Pipes of a process: half of those that a user without privileges gets of this size (pipe(7),
/// `pipe-user-pages-soft`). In the simulator worlds share a process, and must not notice.
pub const PIPES_MAX: usize = if cfg!(drystone_sim) { 1 << 20 } else { 32 };

/// So many times nobody asks the kernel again after it has refused a pipe.
const PAUSE: usize = 1024;

static OPEN: AtomicUsize = AtomicUsize::new(0);
static PAUSED: AtomicUsize = AtomicUsize::new(0);
static FILLS: AtomicU64 = AtomicU64::new(0);

/// A pipe and what is known of its contents.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    bytes: usize,
    is_unknown: bool,
}

impl Pipe {
    /// The most bytes that a pipe takes, if they begin at a page. It is the most that a user
    /// without privileges may ask for.
    pub const BYTES_MAX: u64 = if cfg!(drystone_sim) { 256 << 10 } else { 1 << 20 };

    /// The fewest bytes for which a pipe is cheaper than copies. The simulator's reads are short.
    pub const BYTES_MIN: u64 = if cfg!(drystone_sim) { 4 << 10 } else { 128 << 10 };

    /// True if a pipe may take `bytes` bytes from `offset` of a device: whole pages, not too few
    /// and not too many.
    pub fn takes(offset: u64, bytes: u64) -> bool {
        let page = page_bytes();
        let is_whole = offset.is_multiple_of(page) && bytes.is_multiple_of(page);
        is_whole && (Self::BYTES_MIN..=Self::BYTES_MAX).contains(&bytes)
    }

    /// An empty pipe. `None` if the process has as many as it may have, or the kernel refuses one
    /// of this size, or did so not long ago.
    pub fn open() -> Option<Box<Self>> {
        if is_paused() {
            return None;
        }
        if OPEN.fetch_add(1, Relaxed) >= PIPES_MAX {
            OPEN.fetch_sub(1, Relaxed);
            return None;
        }
        let pipe = Self::of_kernel();
        if pipe.is_none() {
            OPEN.fetch_sub(1, Relaxed);
            PAUSED.store(PAUSE, Relaxed);
        }
        pipe
    }

    /// The pipes that the process has open.
    pub fn count() -> usize {
        OPEN.load(Relaxed)
    }

    /// How often a pipe of the process was filled.
    pub fn fills() -> u64 {
        FILLS.load(Relaxed)
    }

    fn of_kernel() -> Option<Box<Self>> {
        let mut ends = [-1; 2];
        // SAFETY: the kernel writes two descriptors, which are ours alone.
        let (read, write) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) < 0 {
                return None;
            }
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        let bytes = Self::BYTES_MAX as libc::c_int;
        // SAFETY: this command takes a number.
        let size = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
        assert!(
            !cfg!(drystone_sim) || size >= bytes,
            "the simulator needs pipes: raise fs.pipe-user-pages-soft, or run it as root"
        );
        if size < bytes {
            // Both ends are closed here, where `Drop` of a pipe does not count.
            return None;
        }
        Some(Box::new(Pipe { read, write, bytes: 0, is_unknown: false }))
    }

    /// True if it holds nothing, and can be used.
    pub fn is_idle(&self) -> bool {
        self.bytes == 0 && !self.is_unknown
    }

    /// The bytes that it holds for its reader.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True if there is nothing for its reader.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The end to move data into, from now on until [`Pipe::filled`].
    pub fn begin(&mut self) -> RawFd {
        debug_assert_eq!(self.bytes, 0, "a pipe is filled once");
        self.is_unknown = true;
        self.write.as_raw_fd()
    }

    /// It holds `bytes` bytes now, and nothing else.
    pub fn filled(&mut self, bytes: usize) {
        debug_assert!(self.is_unknown);
        (self.bytes, self.is_unknown) = (bytes, false);
        FILLS.fetch_add(1, Relaxed);
    }

    /// Fill it with references to the pages of `memory`.
    ///
    /// # Errors
    /// If the kernel did not take all of it: the errno, or 0 if it took a part. Then the pipe must
    /// not be used any more.
    pub fn fill_from(&mut self, memory: Segment) -> Result<(), i32> {
        let vector = libc::iovec { iov_base: memory.ptr.cast(), iov_len: memory.len };
        let pipe = self.begin();
        // SAFETY: the kernel reads the vector during the call. It finds out itself whether the
        // memory is there, and keeps the pages that it refers to.
        let n = unsafe { libc::vmsplice(pipe, &raw const vector, 1, libc::SPLICE_F_NONBLOCK) };
        if n < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        }
        if n != memory.len as isize {
            return Err(0);
        }
        self.filled(memory.len);
        Ok(())
    }

    /// True for an error with which the kernel will refuse pages again and again; others pass, or
    /// are of one read.
    pub fn is_refusal(errno: i32) -> bool {
        !matches!(errno, 0 | libc::EAGAIN | libc::EIO | libc::ENOMEM | libc::EFAULT)
    }

    /// Move what it holds to a socket that does not block: as much as that takes at once. The
    /// result is that of splice(2). What was moved is told to [`Pipe::moved`].
    pub(crate) fn move_to(&self, socket: RawFd) -> isize {
        let null = std::ptr::null_mut();
        let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
        // SAFETY: neither end has a position, and the pages are the kernel's.
        unsafe { libc::splice(self.read.as_raw_fd(), null, socket, null, self.bytes, flags) }
    }

    /// Copy its first `n` bytes out, for a reader that is no socket. What was copied is told to
    /// [`Pipe::moved`].
    pub fn copy_out(&self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        // SAFETY: the kernel writes at most `n` bytes of the vector.
        let n = unsafe { libc::read(self.read.as_raw_fd(), bytes.as_mut_ptr().cast(), n) };
        bytes.truncate(n.max(0) as usize);
        bytes
    }

    /// Put a copy of `data` into it between [`Pipe::begin`] and [`Pipe::filled`], for a source that
    /// has no pages. Returns the bytes that it took.
    pub fn copy_in(pipe: RawFd, data: &[u8]) -> usize {
        // SAFETY: the kernel reads the slice during the call.
        let n = unsafe { libc::write(pipe, data.as_ptr().cast(), data.len()) };
        n.max(0) as usize
    }

    /// `n` of its bytes have left it.
    pub fn moved(&mut self, n: usize) {
        debug_assert!(n <= self.bytes);
        self.bytes -= n;
    }
}

/// True if the kernel has refused a pipe not long ago; counts the questions.
fn is_paused() -> bool {
    PAUSED.load(Relaxed) > 0
        && PAUSED.try_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
}

/// Bytes of a page, which is what a pipe counts.
fn page_bytes() -> u64 {
    // SAFETY: the question has no arguments in memory.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Drop for Pipe {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Relaxed);
    }
}

#[cfg(all(test, not(loom), not(miri), not(drystone_sim)))]
mod tests {
    use super::*;
    use crate::IoBuf;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn pages_reach_a_socket_in_pieces() {
        let memory = IoBuf::from_slice(&(0..=255).cycle().take(1 << 20).collect::<Vec<u8>>());
        let mut pipe = Pipe::open().expect("a pipe");
        assert!(pipe.is_idle() && pipe.fill_from(memory.segment(0..memory.len())).is_ok());
        assert!(pipe.len() == 1 << 20 && !pipe.is_idle());
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("it can");
        let mut got = Vec::new();
        while !pipe.is_empty() {
            let n = pipe.move_to(ours.as_raw_fd());
            assert!(n > 0, "the socket is empty: {n}");
            pipe.moved(n as usize);
            let mut buf = vec![0; n as usize];
            theirs.read_exact(&mut buf).expect("it was sent");
            got.extend(buf);
        }
        assert!(got == memory[..] && pipe.is_idle());
    }

    #[test]
    fn a_pipe_that_was_not_filled_is_not_used_again() {
        let mut pipe = Pipe::open().expect("a pipe");
        let memory = Segment { ptr: std::ptr::null_mut(), len: 1 << 16 };
        assert_eq!(pipe.fill_from(memory), Err(libc::EFAULT));
        assert!(!pipe.is_idle() && pipe.is_empty());
        assert!(Pipe::is_refusal(libc::EINVAL) && !Pipe::is_refusal(libc::EFAULT));
    }

    #[test]
    fn what_is_copied_in_comes_out() {
        let mut pipe = Pipe::open().expect("a pipe");
        let end = pipe.begin();
        assert_eq!(Pipe::copy_in(end, b"abcdef"), 6);
        pipe.filled(6);
        assert_eq!(pipe.copy_out(4), b"abcd");
        pipe.moved(4);
        assert_eq!((pipe.len(), pipe.copy_out(9)), (2, b"ef".to_vec()));
    }

    #[test]
    fn only_whole_pages_of_some_length_are_taken() {
        assert!(Pipe::takes(0, 128 << 10) && Pipe::takes(4096, 1 << 20));
        assert!(!Pipe::takes(0, 124 << 10) && !Pipe::takes(0, (1 << 20) + 4096));
        assert!(!Pipe::takes(512, 1 << 18) && !Pipe::takes(0, (1 << 18) + 512));
    }
}
