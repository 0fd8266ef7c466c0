//! Random requests of random shapes, against a disk that is a vector of bytes.
//!
//! Readable bytes (header, data) and writable bytes (data, status) are each a stream that is cut
//! anywhere. The driver computes on a disk of its own what each request must bring; the device
//! carries the parsed commands out on another one.

use super::super::ID_BYTES;
use super::*;
use drystone_core::{Bio, Op};

/// Rounds of each choice of features, up to [`BATCH`] requests each.
const ROUNDS: usize = if cfg!(miri) { 20 } else { 1500 };
const BATCH: u64 = 5;
const SIZE: u16 = 16;
const SECTORS: u64 = 64;
/// The most sectors of a read or write.
const SECTORS_MAX: u64 = 8;
/// Memory for each request of a batch.
const SLOT: u64 = 0x4000;
/// So that both indices wrap soon.
const BASE: u16 = 0xff00;
const NAME: [u8; ID_BYTES] = *b"a name of 20 letters";

/// Marsaglia's xorshift with shifts 13, 7, 17.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn flip(&mut self) -> bool {
        self.below(2) == 0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let first = self.below(256) as u8;
        (0..count).map(|index| first.wrapping_add(index as u8 ^ (index >> 8) as u8)).collect()
    }
}

/// What a driver sends and expects.
struct Sent {
    head: u16,
    status: u8,
    /// The first writable bytes.
    data: Vec<u8>,
    /// Where the writable bytes are.
    writable: Vec<(u64, u32)>,
}

/// A disk as a vector.
struct Disk(Vec<u8>);

impl Disk {
    fn range(&mut self, sector: u64, bytes: u64) -> &mut [u8] {
        &mut self.0[(sector << 9) as usize..((sector << 9) + bytes) as usize]
    }
}

/// A request before it has a shape: type, sector, data that it brings, room for data.
type Plain = (u32, u64, Vec<u8>, usize);

/// The driver and its idea of the disk.
struct Side {
    queue: Queue,
    random: Random,
    disk: Disk,
    in_flight: Vec<Sent>,
}

impl Side {
    /// A request, with the status and data that it must bring.
    fn choose(&mut self) -> (Plain, u8, Vec<u8>) {
        let (sector, sectors) =
            (self.random.below(SECTORS + 2), 1 + self.random.below(SECTORS_MAX));
        let (bytes, fits) = (sectors << 9, sector + sectors <= SECTORS);
        let failed = |plain| (plain, 1, vec![]);
        match self.random.below(8) {
            0..3 if !fits => failed((0, sector, vec![], bytes as usize)),
            0..3 => {
                let data = self.disk.range(sector, bytes).to_vec();
                ((0, sector, vec![], bytes as usize), 0, data)
            }
            3..5 => {
                let data = self.random.bytes(bytes as usize);
                if !fits {
                    return failed((1, sector, data, 0));
                }
                self.disk.range(sector, bytes).copy_from_slice(&data);
                ((1, sector, data, 0), 0, vec![])
            }
            5 => ((4, sector, vec![], 0), 0, vec![]),
            6 => ((8, sector, vec![], ID_BYTES), 0, NAME.to_vec()),
            _ => self.choose_zeroes(fits, sector, sectors),
        }
    }

    /// Zeroes or a discard, which zeroes on these disks too, by one or two ranges.
    fn choose_zeroes(&mut self, fits: bool, sector: u64, sectors: u64) -> (Plain, u8, Vec<u8>) {
        let kind = if self.random.flip() { 11 } else { 13 };
        let first = range(0, 1, 0);
        let second = range(sector, sectors as u32, 0);
        let plain = (kind, 0, [first, second].concat(), 0);
        if !fits {
            return (plain, 1, vec![]);
        }
        self.disk.range(0, 512).fill(0);
        self.disk.range(sector, sectors << 9).fill(0);
        (plain, 0, vec![])
    }

    /// Cuts a stream of bytes into buffers, from `place` on with gaps.
    fn cut(&mut self, mut bytes: u64, place: &mut u64) -> Vec<(u64, u32)> {
        let mut buffers = Vec::new();
        while bytes > 0 {
            let is_last = buffers.len() == 6 || self.random.below(4) == 0;
            let count = if is_last { bytes } else { 1 + self.random.below(bytes) };
            *place += self.random.below(40);
            buffers.push((*place, count as u32));
            *place += count;
            bytes -= count;
        }
        buffers
    }

    /// Sends a request in a random shape. The ring may have no room.
    fn send(&mut self, slot: u64) {
        let disk = self.disk.0.clone();
        let ((kind, sector, brings, room), status, data) = self.choose();
        let stream = [&header(kind, sector)[..], &brings].concat();
        let mut place = DATA + slot * SLOT;
        let readable = self.cut(stream.len() as u64, &mut place);
        let writable = self.cut(room as u64 + 1, &mut place);
        let mut sent = 0;
        for (address, bytes) in &readable {
            self.queue.driver.write(*address, &stream[sent..sent + *bytes as usize]);
            sent += *bytes as usize;
        }
        let buffers = readable.iter().map(|(address, bytes)| (*address, *bytes, false));
        let room = writable.iter().map(|(address, bytes)| (*address, *bytes, true));
        let buffers: Vec<Buffer> = buffers.chain(room).collect();
        let may = self.queue.driver.features.contains(Features::RING_INDIRECT_DESC);
        let indirect = may && self.random.flip();
        match self.queue.driver.add(&buffers, indirect) {
            Some(head) => self.in_flight.push(Sent { head, status, data, writable }),
            None => self.disk.0 = disk,
        }
    }

