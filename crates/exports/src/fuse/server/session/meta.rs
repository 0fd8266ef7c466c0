//! Requests about files, not their data: they are answered at once.

use super::Session;
use crate::fuse::proto::{
    self, Directory, Entry, NAME_MAX, Operation, Request, open_flags, opened_flags,
};
use crate::fuse::server::mount::{Kind, MountOptions, Transport};
use crate::fuse::server::op::{Caller, ReplyTo};
use crate::server::{DATA_AT, Work, errno};

/// Longest answer to one reading of a folder, bytes.
const FOLDER_BYTES: u32 = 64 << 10;

impl Session {
    /// Carry out a request, or begin to.
    #[inline]
    pub(in crate::fuse::server) fn start(
        &mut self,
        request: &Request<'_>,
        caller: &Caller,
        work: &mut Work,
    ) {
        match request.operation {
            Operation::Read { handle, offset, length } => {
                self.start_read(caller, handle, offset, length, work);
            }
            Operation::Write { handle, offset, length, flags } => {
                self.start_write(caller, handle, (offset, length, flags), work);
            }
            Operation::Sync { handle } => self.start_sync(caller, handle, work),
            Operation::Allocate { handle, offset, length, mode } => {
                self.start_allocate(
                    caller,
                    handle,
                    offset..offset.saturating_add(length),
                    mode,
                    work,
                );
            }
            Operation::SetAttributes { mode: false, owner: false, size: Some(size), handle } => {
                self.start_truncate(caller, handle, size, work);
            }
            Operation::Seek { handle, offset, whence } => {
                self.start_seek(caller, handle, offset, whence, work);
            }
            Operation::Interrupt { unique } => self.interrupt(unique),
            _ => self.answer_at_once(request, caller),
        }
    }

    fn answer_at_once(&mut self, request: &Request<'_>, caller: &Caller) {
        let to = caller.reply;
        match request.operation {
            Operation::Init(ask) => self.initialise(to, &ask),
            Operation::Lookup { name } => self.look_up(caller, name),
            Operation::GetAttributes => self.attributes(caller),
            Operation::SetAttributes { mode: false, owner: false, .. } => self.attributes(caller),
            Operation::SetAttributes { .. } => self.channel.answer(to, errno::EPERM),
            Operation::Open { flags } => self.open(caller, flags),
            Operation::Release { handle } => {
                self.mount.release(handle, &self.counters);
                self.channel.answer(to, 0);
            }
            Operation::Statistics => {
                let statistics = self.mount.statistics();
                self.channel.answer_with(to, |out| proto::statistics(out, &statistics));
            }
            Operation::OpenFolder if !self.mount.is_folder(request.node) => {
                self.channel.answer(to, errno::ENOTDIR);
            }
            Operation::OpenFolder => self.channel.answer_with(to, |out| proto::opened(out, 0, 0)),
            Operation::ReadFolder { offset, length, plus } => {
                self.read_folder(caller, offset, length, plus);
            }
            Operation::ReleaseFolder | Operation::Destroy => self.channel.answer(to, 0),
            Operation::Forget => {}
            Operation::ChangeFolder => self.channel.answer(to, errno::EPERM),
            Operation::Unknown { .. } => self.channel.answer(to, errno::ENOSYS),
            _ => unreachable!("has been started"),
        }
    }

    fn initialise(&mut self, to: ReplyTo, ask: &proto::InitAsk) {
        let MountOptions { kind, writeback_cache, .. } = *self.mount.options();
        let writeback_cache = writeback_cache && kind == Kind::Folder;
        self.mount.kernel_offers(ask.flags);
        let wishes = proto::Wishes { writeback_cache, over_ring: self.mount.has_rings() };
        match proto::negotiate(ask, wishes) {
            Ok(reply) if reply.major != ask.major => {
                self.channel.answer_with(to, |out| proto::init(out, &reply));
            }
            Ok(reply) if reply.flags.contains(proto::InitFlags::OVER_IO_URING) => {
                self.channel.answer_with(to, |out| proto::init(out, &reply));
                // The rings come after the answer: the kernel accepts them only then.
                self.mount.agree(Transport::Ring);
            }
            Ok(reply) => {
                // This comes before the answer, so that a client that has seen the answer finds the
                // mount initialised.
                self.mount.initialised();
                self.mount.agree(Transport::Descriptor);
                self.channel.answer_with(to, |out| proto::init(out, &reply));
            }
            Err(refused) => {
                self.mount.fail(refused.to_string());
                self.channel.answer(to, errno::EPROTO);
            }
        }
    }

