//! Each command with its right and wrong shapes.

mod random;
mod refusals;

use super::super::blk_config::BlkConfig;
use super::super::proto::Features;
use super::super::ring::SplitRing;
use super::super::ring::tests::driver::{BYTES, Buffer, DATA, Driver, GUEST, region};
use super::{BlkCommand, BlkLimits, BlkParser, BlkRange, BlkRequest, BlkStatus};
use drystone_core::buf::Segment;
use drystone_core::{Sector, Status};

const CAPACITY: u64 = 1000;
/// Where the header of a test's request lies, its status, and its data.
const HEADER: u64 = DATA;
const STATUS: u64 = DATA + 0x100;
const PAYLOAD: u64 = DATA + 0x1000;
/// A value that no status has.
const NO_STATUS: u8 = 0xee;

fn config() -> BlkConfig {
    BlkConfig {
        capacity_sectors: CAPACITY,
        seg_max: 4,
        block_bytes: 512,
        max_discard_sectors: 100,
        max_discard_segments: 3,
        max_write_zeroes_sectors: 50,
        max_write_zeroes_segments: 2,
        write_zeroes_may_unmap: true,
        ..BlkConfig::default()
    }
}

fn features() -> Features {
    Features::all() - Features::RO - Features::RING_PACKED - Features::RING_EVENT_IDX
}

/// The bytes of a header.
fn header(kind: u32, sector: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&[0xff; 4]); // reserved: ignored
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

/// A range of a discard as bytes.
fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let numbers = [sectors.to_le_bytes(), flags.to_le_bytes()].concat();
    [&sector.to_le_bytes()[..], &numbers].concat()
}

/// A queue of a device.
struct Queue {
    driver: Driver,
    ring: SplitRing,
    parser: BlkParser,
}

/// Memory of the device: its address here, and its length.
type Place = (usize, usize);

fn places(segments: &[Segment]) -> Vec<Place> {
    segments.iter().map(|segment| (segment.ptr.addr(), segment.len)).collect()
}

/// What is left of a command when the queue goes on.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Read(u64, Vec<Place>),
    Write(u64, Vec<Place>),
    Flush,
    GetId,
    Discard(Vec<BlkRange>),
    WriteZeroes(Vec<BlkRange>),
    End(BlkStatus),
}

impl Parsed {
    fn of(request: &BlkRequest<'_>) -> Self {
        match request.command {
            BlkCommand::Read { sector, segments } => Parsed::Read(sector.0, places(segments)),
            BlkCommand::Write { sector, segments } => Parsed::Write(sector.0, places(segments)),
            BlkCommand::Flush => Parsed::Flush,
            BlkCommand::GetId => Parsed::GetId,
            BlkCommand::Discard { ranges } => Parsed::Discard(ranges.to_vec()),
            BlkCommand::WriteZeroes { ranges } => Parsed::WriteZeroes(ranges.to_vec()),
            BlkCommand::End(status) => Parsed::End(status),
        }
    }
}

impl Queue {
    fn new(features: Features) -> Self {
        Self::of(Driver::new(16, features), &config())
    }

    fn of(driver: Driver, config: &BlkConfig) -> Self {
        let limits = BlkLimits::new(config, driver.features, false);
        Self::with_limits(driver, limits)
    }

    /// A device that is read-only, which the driver does not care for.
    fn read_only() -> Self {
        let limits = BlkLimits::new(&config(), features(), true);
        Self::with_limits(Driver::new(16, features()), limits)
    }

    fn with_limits(driver: Driver, limits: BlkLimits) -> Self {
        let ring = driver.ring();
        Self { parser: BlkParser::new(limits, ring.pieces_max()), driver, ring }
    }

    /// Sends a request: its header is written to [`HEADER`] before. Answers with `Ok` where the
    /// command has no other answer; returns the command, the status byte and the used length.
    fn send(&mut self, header: [u8; 16], buffers: &[Buffer]) -> (Parsed, u8, u32) {
        self.driver.write(HEADER, &header);
        self.driver.write(STATUS, &[NO_STATUS]);
        let head = self.driver.add(buffers, false).expect("room");
        let chain = self.ring.take().expect("it is whole").expect("a chain");
        let request = self.parser.parse(&chain).expect("it can be answered");
        assert_eq!(request.reply.head(), head);
        let parsed = Parsed::of(&request);
        if parsed == Parsed::GetId {
            request.write_id(&chain, b"a name of 20 letters");
        }
        let status = if let Parsed::End(status) = parsed { status } else { BlkStatus::Ok };
        let bytes = request.reply.write(status);
        self.ring.put(head, bytes);
        self.ring.publish();
        assert_eq!(self.driver.take_used(), Some((head, bytes)));
        (parsed, self.driver.read(STATUS, 1)[0], bytes)
    }

