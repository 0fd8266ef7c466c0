//! The I/O of the manager, the only thread that may wait for I/O.

use drystone_core::ChannelId;
use drystone_core::clock::Ns;
use drystone_core::{Bio, BioFlags, BioList, Context, Device, IoBuf, SECTOR_SIZE, Sector, Status};
use std::ops::Range;
use std::sync::Arc;

/// The number of a bio that was started; no number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

#[cfg(all(test, not(loom)))]
impl Ticket {
    /// A number that no bio has.
    pub(crate) fn of_test(number: u64) -> Self {
        Ticket(u64::MAX - number)
    }
}

/// A context with bios in flight, each known by its ticket.
pub(crate) struct Io {
    pub(crate) ctx: Context,
    next: u64,
    /// Bios that have ended and were not taken yet.
    ended: BioList,
}

impl Io {
    pub(crate) fn new(ctx: Context) -> Self {
        Io { ctx, next: 0, ended: BioList::new() }
    }

    pub(crate) fn open(&mut self, device: &Arc<dyn Device>) -> drystone_core::Result<ChannelId> {
        self.ctx.open(device)
    }

    /// Close a device that is not used any more; its channel number is not used again.
    pub(crate) fn release(&mut self, device: ChannelId) {
        self.ctx.release(device);
    }

    /// Start `bio`.
    pub(crate) fn start(&mut self, device: ChannelId, mut bio: Box<Bio>) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        bio.user_data = ticket.0;
        let mut list = BioList::new();
        list.push(bio);
        self.ctx.submit(device, &mut list);
        ticket
    }

    /// Take the ended bios from the context, without waiting.
    pub(crate) fn reap(&mut self) {
        self.ctx.reap(&mut self.ended);
    }

    /// Wait until a bio ends, a thread wakes the context, or the deadline passes.
    pub(crate) fn wait(&mut self, deadline: Option<Ns>) {
        self.ctx.wait(deadline);
    }

    /// A bio has ended and was not taken yet.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// The bio of `ticket`, if it has ended.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Box<Bio>> {
        let mut found = None;
        let mut others = BioList::new();
        while let Some(bio) = self.ended.pop() {
            match bio.user_data == ticket.0 {
                true => found = Some(bio),
                false => others.push(bio),
            }
        }
        self.ended = others;
        found
    }

    /// Wait until the bio of `ticket` ends.
    pub(crate) fn wait_for(&mut self, ticket: Ticket) -> Box<Bio> {
        loop {
            self.reap();
            if let Some(bio) = self.take(ticket) {
                return bio;
            }
            self.ctx.wait(None);
        }
    }

    /// Wait until all bios of `tickets` end. True if all succeeded.
    pub(crate) fn wait_for_all(&mut self, tickets: &[Ticket]) -> bool {
        let failed = tickets.iter().filter(|ticket| !self.wait_for(**ticket).status.is_ok());
        failed.count() == 0
    }

    /// Read `bytes` bytes, whole blocks of the device, from `sector` on.
    pub(crate) fn read(
        &mut self,
        device: ChannelId,
        sector: u64,
        bytes: usize,
    ) -> Result<IoBuf, Status> {
        let ticket = self.start(device, Bio::read(Sector(sector), IoBuf::zeroed(bytes)));
        let mut bio = self.wait_for(ticket);
        match bio.status {
            Status::Ok => Ok(bio.take_buf().unwrap_or_else(|| IoBuf::zeroed(0))),
            status => Err(status),
        }
    }

    /// Read `bytes` bytes from `sector` on; the range need not begin or end at a block of
    /// `block_bytes` bytes of the device.
    pub(crate) fn read_in_blocks(
        &mut self,
        (device, block_bytes): (ChannelId, u32),
        sector: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, Status> {
        let skipped = sector % (u64::from(block_bytes) / SECTOR_SIZE);
        let at = (skipped * SECTOR_SIZE) as usize;
        let whole = (at + bytes).next_multiple_of(block_bytes as usize);
        let read = self.read(device, sector - skipped, whole)?;
        Ok(read[at..at + bytes].to_vec())
    }

    /// As [`Io::start_write`], for the bytes `run` of an area that begins at `sector`.
    pub(crate) fn start_write_at(
        &mut self,
        device: ChannelId,
        sector: u64,
        run: &Range<usize>,
        bytes: &[u8],
    ) -> Ticket {
        self.start_write(device, sector + run.start as u64 / SECTOR_SIZE, bytes)
    }

    /// Begin a write. It is durable when it ends, as are all writes that ended before it began.
    pub(crate) fn start_write(&mut self, device: ChannelId, sector: u64, bytes: &[u8]) -> Ticket {
        debug_assert!(bytes.len().is_multiple_of(SECTOR_SIZE as usize));
        let mut bio = Bio::write(Sector(sector), IoBuf::from_slice(bytes));
        bio.flags |= BioFlags::PREFLUSH | BioFlags::FUA | BioFlags::SYNC;
        self.start(device, bio)
    }
}
