//! Entry point for fuzzers: a ring in memory of arbitrary bytes.
//!
//! The input is what the guest has: four bytes that choose features, size, base and regions, then
//! the memory, in which the descriptor table lies first, then the available ring, the used ring,
//! and all else. The memory lies at guest address 0, so that small numbers are addresses. Every
//! chain is parsed and answered. The bytes change only where the driver let the device write.

use super::blk::{BlkCommand, BlkLimits, BlkParser, BlkStatus};
use super::blk_config::BlkConfig;
use super::memory::{GuestMemory, HostMemory, Piece, within};
use super::proto::{Features, GuestAddress, Region, UserAddress, VringAddresses};
use super::ring::{Chain, DESCRIPTORS_MAX, RingSetup, SplitRing};
use std::sync::Arc;

/// Bits of the first byte.
const EVENTS: u8 = 1;
const TABLES: u8 = 2;
const READ_ONLY: u8 = 4;
/// The most bytes of memory that count.
const BYTES_MAX: usize = 16 << 10;
/// The most chains that are taken: more than any input can have with one store of the index.
const CHAINS_MAX: usize = 1 << 9;
const CAPACITY: u64 = 1 << 20;
const ID: [u8; 20] = [0x1d; 20];

/// Drives a ring with arbitrary bytes.
///
/// # Panics
/// When an invariant fails: an access outside of memory, a chain longer than it may be, a byte
/// that changes where the device may not write.
pub fn fuzz_ring(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first_chunk::<4>() else { return };
    let bytes = &bytes[..bytes.len().min(BYTES_MAX)];
    let Some(mut guest) = Guest::new(*choice, bytes) else { return };
    guest.drive();
    guest.check();
}

/// The guest's memory, the device's side of its ring, and what may have changed.
struct Guest {
    memory: Arc<GuestMemory>,
    before: Vec<u8>,
    /// The bytes that the device may have written.
    writable: Vec<bool>,
    ring: SplitRing,
    parser: BlkParser,
    used_at: usize,
    used_bytes: usize,
    size: u16,
}

fn config() -> BlkConfig {
    BlkConfig {
        capacity_sectors: CAPACITY,
        seg_max: 126,
        block_bytes: 512,
        max_discard_sectors: 1 << 16,
        max_discard_segments: 8,
        max_write_zeroes_sectors: 1 << 16,
        max_write_zeroes_segments: 8,
        ..BlkConfig::default()
    }
}

fn features(choice: u8) -> Features {
    let mut features = Features::all() - Features::RING_PACKED;
    features.set(Features::RING_EVENT_IDX, choice & EVENTS != 0);
    features.set(Features::RING_INDIRECT_DESC, choice & TABLES != 0);
    features
}

/// Memory of one region, or of two that touch, the second of which begins at `border`.
fn map(bytes: &[u8], border: usize) -> GuestMemory {
    let ranges = [(0, border), (border, bytes.len())];
    let parts = ranges.into_iter().filter(|(start, end)| start < end).map(|(start, end)| {
        let (address, length) = (start as u64, (end - start) as u64);
        // In the front end's memory there is a hole between them.
        let user = UserAddress(address * 2);
        let region = Region::new(GuestAddress(address), user, length, 0).expect("a region");
        (region, HostMemory::zeroed(end - start))
    });
    let memory = GuestMemory::new(parts);
    memory.copy_to_guest(GuestAddress(0), bytes).expect("in memory");
    memory
}

impl Guest {
    /// `None` if the ring does not fit.
    fn new([choice, shape, base_low, base_high]: [u8; 4], bytes: &[u8]) -> Option<Self> {
        let size = 1u16 << (shape & 7);
        let (table, available) = (16 * usize::from(size), 6 + 2 * usize::from(size));
        let used_at = (table + available).next_multiple_of(4);
        let used_bytes = 6 + 8 * usize::from(size);
        let ring_end = used_at + used_bytes;
        if bytes.len() <= ring_end {
            return None;
        }
        let border = ring_end + (bytes.len() - ring_end) * usize::from(shape >> 3) / 31;
        let memory = Arc::new(map(bytes, border));
        let place = |at: usize| UserAddress(at as u64);
        let (descriptors, used) = (place(0), place(used_at));
        let available = place(table);
        let addresses = VringAddresses { descriptors, available, used, log: None };
        let (base, features) = (u16::from_le_bytes([base_low, base_high]), features(choice));
        let setup = RingSetup { size, base, addresses, features };
        let ring = SplitRing::new(setup, memory.clone()).expect("the ring is in memory");
        let limits = BlkLimits::new(&config(), features, choice & READ_ONLY != 0);
        let parser = BlkParser::new(limits, ring.pieces_max());
        let (before, writable) = (bytes.to_vec(), vec![false; bytes.len()]);
        Some(Self { memory, before, writable, ring, parser, used_at, used_bytes, size })
    }

    /// Takes all chains, and answers them two by two.
    fn drive(&mut self) {
        self.ring.disable_notifications();
        let mut waiting = None;
        for _ in 0..CHAINS_MAX {
            let Some((head, bytes)) = self.take() else { break };
            if let Some((head, bytes)) = waiting.replace((head, bytes)) {
                self.ring.put(head, bytes);
                self.ring.publish();
            }
        }
        if let Some((head, bytes)) = waiting {
            self.ring.put(head, bytes);
        }
        self.ring.publish();
        self.ring.enable_notifications();
        assert!(!self.ring.publish(), "nothing is new");
        assert!(self.ring.in_flight() <= self.size);
    }

