//! The cost of a request in a ring, in heap allocations, which an allocator counts: none.

use drystone_exports::vhost::blk::BlkLimits;
use drystone_exports::vhost::proto::VringAddresses;
use drystone_exports::vhost::{
    BlkCommand, BlkConfig, BlkParser, BlkStatus, Features, GuestAddress, GuestMemory, HostMemory,
    Region, RingSetup, SplitRing, UserAddress,
};
use drystone_testkit::alloc::CountingAllocator;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const BYTES: u64 = 1 << 16;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const TABLE: u64 = 0x3000;
const HEADER: u64 = 0x4000;
const DATA: u64 = 0x8000;
const SIZE: u16 = 4;
/// The features of a ring with tables and events.
const FEATURES: Features = Features::RING_INDIRECT_DESC.union(Features::RING_EVENT_IDX);

fn memory() -> GuestMemory {
    let place = (GuestAddress(0), UserAddress(0));
    let region = Region::new(place.0, place.1, BYTES, 0).expect("a region");
    GuestMemory::new([(region, HostMemory::zeroed(BYTES as usize))])
}

fn write(memory: &GuestMemory, address: u64, bytes: &[u8]) {
    memory.copy_to_guest(GuestAddress(address), bytes).expect("in memory");
}

/// Writes a descriptor: address, length, flags, next.
fn describe(memory: &GuestMemory, place: u64, fields: (u64, u32, u16, u16)) {
    let numbers = [fields.2.to_le_bytes(), fields.3.to_le_bytes()].concat();
    write(
        memory,
        place,
        &[&fields.0.to_le_bytes()[..], &fields.1.to_le_bytes(), &numbers].concat(),
    );
}

/// Puts a request of each kind into the table: a read, a write, a discard.
fn prepare(memory: &GuestMemory) {
    let requests: [(u32, u32, u16); 3] = [(0, 512, 2), (1, 512, 0), (11, 16, 0)];
    for (index, (kind, bytes, flags)) in requests.into_iter().enumerate() {
        let (table, index) = (TABLE + 0x100 * index as u64, index as u64);
        let header = HEADER + 0x20 * index;
        write(memory, header, &kind.to_le_bytes());
        describe(memory, table, (header, 16, 1, 1));
        describe(memory, table + 16, (DATA, bytes, 1 | flags, 2));
        describe(memory, table + 32, (header + 16, 1, 2, 0));
        describe(memory, 16 * index, (table, 48, 4, 0));
        write(memory, AVAILABLE + 4 + 2 * index, &(index as u16).to_le_bytes());
    }
    // The fourth entry is the first again.
    write(memory, AVAILABLE + 4 + 6, &0u16.to_le_bytes());
    write(memory, DATA, &[0; 8]);
    write(memory, DATA + 8, &[1, 0, 0, 0, 0, 0, 0, 0]);
}

/// Makes chains up to `index` available, takes them, and puts them back one by one.
fn round(ring: &mut SplitRing, parser: &mut BlkParser, memory: &GuestMemory, index: u16) {
    write(memory, AVAILABLE + 2, &index.to_le_bytes());
    ring.disable_notifications();
    let chain = ring.take().expect("it is whole").expect("a chain");
    let request = parser.parse(&chain).expect("it can be answered");
    assert!(!matches!(request.command, BlkCommand::End(_)), "{:?}", request.command);
    let (head, bytes) = (chain.head(), request.reply.write(BlkStatus::Ok));
    ring.put(head, bytes);
    ring.publish();
    assert!(!ring.enable_notifications());
}

#[test]
fn a_request_allocates_nothing() {
    let memory = Arc::new(memory());
    prepare(&memory);
    let [descriptors, available, used] = [0, AVAILABLE, USED].map(UserAddress);
    let addresses = VringAddresses { descriptors, available, used, log: None };
    let setup = RingSetup { size: SIZE, base: 0, addresses, features: FEATURES };
    let mut ring = SplitRing::new(setup, memory.clone()).expect("a ring");
    let config = BlkConfig {
        capacity_sectors: 8,
        max_discard_sectors: 8,
        max_discard_segments: 1,
        ..BlkConfig::default()
    };
    let limits = BlkLimits::new(&config, Features::DISCARD, false);
    let mut parser = BlkParser::new(limits, ring.pieces_max());
    let before = ALLOCATOR.allocations();
    for index in 1..=1000 {
        round(&mut ring, &mut parser, &memory, index);
    }
    assert_eq!(ALLOCATOR.allocations(), before);
}