    fn look_up(&mut self, caller: &Caller, name: &[u8]) {
        if !self.mount.is_folder(caller.node) {
            return self.channel.answer(caller.reply, errno::ENOTDIR);
        }
        let Some(index) = self.mount.find(name) else {
            return self.channel.answer(caller.reply, errno::ENOENT);
        };
        let geometry = self.volumes.refresh(&self.mount, index);
        let attributes = self.mount.file_attributes(self.mount.node_of(index), &geometry);
        self.channel.answer_with(caller.reply, |out| proto::entry(out, &attributes));
    }

    /// Answers with the attributes, also after a change of times, which is ignored.
    pub(super) fn attributes(&mut self, caller: &Caller) {
        let attributes = match self.mount.volume_at(caller.node) {
            _ if self.mount.is_folder(caller.node) => self.mount.folder_attributes(),
            Some(index) => {
                let geometry = self.volumes.refresh(&self.mount, index);
                self.mount.file_attributes(caller.node, &geometry)
            }
            None => return self.channel.answer(caller.reply, errno::ENOENT),
        };
        self.channel.answer_with(caller.reply, |out| proto::attributes(out, &attributes));
    }

    fn open(&mut self, caller: &Caller, flags: u32) {
        let Some(index) = self.mount.volume_at(caller.node) else {
            let folder = self.mount.is_folder(caller.node);
            return self
                .channel
                .answer(caller.reply, if folder { errno::EISDIR } else { errno::ENOENT });
        };
        if flags & open_flags::ACCESS != 0 && self.volumes.refresh(&self.mount, index).read_only {
            return self.channel.answer(caller.reply, errno::EROFS);
        }
        let direct = opened_flags::DIRECT_IO | opened_flags::PARALLEL_DIRECT_WRITES;
        let asks = flags & open_flags::DIRECT != 0 && self.mount.direct_is_coherent();
        let is_direct = asks || self.mount.options().direct_io;
        let opened = if is_direct { direct } else { 0 };
        let handle = self.mount.open(index, caller.uid, &self.counters);
        self.channel.answer_with(caller.reply, |out| proto::opened(out, handle, opened));
    }

    /// Places in a folder: 0 and 1 are the folder and its parent, the volumes follow.
    fn read_folder(&mut self, caller: &Caller, offset: u64, length: u32, plus: bool) {
        if !self.mount.is_folder(caller.node) {
            return self.channel.answer(caller.reply, errno::ENOTDIR);
        }
        let length = length.min(FOLDER_BYTES) as usize;
        let Some(mut buf) = self.buffers.take(length) else {
            return self.channel.answer(caller.reply, errno::ENOMEM);
        };
        let mut folder = Directory::new(&mut buf[DATA_AT..DATA_AT + length], plus);
        let first = usize::try_from(offset).unwrap_or(usize::MAX);
        for place in first..self.mount.volume_count() + 2 {
            if !self.add_entry(&mut folder, place) {
                break;
            }
        }
        let end = DATA_AT + folder.length();
        self.channel.answer_data(caller.reply, buf, DATA_AT..end, &mut self.buffers);
    }

    /// False if the entry at `place` does not fit.
    fn add_entry(&self, folder: &mut Directory<'_>, place: usize) -> bool {
        let next = place as u64 + 1;
        let Some(index) = place.checked_sub(2) else {
            let name: &[u8] = if place == 0 { b"." } else { b".." };
            return folder.add(&Entry { name, next, attributes: self.mount.folder_attributes() });
        };
        let name = self.mount.shared(index).volume.name.as_bytes();
        if name.len() > NAME_MAX {
            return true;
        }
        let geometry = self.mount.geometry(index);
        let attributes = self.mount.file_attributes(self.mount.node_of(index), &geometry);
        folder.add(&Entry { name, next, attributes })
    }
}
