//! The system calls of the plain engine: epoll and timerfd. Results that are numbers are the
//! kernel's, or a negative errno.

use super::helpers::errno;
use crate::clock::Ns;
use crate::error::{Error, Result};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The kinds of epoll entries: the upper half of an entry's data, the lower says which.
pub(super) mod source {
    pub(in crate::ring) const SOCKET: u32 = 0;
    pub(in crate::ring) const WAKER: u32 = 1;
    pub(in crate::ring) const TIMERS: u32 = 2;
    pub(in crate::ring) const INNER: u32 = 3;
    pub(in crate::ring) const WATCH: u32 = 4;
}

fn owned(fd: i32, what: &str) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::os(what, std::io::Error::last_os_error()));
    }
    // SAFETY: the system call just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn new_epoll() -> Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "no epoll for a context")
}

pub(super) fn new_timerfd() -> Result<OwnedFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: no pointers.
    owned(
        unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) },
        "no timer descriptor for a context",
    )
}

pub(super) fn add(epoll: RawFd, fd: RawFd, events: i32, kind: u32, which: u32) -> Result<()> {
    match control(epoll, libc::EPOLL_CTL_ADD, fd, events, kind, which) {
        0 => Ok(()),
        e => Err(Error::os("epoll refuses", std::io::Error::from_raw_os_error(-e))),
    }
}

/// `epoll_ctl`; 0 or a negative errno.
pub(super) fn control(
    epoll: RawFd,
    what: i32,
    fd: RawFd,
    events: i32,
    kind: u32,
    which: u32,
) -> i32 {
    let data = (u64::from(kind) << 32) | u64::from(which);
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    // SAFETY: the event lives for the call.
    match unsafe { libc::epoll_ctl(epoll, what, fd, &mut event) } {
        0 => 0,
        _ => -errno(),
    }
}

pub(super) fn timespec(ns: Ns) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

/// Sleep on `epoll` for at most `timeout` ns; how many `reports` came. A signal ends it early.
pub(super) fn sleep(epoll: RawFd, reports: &mut [libc::epoll_event], timeout: Option<Ns>) -> usize {
    let spec = timeout.map(timespec);
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let room = reports.len() as i32;
    // SAFETY: the kernel writes at most `room` reports; the time lives for the call.
    let n = unsafe {
        let none = std::ptr::null::<libc::sigset_t>();
        libc::syscall(libc::SYS_epoll_pwait2, epoll, reports.as_mut_ptr(), room, spec, none, 0usize)
    };
    if n >= 0 {
        return n as usize;
    }
    match errno() {
        libc::ENOSYS | libc::EPERM => sleep_ms(epoll, reports, timeout),
        _ => 0,
    }
}

/// As [`sleep`], for kernels before 5.11 and filters that do not know `epoll_pwait2`: whole
/// milliseconds, rounded up so that no deadline is missed early.
fn sleep_ms(epoll: RawFd, reports: &mut [libc::epoll_event], timeout: Option<Ns>) -> usize {
    let ms = timeout.map_or(-1, |ns| ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
    // SAFETY: the kernel writes at most as many reports as there is room for.
    let n = unsafe { libc::epoll_wait(epoll, reports.as_mut_ptr(), reports.len() as i32, ms) };
    n.max(0) as usize
}
