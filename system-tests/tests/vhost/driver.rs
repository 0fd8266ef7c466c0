//! The driver of the `virtio-driver` crate with our ring: random requests over a socket and shared
//! memory, each in a thread of its own, against a disk that is a vector of bytes.

use super::device::{Counts, Device, QUEUE_SIZE, SECTORS};
use drystone_exports::vhost::{GuestAddress, HostMemory, Region, UserAddress};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport,
    VirtioFeatureFlags, iovec,
};

/// More than the values of an index.
const REQUESTS: usize = 70_000;
/// Requests in flight: each has six descriptors at most.
const IN_FLIGHT_MAX: usize = QUEUE_SIZE as usize / 6;
/// Memory of a request.
const SLOT: usize = 8 << 10;
const SECTORS_MAX: u64 = 8;

/// Marsaglia's xorshift with shifts 13, 7, 17.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// The driver's side: its queue, its memory, and its idea of the disk.
struct Driver {
    transport: Box<VirtioBlkTransport>,
    queue: VirtioBlkQueue<'static, usize>,
    notifier: Box<dyn QueueNotifier>,
    calls: Arc<EventFd>,
    memory: Arc<HostMemory>,
    disk: Vec<u8>,
    random: Random,
    free: Vec<usize>,
    /// What the memory of each slot must hold in the end.
    expected: Vec<Vec<u8>>,
    completed: usize,
    /// Batches that were made available at once, and how many of them needed a kick.
    batches: u64,
    kicks: u64,
}

/// Maps shared memory for data, and tells the back end.
fn map(transport: &mut VirtioBlkTransport) -> Arc<HostMemory> {
    let bytes = IN_FLIGHT_MAX * SLOT;
    let file = memfd_create("data", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&file, bytes as u64).expect("room");
    let region = Region::new(GuestAddress(0), UserAddress(0), bytes as u64, 0).expect("a region");
    let memory = HostMemory::map(&file, &region).expect("a mapping");
    let address = memory.segment(0, bytes).ptr.addr();
    transport.map_mem_region(address, bytes, file.as_raw_fd(), 0).expect("a region");
    memory
}

impl Driver {
    fn connect(path: &str, features: VirtioFeatureFlags, seed: u64) -> Self {
        let of_ring = features | VirtioFeatureFlags::VERSION_1;
        let of_device = VirtioBlkFeatureFlags::SEG_MAX
            | VirtioBlkFeatureFlags::BLK_SIZE
            | VirtioBlkFeatureFlags::FLUSH
            | VirtioBlkFeatureFlags::DISCARD
            | VirtioBlkFeatureFlags::WRITE_ZEROES;
        let features = of_ring.bits() | of_device.bits();
        let transport = VhostUser::new(path, features).expect("a back end");
        let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
        assert_eq!(transport.get_features() & features, features);
        let mut queues = VirtioBlkQueue::setup_queues(&mut *transport, 1, QUEUE_SIZE).expect("one");
        let memory = map(&mut *transport);
        let mut queue = queues.remove(0);
        queue.set_used_notif_enabled(true);
        Self {
            notifier: transport.get_submission_notifier(0),
            calls: transport.get_completion_fd(0),
            transport,
            queue,
            memory,
            disk: vec![0; (SECTORS << 9) as usize],
            random: Random(seed),
            free: (0..IN_FLIGHT_MAX).collect(),
            expected: vec![Vec::new(); IN_FLIGHT_MAX],
            completed: 0,
            batches: 0,
            kicks: 0,
        }
    }

    /// The memory of a slot, cut into at most four parts.
    fn cut(&mut self, slot: usize, bytes: usize) -> Vec<iovec> {
        let (mut parts, mut done) = (Vec::new(), 0);
        while done < bytes {
            let is_last = parts.len() == 3 || self.random.below(2) == 0;
            let rest = bytes - done;
            let count = if is_last { rest } else { 1 + self.random.below(rest as u64) as usize };
            let memory = self.memory.segment(slot * SLOT + done, count);
            parts.push(iovec { iov_base: memory.ptr.cast(), iov_len: count });
            done += count;
        }
        parts
    }

    /// Sends a random request.
    fn send(&mut self, slot: usize) {
        let sectors = 1 + self.random.below(SECTORS_MAX);
        let sector = self.random.below(SECTORS - sectors + 1);
        let (offset, bytes) = (sector << 9, sectors << 9);
        let range = offset as usize..(offset + bytes) as usize;
        match self.random.below(8) {
            0..3 => self.read(slot, offset, range),
            3..6 => self.write(slot, offset, range),
            6 => self.queue.flush(slot).expect("room"),
            _ => {
                self.disk[range].fill(0);
                match self.random.below(2) {
                    0 => self.queue.discard(offset, bytes, slot).expect("room"),
                    _ => self.queue.write_zeroes(offset, bytes, true, slot).expect("room"),
                }
            }
        }
    }

