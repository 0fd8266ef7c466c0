//! A thread that serves requests of the file one by one, and sleeps where the array lets writers
//! sleep.
//!
//! In Linux a writer's own thread sleeps for a stripe. Here one of equally many threads takes the
//! kernel's request, and sleeps instead.
//!
//! Invariant: an answered request has no I/O in flight, so the memory of a write can be reused.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use drystone_core::{Bio, BioList, ChannelId, Context, IoBuf, Sector};
use drystone_exports::fuse::proto::{
    self, Attributes, InitFlags, Malformed, OUT_HEADER_BYTES, Operation, Request, Statistics,
    WRITE_HEAD_BYTES, Wishes, negotiate, opened_flags,
};
use drystone_raid::layout::Layout;
use rustix::io::{Errno, readv, writev};

use crate::raid5_wait::array::Writer;

/// The longest write and read that the kernel may send: as in the product, so that all variants get
/// the same requests.
const DATA_BYTES: usize = 1 << 20;
/// Longest answer that has no data.
const SHORT_BYTES: usize = 256;
/// The unit of reads and writes: pages.
const PAGE: u64 = 4096;

/// See the module's text.
pub(super) struct Lane<'a> {
    pub(super) device: OwnedFd,
    pub(super) writer: Box<dyn Writer + 'a>,
    /// The context for reads, which go directly to the members: answered writes are already there.
    pub(super) cx: Context,
    pub(super) members: Vec<ChannelId>,
    pub(super) layout: Layout,
    /// The size of the file.
    pub(super) bytes: u64,
}

/// An answer: so many bytes of `short`, or all of `long`, or nothing at all.
enum Answer {
    Short(usize),
    Long(Vec<u8>),
    Silence,
}

