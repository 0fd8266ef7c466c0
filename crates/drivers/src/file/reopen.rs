//! Reopens the file of a device while the device is in use.
//!
//! ```text
//!   the thread that opens it                  each queue
//!   opens the path, looks at it, locks it     I/O with the opening before
//!   exchanges the opening, tells contexts     takes over the new one: new I/O goes there, and I/O
//!                                             that was begun ends where it began
//!                                             the last I/O on the one before has ended: leaves it
//!   is_exchanging() until all have left it    the last one closes it, on a thread that may wait
//! ```
//!
//! Invariants:
//! * A failure before the exchange changes nothing: the open file stays in use.
//! * The same file stays locked throughout, by the lock that the device holds ([`Claim`]). Another
//!   file is locked before the exchange, and the previous file stays locked until its I/O has
//!   ended.
//! * A loss that no client has been told of is not forgotten if the file is the same. The kernel
//!   reports a lost write once to each opening. An opening made after the loss never gets the
//!   report if another one has got it. So the previous opening is asked (`fdatasync`) after the new
//!   one was opened: both openings get the report of any later loss.

use super::access::{self, Access, set_direct};
use super::claim::{Claim, Identity};
use super::open::{Ready, limit_notice, open_flags};
use super::opened::Opened;
use super::options::FileOptions;
use super::shared::FileShared;
use super::system::{find_opener, held, is_block_device, open_fd, size_of};
use super::{File, locks, loops};
use drystone_core::error::ErrorKind;
use drystone_core::primitive::Ordering::*;
use drystone_core::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl File {
    /// Open the path again, and use that file from now on. A failed flush and a cut are forgotten;
    /// data lost by them stays lost. I/O in flight ends on the previous opening; the attribute
    /// `reopening` says whether it has. `replaced`: use the file even if the path leads to another
    /// one now. May wait for the file system: not for a data thread. The queues must be told
    /// ([`drystone_queue::Driver::set_attribute`] does).
    ///
    /// # Errors
    /// A sentence; the open file stays in use. It is another file, shorter than the device, needs
    /// larger blocks, or is in use; a write was lost that no client has been told of; the previous
    /// file is still in use ([`ErrorKind::Busy`]); or the system's error.
    pub fn reopen(&self, replaced: bool) -> Result<()> {
        let shared = &*self.shared;
        let _turn = shared.turn()?;
        if shared.is_exchanging() {
            let text = format!(
                "{}: I/O on the file that was open before this one has not ended: until it has, \
                 the path cannot be opened again",
                shared.path.display()
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let before = shared.opened();
        let (next, is_same) = open_again(shared, &before, replaced)?;
        if is_same {
            // This call follows the new open: see the invariants.
            tell_losses(shared, &before)?;
        }
        shared.exchange(&before, next, is_same)
    }
}

/// Opens the file at the path. Returns it, and whether it is the file that is open.
fn open_again(shared: &FileShared, before: &Opened, replaced: bool) -> Result<(Opened, bool)> {
    let (Some(options), Some(claim)) = (&shared.options, &before.claim) else {
        return Ok((given_again(shared, before)?, true));
    };
    let block_device = is_block_device(&options.path)?;
    let found = Found::open(options, block_device)?;
    let is_same = claim.identity.is_same(found.identity);
    if !is_same && !replaced {
        return Err(Error::invalid(format!(
            "{} was replaced, it is not what the device has open: to use what is there now, say \
             --replaced",
            options.path.display()
        )));
    }
    let mut access = found.access(shared, before.length.bytes(), options)?;
    if is_same {
        access.notice.clone_from(&before.notice);
    }
    let claim = match is_same {
        true => Arc::clone(claim),
        false => {
            let claim = found.claim(options)?;
            access.note(loops::check(&found.fd, options)?);
            access.note(limit_notice(&found.fd, before.length.bytes(), options));
            claim
        }
    };
    let (block_size, bytes) = (shared.block_size, before.length.bytes());
    let ready = Ready { options, fd: found.fd, block_device, access, block_size, bytes };
    Ok((ready.opened(claim), is_same))
}

/// Reopens a simulator's file.
fn given_again(shared: &FileShared, before: &Opened) -> Result<Opened> {
    let path = shared.path.display();
    let backing = before.backing.reopened().ok_or_else(|| {
        Error::new(ErrorKind::NotSupported, format!("{path} cannot be opened again"))
    })?;
    let size = backing.size().map_err(|e| Error::os(&path, e))?;
    check_length(shared, size, before.length.bytes())?;
    let opened = Opened::over(backing, before.length.bytes(), shared.block_size);
    Ok(Opened { discard: before.discard, ..opened })
}

/// Makes earlier writes durable, or fails if one was lost.
fn tell_losses(shared: &FileShared, before: &Opened) -> Result<()> {
    if shared.read_only || before.flush_failed.load(Acquire) {
        return Ok(());
    }
    before.backing.sync().map_err(|error| {
        before.flush_failed.store(true, Release);
        let path = shared.path.display();
        let what = format!(
            "{path}: what was written before may be lost, check it; then it can be opened again"
        );
        Error::os(what, error)
    })
}

fn check_length(shared: &FileShared, size: u64, bytes: u64) -> Result<()> {
    match size < bytes {
        true => Err(Error::invalid(format!(
            "{} has {size} bytes, fewer than the {bytes} of the device: put back what it held \
             first",
            shared.path.display()
        ))),
        false => Ok(()),
    }
}

/// The file at the path now.
struct Found {
    fd: Arc<OwnedFd>,
    identity: Identity,
    block_device: bool,
    /// True if the block device was opened exclusively: this process does not have it open either.
    is_exclusive: bool,
}

impl Found {
    fn open(options: &FileOptions, block_device: bool) -> Result<Self> {
        let path = &options.path;
        let flags = open_flags(options, block_device) & !libc::O_CREAT;
        let (fd, is_exclusive) = match open_fd(path, flags) {
            // The holder may be this device itself.
            Err(error) if error.kind == ErrorKind::Busy => {
                (open_fd(path, flags & !libc::O_EXCL)?, false)
            }
            opened => (opened?, true),
        };
        let identity = Identity::of(&fd, block_device).map_err(|e| Error::os(path.display(), e))?;
        Ok(Found { fd: Arc::new(fd), identity, block_device, is_exclusive })
    }

    /// The access to the file, if it fits a device of `bytes` bytes.
    fn access(&self, shared: &FileShared, bytes: u64, options: &FileOptions) -> Result<Access> {
        let (path, block) = (options.path.display(), shared.block_size);
        let host = if self.block_device { access::logical_block_size(&self.fd) } else { block };
        if host > block {
            return Err(Error::invalid(format!(
                "{path} has logical blocks of {host} bytes, and the device has smaller ones, of \
                 {block}"
            )));
        }
        let size = size_of(&self.fd, self.block_device).map_err(|e| Error::os(&path, e))?;
        check_length(shared, size, bytes)?;
        let options = FileOptions { logical_block_size: Some(block), ..options.clone() };
        let mut access = access::choose(&options, &self.fd, self.block_device)?;
        set_direct(&self.fd, &options, &mut access)?;
        Ok(access)
    }

    /// Take a lock for this file.
    fn claim(&self, options: &FileOptions) -> Result<Arc<Claim>> {
        if !self.is_exclusive {
            let path = &options.path;
            return Err(held(path, find_opener(path), "a mount or another device"));
        }
        locks::lock(&self.fd, options, false)?;
        Ok(Claim::new(self.fd.clone(), self.identity))
    }
}