    /// Takes what the device used, and compares it.
    fn receive(&mut self) {
        while let Some((head, bytes)) = self.queue.driver.take_used() {
            let index = self.in_flight.iter().position(|sent| sent.head == head);
            let sent = self.in_flight.remove(index.expect("a request in flight"));
            let mut found = Vec::new();
            for (address, bytes) in sent.writable {
                found.extend(self.queue.driver.read(address, bytes as usize));
            }
            assert_eq!(found.pop(), Some(sent.status));
            let before = found.len();
            found.truncate(sent.data.len());
            assert!(found == sent.data, "the data differs");
            let all = sent.data.len() == before;
            assert_eq!(bytes as usize, sent.data.len() + usize::from(all));
        }
    }
}

/// Takes all requests and carries them out; puts them back in a random order.
fn carry_out(queue: &mut Queue, disk: &mut Disk, random: &mut Random) -> bool {
    let mut done = Vec::new();
    while let Some(chain) = queue.ring.take().expect("it is whole") {
        let request = queue.parser.parse(&chain).expect("it can be answered");
        let status = carry_out_one(&request, disk);
        if let BlkCommand::GetId = request.command {
            request.write_id(&chain, &NAME);
        }
        done.push((chain.head(), request.reply.write(status)));
    }
    while !done.is_empty() {
        let (head, bytes) = done.swap_remove(random.below(done.len() as u64) as usize);
        queue.ring.put(head, bytes);
    }
    queue.ring.publish()
}

fn carry_out_one(request: &BlkRequest<'_>, disk: &mut Disk) -> BlkStatus {
    match request.command {
        BlkCommand::Read { sector, segments } => {
            let mut bio = bio(Op::Read, sector, segments);
            let bytes = bio.bytes;
            bio.fill_data_from(disk.range(sector.0, bytes));
        }
        BlkCommand::Write { sector, segments } => {
            let bio = bio(Op::Write, sector, segments);
            bio.copy_data_to(disk.range(sector.0, bio.bytes));
        }
        BlkCommand::Discard { ranges } | BlkCommand::WriteZeroes { ranges } => {
            for range in ranges {
                disk.range(range.sector.0, range.bytes).fill(0);
            }
        }
        BlkCommand::Flush | BlkCommand::GetId => {}
        BlkCommand::End(status) => return status,
    }
    BlkStatus::Ok
}

#[allow(unsafe_code, reason = "a bio takes the memory of its segments on trust")]
fn bio(op: Op, sector: Sector, segments: &[Segment]) -> Box<Bio> {
    // SAFETY: the memory outlives the bio, which ends in its caller.
    unsafe { Bio::from_raw_segments(op, sector, segments) }
}

fn run(features: Features, seed: u64) {
    let config = BlkConfig { capacity_sectors: SECTORS, seg_max: 8, ..config() };
    let queue = Queue::of(Driver::from_base(SIZE, features, BASE), &config);
    let (random, disk) = (Random(seed), Disk(vec![0; (SECTORS << 9) as usize]));
    let mut side = Side { queue, random, disk, in_flight: Vec::new() };
    let mut device = Disk(vec![0; (SECTORS << 9) as usize]);
    let mut order = Random(seed ^ 0x5555);
    for _ in 0..ROUNDS {
        let is_asleep = side.random.flip();
        if is_asleep {
            assert!(!side.queue.ring.enable_notifications());
        }
        let before = side.queue.driver.available();
        for slot in 0..1 + side.random.below(BATCH) {
            side.send(slot);
        }
        let is_new = side.queue.driver.available() != before;
        assert!(!is_asleep || side.queue.driver.must_kick(before) == is_new);
        assert_eq!(side.queue.ring.enable_notifications(), is_new);
        side.queue.driver.set_used_event(side.queue.driver.used_index());
        assert_eq!(carry_out(&mut side.queue, &mut device, &mut order), is_new);
        side.receive();
        assert!(side.in_flight.is_empty(), "a request has no answer");
        assert!(side.disk.0 == device.0, "the disks differ");
    }
    assert!(side.queue.ring.base() < BASE || cfg!(miri), "the indices wrapped");
}

#[test]
fn random_requests_with_descriptors_of_the_ring() {
    run(features() - Features::RING_INDIRECT_DESC, 0xd5_70e5);
}

#[test]
fn random_requests_with_events() {
    run((features() | Features::RING_EVENT_IDX) - Features::RING_INDIRECT_DESC, 0xd5_70e6);
}

#[test]
fn random_requests_with_tables() {
    run(features(), 0xd5_70e7);
}

#[test]
fn random_requests_with_tables_and_events() {
    run(features() | Features::RING_EVENT_IDX, 0xd5_70e8);
}