impl Lane<'_> {
    /// Serves until the mount is gone.
    pub(super) fn run(mut self) {
        let mut data: Arc<[u8]> = Arc::from(vec![0; DATA_BYTES]);
        let mut head = [0; WRITE_HEAD_BYTES];
        while let Some(length) = self.read(&mut head, &mut data) {
            // Of a longer request that is no write, only the first bytes matter here.
            let known = length.min(WRITE_HEAD_BYTES);
            let mut short = [0; SHORT_BYTES];
            let (unique, answer) = match Request::parse(&head[..known], length) {
                Ok(request) => (request.unique, self.answer(&request, &data, &mut short)),
                Err(Malformed::Body { unique }) => (unique, Err(Errno::NOSYS)),
                Err(Malformed::Header) => continue,
            };
            match answer {
                Ok(Answer::Short(bytes)) => self.send(unique, 0, &short[..bytes]),
                Ok(Answer::Long(bytes)) => self.send(unique, 0, &bytes),
                Ok(Answer::Silence) => {}
                Err(error) => self.send(unique, error.raw_os_error(), &[]),
            }
        }
    }

    /// Waits for a request. Returns its length.
    fn read(&self, head: &mut [u8], data: &mut Arc<[u8]>) -> Option<usize> {
        let Some(data) = Arc::get_mut(data) else { unreachable!("nothing is in flight") };
        loop {
            match readv(&self.device, &mut [IoSliceMut::new(head), IoSliceMut::new(data)]) {
                Ok(0) => return None,
                Ok(length) => return Some(length),
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                // The mount is gone.
                Err(_) => return None,
            }
        }
    }

    fn send(&self, unique: u64, error: i32, body: &[u8]) {
        let header: [u8; OUT_HEADER_BYTES] = proto::header(unique, error, body.len());
        // The write fails if the mount is gone or the asker was killed.
        let _ = writev(&self.device, &[IoSlice::new(&header), IoSlice::new(body)]);
    }

    fn answer(
        &mut self,
        request: &Request<'_>,
        data: &Arc<[u8]>,
        short: &mut [u8],
    ) -> Result<Answer, Errno> {
        Ok(Answer::Short(match request.operation {
            Operation::Init(ask) => {
                let mut reply = negotiate(&ask, Wishes::default()).map_err(|_| Errno::PROTO)?;
                reply.flags.remove(InitFlags::WRITEBACK_CACHE);
                proto::init(short, &reply)
            }
            Operation::GetAttributes | Operation::SetAttributes { .. } => {
                proto::attributes(short, &self.attributes(request.node))
            }
            Operation::Open { .. } => {
                let flags = opened_flags::DIRECT_IO | opened_flags::PARALLEL_DIRECT_WRITES;
                proto::opened(short, 0, flags)
            }
            Operation::Read { offset, length, .. } => {
                return Ok(Answer::Long(self.read_array(offset, length)?));
            }
            Operation::Write { offset, length, .. } => {
                self.write_array(offset, length, data)?;
                proto::written(short, length)
            }
            Operation::Sync { .. } => {
                self.writer.sync().map_err(|_| Errno::IO)?;
                0
            }
            Operation::Statistics => {
                proto::statistics(short, &Statistics { bytes: self.bytes, files: 1 })
            }
            Operation::Release { .. } | Operation::Destroy => 0,
            Operation::Forget | Operation::Interrupt { .. } => return Ok(Answer::Silence),
            Operation::Allocate { .. } => return Err(Errno::OPNOTSUPP),
            _ => return Err(Errno::NOSYS),
        }))
    }

    fn attributes(&self, node: u64) -> Attributes {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Attributes { node, size: self.bytes, mode: 0o100_600, uid, gid, time_s: 0 }
    }

    /// Whole pages in the file, as a loop device asks for; others are refused.
    fn check(&self, offset: u64, length: u32) -> Result<(), Errno> {
        let end = offset.checked_add(u64::from(length)).ok_or(Errno::INVAL)?;
        let whole = offset.is_multiple_of(PAGE) && u64::from(length).is_multiple_of(PAGE);
        match whole && end <= self.bytes && length as usize <= DATA_BYTES {
            true => Ok(()),
            false => Err(Errno::INVAL),
        }
    }

    fn write_array(&mut self, offset: u64, length: u32, data: &Arc<[u8]>) -> Result<(), Errno> {
        self.check(offset, length)?;
        self.writer.write(Sector::from_bytes(offset).0, data, 0..length as usize);
        self.writer.wait().map_err(|_| Errno::IO)
    }

    fn read_array(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Errno> {
        let length = u64::from(length).min(self.bytes.saturating_sub(offset)) as u32;
        self.check(offset, length)?;
        let (mut out, mut at) = (vec![0; length as usize], 0);
        let mut in_flight = 0;
        while at < out.len() {
            at += self.read_chunk(offset, at, out.len());
            in_flight += 1;
        }
        let mut ended = BioList::new();
        while in_flight > 0 {
            match self.cx.reap(&mut ended) {
                0 => self.cx.wait(None),
                some => in_flight -= some,
            }
        }
        while let Some(mut bio) = ended.pop() {
            let from = bio.user_data as usize;
            let buf = bio.take_buf().filter(|_| bio.status.is_ok()).ok_or(Errno::IO)?;
            out[from..from + buf.len()].copy_from_slice(&buf);
        }
        Ok(out)
    }

    /// Begins the read of one chunk, from `at` bytes behind `offset` on. Returns its length.
    fn read_chunk(&mut self, offset: u64, at: usize, most: usize) -> usize {
        let sector = Sector::from_bytes(offset + at as u64).0;
        let chunk = self.layout.chunk_sectors();
        let left = (chunk - sector % chunk) as usize * 512;
        let (place, bytes) = (self.layout.map_sector(sector), left.min(most - at));
        let mut bio = Bio::read(Sector(place.sector), IoBuf::zeroed(bytes));
        bio.user_data = at as u64;
        let mut bios = BioList::new();
        bios.push(bio);
        self.cx.submit(self.members[place.role.index()], &mut bios);
        bytes
    }
}