    /// Takes a chain and answers it; its head, and the length of what was written.
    fn take(&mut self) -> Option<(u16, u32)> {
        let pieces_max = self.ring.pieces_max();
        let chain = match self.ring.take() {
            Ok(chain) => chain?,
            Err(reason) => {
                assert_eq!(self.ring.take().err(), Some(reason), "it stays broken");
                return None;
            }
        };
        assert!(chain.head() < self.size);
        assert!(chain.readable().len() + chain.writable().len() <= pieces_max);
        note_writable(&chain, &mut self.writable);
        assert!((1..=DESCRIPTORS_MAX).contains(&chain.descriptors()));
        let request = match self.parser.parse(&chain) {
            Ok(request) => request,
            Err(reason) => {
                assert_eq!(chain.writable_bytes(), 0, "it cannot be answered");
                let head = chain.head();
                self.ring.refuse(head, reason);
                return None;
            }
        };
        let status = check_command(&chain, &request.command);
        if let BlkCommand::GetId = request.command {
            request.write_id(&chain, &ID);
        }
        let written = request.reply.write(status);
        assert!(written <= chain.writable_bytes());
        check_status(&chain, status);
        Some((request.reply.head(), written))
    }

    /// Bytes changed only where the driver let the device write, and in the used ring.
    fn check(&self) {
        let mut after = vec![0; self.before.len()];
        self.memory.copy_from_guest(GuestAddress(0), &mut after).expect("in memory");
        for (at, (before, after)) in self.before.iter().zip(&after).enumerate() {
            let is_used = (self.used_at..self.used_at + self.used_bytes).contains(&at);
            assert!(before == after || is_used || self.writable[at], "byte {at} changed");
        }
    }
}

/// Notes where the device writes: the last byte of a chain, and the name before it.
fn note_writable(chain: &Chain<'_>, writable: &mut [bool]) {
    let bytes = u64::from(chain.writable_bytes());
    let name = within(chain.writable(), 0..bytes.min(ID.len() as u64));
    let status = within(chain.writable(), bytes.saturating_sub(1)..bytes);
    for piece in name.chain(status) {
        let start = start_of(chain.memory(), piece);
        writable[start..start + piece.bytes() as usize].fill(true);
    }
}

/// The guest address of a piece.
fn start_of(memory: &GuestMemory, piece: Piece) -> usize {
    let place = memory.segment(piece).ptr.addr();
    let region = memory.regions().find_map(|(region, host)| {
        let start = host.segment(0, 0).ptr.addr();
        let end = start + host.bytes();
        let is_inside = start <= place && place + piece.bytes() as usize <= end;
        is_inside.then(|| region.guest().0 as usize + place - start)
    });
    region.expect("a piece lies in a region")
}

/// Checks what the parser promises; returns a status for the request.
fn check_command(chain: &Chain<'_>, command: &BlkCommand<'_>) -> BlkStatus {
    match command {
        BlkCommand::Read { sector, segments } | BlkCommand::Write { sector, segments } => {
            let bytes: u64 = segments.iter().map(|segment| segment.len as u64).sum();
            assert!(bytes > 0 && bytes.is_multiple_of(512));
            assert!(sector.0 + (bytes >> 9) <= CAPACITY);
            assert!(segments.len() <= chain.readable().len() + chain.writable().len());
            BlkStatus::Ok
        }
        BlkCommand::Discard { ranges } | BlkCommand::WriteZeroes { ranges } => {
            assert!((1..=8).contains(&ranges.len()));
            let fits = |sector: u64, bytes: u64| sector + (bytes >> 9) <= CAPACITY && bytes > 0;
            assert!(ranges.iter().all(|range| fits(range.sector.0, range.bytes)));
            BlkStatus::Unsupported
        }
        BlkCommand::Flush | BlkCommand::GetId => BlkStatus::Ok,
        BlkCommand::End(status) => *status,
    }
}

/// The last writable byte is the status.
fn check_status(chain: &Chain<'_>, status: BlkStatus) {
    let (mut found, bytes) = ([0xff], u64::from(chain.writable_bytes()));
    let last = within(chain.writable(), bytes - 1..bytes);
    assert_eq!(chain.memory().gather(last, &mut found), 1);
    assert_eq!(found, [status as u8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read of a sector from a ring with one entry, whose table is behind the ring.
    #[test]
    fn a_good_input_is_answered() {
        let mut bytes = vec![0; 1024];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &64u64.to_le_bytes());
        put(8, &[48, 0, 0, 0, 4, 0, 0, 0]); // three descriptors in a table
        put(16 + 2, &[1]); // the available index
        for (index, (address, length, flags)) in
            [(128u64, 16u32, 1u16), (400, 512, 3), (912, 1, 2)].into_iter().enumerate()
        {
            put(64 + 16 * index, &address.to_le_bytes());
            put(72 + 16 * index, &length.to_le_bytes());
            put(76 + 16 * index, &[flags as u8, 0, index as u8 + 1, 0]);
        }
        put(912, &[0xee]);
        let mut guest = Guest::new([2, 0, 0, 0], &bytes).expect("it fits");
        guest.drive();
        guest.check();
        let mut status = [0xff];
        guest.memory.copy_from_guest(GuestAddress(912), &mut status).expect("in memory");
        assert_eq!((status, guest.ring.base(), guest.ring.broken()), ([0], 1, None));
    }
}