    #[allow(unsafe_code, reason = "the driver takes its memory on trust")]
    fn read(&mut self, slot: usize, offset: u64, range: std::ops::Range<usize>) {
        self.memory.write(slot * SLOT, &vec![0xee; range.len()]);
        let parts = self.cut(slot, range.len());
        self.expected[slot] = self.disk[range].to_vec();
        // SAFETY: the parts are memory that stays mapped until the driver is dropped.
        let sent = unsafe { self.queue.readv(offset, parts.as_ptr(), parts.len(), slot) };
        sent.expect("room");
    }

    #[allow(unsafe_code, reason = "the driver takes its memory on trust")]
    fn write(&mut self, slot: usize, offset: u64, range: std::ops::Range<usize>) {
        let first = self.random.below(256) as u8;
        let data: Vec<u8> = (0..range.len()).map(|at| first.wrapping_add(at as u8)).collect();
        self.memory.write(slot * SLOT, &data);
        let parts = self.cut(slot, range.len());
        self.disk[range].copy_from_slice(&data);
        self.expected[slot] = data;
        // SAFETY: as for a read.
        let sent = unsafe { self.queue.writev(offset, parts.as_ptr(), parts.len(), slot) };
        sent.expect("room");
    }

    /// Takes what is completed, and compares it; true if there was something.
    fn receive(&mut self) -> bool {
        let before = self.completed;
        for completion in self.queue.completions() {
            let (slot, expected) = (completion.context, &mut self.expected[completion.context]);
            assert_eq!(completion.ret, 0);
            let mut found = vec![0; expected.len()];
            self.memory.read(slot * SLOT, &mut found);
            assert!(found == *expected, "the data differs");
            expected.clear();
            self.free.push(slot);
            self.completed += 1;
        }
        self.completed > before
    }

    /// Waits for a call. One that does not come is a failure.
    fn wait(&self) {
        let mut polled = [PollFd::new(&*self.calls, PollFlags::IN)];
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut polled, Some(&limit)), Ok(1), "no call came");
        self.calls.read().expect("an eventfd");
    }

    /// Makes up to so many requests available; returns how many, and whether they need a kick.
    fn send_batch(&mut self, most: usize) -> (usize, bool) {
        let room = self.free.len().min(most);
        let count = self.random.below(room as u64 + 1) as usize;
        for _ in 0..count {
            let slot = self.free.pop().expect("a free slot");
            self.send(slot);
        }
        let needs_kick = count > 0 && self.queue.avail_notif_needed();
        self.batches += u64::from(count > 0);
        self.kicks += u64::from(needs_kick);
        (count, needs_kick)
    }

    /// Sends requests, two batches before a kick: a device that sleeps at the first one sleeps at
    /// the second one too, and with events needs no kick for that.
    fn run(&mut self) {
        let mut sent = 0;
        while self.completed < REQUESTS {
            let (first, kick_first) = self.send_batch(REQUESTS - sent);
            let (second, kick_second) = self.send_batch(REQUESTS - sent - first);
            sent += first + second;
            if kick_first || kick_second {
                self.notifier.notify().expect("an eventfd");
            }
            if !self.receive() && sent > self.completed {
                self.wait();
            }
        }
    }
}

/// What both sides counted.
#[derive(Debug)]
struct Run {
    batches: u64,
    /// Batches that needed a kick.
    kicks: u64,
    device: Counts,
}

/// Runs requests with these features of the ring.
fn run(features: VirtioFeatureFlags, seed: u64) -> Run {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let device = std::thread::spawn(move || {
        let (socket, _) = listener.accept().expect("a front end");
        Device::new(socket).serve()
    });
    let mut driver = Driver::connect(path.to_str().expect("a path"), features, seed);
    driver.run();
    let Driver { transport, queue, batches, kicks, .. } = driver;
    drop((queue, transport));
    let device = device.join().expect("the device ends");
    let run = Run { batches, kicks, device };
    assert_eq!(run.device.requests, REQUESTS as u64);
    assert!(run.device.kicks <= run.kicks, "{run:?}");
    run
}

#[test]
fn random_requests_with_flags() {
    let run = run(VirtioFeatureFlags::empty(), 0x0d_57);
    assert_eq!(run.device.calls, run.device.publishes, "each time, with flags: {run:?}");
}

#[test]
fn random_requests_with_events() {
    let run = run(VirtioFeatureFlags::RING_EVENT_IDX, 0x0d_58);
    assert!(run.kicks < run.batches, "a second batch needs no kick: {run:?}");
    assert!(run.device.calls < run.device.publishes, "nor one call for each: {run:?}");
}