    /// Sends a request with the usual header and status; the command.
    fn command(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> Parsed {
        let mut buffers = vec![(HEADER, 16, false)];
        buffers.extend(data);
        buffers.push((STATUS, 1, true));
        self.send(header(kind, sector), &buffers).0
    }

    /// Sends a request with data that is written before; the command.
    fn with_payload(&mut self, kind: u32, payload: &[u8]) -> Parsed {
        self.driver.write(PAYLOAD, payload);
        self.command(kind, 0, &[(PAYLOAD, payload.len() as u32, false)])
    }

    /// The memory of a device at a guest address.
    fn place(&self, address: u64, len: usize) -> Place {
        let (_, memory) = self.driver.memory.regions().next().expect("a region");
        (memory.segment((address - GUEST) as usize, len).ptr.addr(), len)
    }
}

#[test]
fn a_read_fills_segments() {
    let mut queue = Queue::new(features());
    let segments = vec![queue.place(PAYLOAD + 100, 500), queue.place(PAYLOAD, 12)];
    let buffers =
        [(HEADER, 16, false), (PAYLOAD + 100, 500, true), (PAYLOAD, 12, true), (STATUS, 1, true)];
    let found = queue.send(header(0, 7), &buffers);
    assert_eq!(found, (Parsed::Read(7, segments), 0, 513));
}

#[test]
fn a_write_has_segments() {
    let mut queue = Queue::new(features());
    let segments = vec![queue.place(PAYLOAD, 1024)];
    let buffers = [(HEADER, 16, false), (PAYLOAD, 1024, false), (STATUS, 1, true)];
    let found = queue.send(header(1, CAPACITY - 2), &buffers);
    assert_eq!(found, (Parsed::Write(CAPACITY - 2, segments), 0, 1));
}

#[test]
fn the_header_may_be_spread_and_share_a_descriptor_with_data() {
    let mut queue = Queue::new(features());
    let segments = vec![queue.place(HEADER + 16, 100), queue.place(PAYLOAD, 412)];
    let buffers = [
        (HEADER, 3, false),
        (HEADER + 3, 1, false),
        (HEADER + 4, 112, false),
        (PAYLOAD, 412, false),
        (STATUS, 1, true),
    ];
    assert_eq!(queue.send(header(1, 9), &buffers).0, Parsed::Write(9, segments));
}

#[test]
fn the_status_may_be_the_end_of_data() {
    let mut queue = Queue::new(features());
    let segments = vec![queue.place(STATUS - 512, 512)];
    let buffers = [(HEADER, 16, false), (STATUS - 512, 513, true)];
    // Data that begins before the header's end is the guest's own business.
    assert_eq!(queue.send(header(0, 0), &buffers), (Parsed::Read(0, segments), 0, 513));
}

#[test]
fn a_flush_needs_no_data() {
    let mut queue = Queue::new(features());
    let found = queue.send(header(4, 0), &[(HEADER, 16, false), (STATUS, 1, true)]);
    assert_eq!(found, (Parsed::Flush, 0, 1));
    let read_only = Queue::read_only().command(4, 0, &[]);
    assert_eq!(read_only, Parsed::Flush);
}

#[test]
fn a_name_is_cut_or_padded() {
    let mut queue = Queue::new(features());
    for (room, written, used) in [(20, 20, 21), (32, 20, 20), (7, 7, 8), (0, 0, 1)] {
        queue.driver.write(PAYLOAD, &[9; 40]);
        let buffers = [(HEADER, 16, false), (PAYLOAD, room, true), (STATUS, 1, true)];
        assert_eq!(queue.send(header(8, 0), &buffers), (Parsed::GetId, 0, used));
        let found = queue.driver.read(PAYLOAD, 40);
        assert_eq!(found[..written], b"a name of 20 letters"[..written]);
        assert!(found[written..].iter().all(|byte| *byte == 9));
    }
}

#[test]
fn a_discard_has_ranges() {
    let mut queue = Queue::new(features());
    let payload = [range(5, 100, 0), range(CAPACITY, 0, 0), range(900, 100, 0)].concat();
    let found = |sector, sectors: u64| BlkRange {
        sector: Sector(sector),
        bytes: sectors << 9,
        unmap: false,
    };
    let expected = Parsed::Discard(vec![found(5, 100), found(900, 100)]);
    assert_eq!(queue.with_payload(11, &payload), expected);
    assert_eq!(queue.with_payload(11, &range(0, 0, 0)), Parsed::End(BlkStatus::Ok));
}

#[test]
fn zeroes_may_unmap_by_range() {
    let mut queue = Queue::new(features());
    let payload = [range(5, 50, 1), range(60, 1, 0)].concat();
    let found = |sector, sectors: u64, unmap| BlkRange {
        sector: Sector(sector),
        bytes: sectors << 9,
        unmap,
    };
    let expected = Parsed::WriteZeroes(vec![found(5, 50, true), found(60, 1, false)]);
    assert_eq!(queue.with_payload(13, &payload), expected);
    // A range may be spread like everything else.
    let expected = Parsed::WriteZeroes(vec![found(5, 50, true)]);
    queue.driver.write(PAYLOAD, &range(5, 50, 1));
    let data = [(PAYLOAD, 9, false), (PAYLOAD + 9, 7, false)];
    assert_eq!(queue.command(13, 0, &data), expected);
}

#[test]
fn there_may_be_more_segments_than_were_announced() {
    let driver = Driver::new(16, features());
    let more = region(GUEST + BYTES, 0x1000, 0x1000);
    let memory = driver.memory.with(more.0, more.1);
    let mut queue = Queue::of(driver.with_memory(memory), &config());
    let piece = |address| (address, 128, true);
    let end = GUEST + BYTES;
    let mut data = vec![piece(end - 64)];
    data.extend((0..7).map(|number| piece(PAYLOAD + 0x100 * number)));
    let Parsed::Read(0, segments) = queue.command(0, 0, &data) else { panic!("a read") };
    let lengths: Vec<usize> = segments.iter().map(|place| place.1).collect();
    assert_eq!(lengths, [64, 64, 128, 128, 128, 128, 128, 128, 128], "seg_max is 4");
}

#[test]
fn a_status_of_a_bio_becomes_that_of_a_request() {
    let statuses = [
        (Status::Ok, BlkStatus::Ok),
        (Status::NotSupported, BlkStatus::Unsupported),
        (Status::Medium, BlkStatus::IoError),
        (Status::NoSpace, BlkStatus::IoError),
    ];
    for (status, expected) in statuses {
        assert_eq!(BlkStatus::from(status), expected);
    }
    assert_eq!(
        [BlkStatus::Ok, BlkStatus::IoError, BlkStatus::Unsupported].map(|s| s as u8),
        [0, 1, 2]
    );
}

#[test]
fn nothing_was_written_by_a_read_that_failed() {
    let mut queue = Queue::new(features());
    queue.driver.write(HEADER, &header(0, 0));
    let buffers = [(HEADER, 16, false), (PAYLOAD, 512, true), (STATUS, 1, true)];
    queue.driver.add(&buffers, false).expect("room");
    let chain = queue.ring.take().expect("it is whole").expect("a chain");
    let reply = queue.parser.parse(&chain).expect("it can be answered").reply;
    assert_eq!(reply.write(BlkStatus::IoError), 0);
    assert_eq!(queue.driver.read(STATUS, 1), [1]);
    assert_eq!(reply.write(BlkStatus::Ok), 513);
}

/// The region of the ring has another number in the map when a lower one comes or goes.
#[test]
fn a_reply_goes_where_the_chain_was_found() {
    let lower = region(0, 0x1000, 0x1000);
    let driver = Driver::new(16, features());
    let (one, two) = (driver.memory.clone(), driver.memory.with(lower.0, lower.1));
    for (before, after) in [(one.clone(), two.clone()), (two.into(), (*one).clone())] {
        let driver = Driver::new(16, features()).with_memory((*before).clone());
        let mut queue = Queue::of(driver, &config());
        queue.driver.write(HEADER, &header(0, 0));
        queue.driver.write(STATUS, &[NO_STATUS]);
        let buffers = [(HEADER, 16, false), (PAYLOAD, 512, true), (STATUS, 1, true)];
        let head = queue.driver.add(&buffers, false).expect("room");
        let chain = queue.ring.take().expect("it is whole").expect("a chain");
        let reply = queue.parser.parse(&chain).expect("it can be answered").reply;
        queue.ring.set_memory(after.into()).expect("the ring is there");
        queue.ring.put(head, reply.write(BlkStatus::Ok));
        queue.ring.publish();
        assert_eq!(queue.driver.take_used(), Some((head, 513)));
        assert_eq!(queue.driver.read(STATUS, 1), [0]);
    }
}
