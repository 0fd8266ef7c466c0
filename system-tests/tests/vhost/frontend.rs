//! The vhost-user session with a front end that others wrote, that of the `vhost` crate: every
//! message that both know goes over a socket, with its descriptors.

#![forbid(unsafe_code)]

use super::socket;
use drystone_exports::vhost::proto::{DESCRIPTORS_MAX, InflightReply, LogArea, MappedRegion};
use drystone_exports::vhost::{
    Action, BlkConfig, Features, Malformed, Offer, Parser, ProtocolFeatures, QueueStart, Session,
    Step,
};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

const QUEUES: u16 = 2;
const PAGE: u64 = 4096;

fn config() -> BlkConfig {
    BlkConfig { capacity_sectors: 1 << 21, queues: QUEUES, ..BlkConfig::default() }
}

/// The back end: it carries out what a test can see, and notes the rest.
struct BackEnd {
    socket: UnixStream,
    session: Session<OwnedFd>,
    queue: Option<QueueStart<OwnedFd>>,
    notes: Vec<String>,
}

impl BackEnd {
    /// Serves the socket in a thread until the front end closes it or goes wrong; the thread
    /// returns the notes.
    fn start(socket: UnixStream) -> JoinHandle<Vec<String>> {
        let offer = Offer::new(Features::all(), ProtocolFeatures::all(), QUEUES, 1024);
        let (session, queue, notes) = (Session::new(offer), None, Vec::new());
        std::thread::spawn(move || BackEnd { socket, session, queue, notes }.serve())
    }

    fn serve(mut self) -> Vec<String> {
        let mut parser = Parser::new();
        loop {
            match self.serve_read(&mut parser) {
                Ok(true) => {}
                Ok(false) => return self.notes,
                Err(reason) => {
                    self.notes.push(reason.to_string());
                    return self.notes;
                }
            }
        }
    }

    /// Reads once, and serves the message if it is complete. False when the front end has closed.
    fn serve_read(&mut self, parser: &mut Parser<OwnedFd>) -> Result<bool, Malformed> {
        let (bytes, descriptors) = socket::receive(&self.socket, parser.wanted_bytes())?;
        if bytes.is_empty() {
            assert!(parser.is_idle(), "the front end closed within a message");
            return Ok(false);
        }
        if let Some(frame) = parser.receive(&bytes, descriptors)? {
            let step = self.session.receive(frame, &config().to_bytes());
            self.take(step);
        }
        Ok(true)
    }

    fn take(&mut self, step: Step<OwnedFd>) {
        match step {
            Step::Done => {}
            Step::Reply(reply) => socket::send(&self.socket, reply),
            Step::Act(action) => {
                let step = self.carry_out(action);
                self.take(step);
            }
            Step::Refused { reason, reply } => {
                self.notes.push(reason.to_string());
                socket::send(&self.socket, reply);
            }
            Step::Close(reason) => panic!("{reason}"),
        }
    }

    fn carry_out(&mut self, action: Action<OwnedFd>) -> Step<OwnedFd> {
        let note = match action {
            Action::StartQueue(start) => {
                let note = noted_start(&start);
                self.queue = Some(*start);
                note
            }
            Action::StopQueue(queue) => return self.stop(queue.number()),
            Action::MakeInflight { shape, packed } => {
                self.notes.push(format!("make {shape}, packed {packed}"));
                let bytes = shape.bytes(packed);
                let file = memory(bytes);
                return self.session.inflight_made(InflightReply { bytes, offset: 0, file });
            }
            Action::SetInflight { inflight, file } => {
                format!("inflight {} {}, file {}", inflight.bytes, inflight.queues, size(&file))
            }
            Action::ReplaceMemory(regions) => {
                let regions: Vec<String> = regions.iter().map(noted_region).collect();
                format!("memory {}", regions.join("; "))
            }
            Action::AddRegion(region) => format!("add {}", noted_region(&region)),
            Action::RemoveRegion(region) => format!("remove {region}"),
            Action::SetLog { log: LogArea { bytes, offset }, file } => {
                format!("log {bytes} {offset}, file {}", size(&file))
            }
            Action::SetCall { queue, call } => format!("call {queue} {}", call.is_some()),
            Action::SetBackendChannel(socket) => {
                rustix::io::write(&socket, b"hello").expect("the channel is a socket");
                "channel".to_owned()
            }
            action => format!("{action:?}"),
        };
        self.notes.push(note);
        self.session.action_done()
    }

    /// Stops the queue: its base is what was written to its kick descriptor, which goes to its call
    /// descriptor, doubled.
    fn stop(&mut self, queue: u16) -> Step<OwnedFd> {
        let start = self.queue.take().expect("the queue runs");
        assert_eq!(start.queue.number(), queue);
        let mut kicks = [0; 8];
        rustix::io::read(&start.kick, &mut kicks).expect("an eventfd");
        let kicks = u64::from_ne_bytes(kicks);
        let call = start.call.expect("a call descriptor");
        rustix::io::write(&*call, &(2 * kicks).to_ne_bytes()).expect("an eventfd");
        self.session.queue_stopped(kicks as u32)
    }
}

fn noted_start(start: &QueueStart<OwnedFd>) -> String {
    let QueueStart { queue, size, base, addresses, enabled, .. } = start;
    let places = [addresses.descriptors, addresses.available, addresses.used];
    let [descriptors, available, used] = places.map(|address| address.0);
    let log = addresses.log.map(|address| address.0);
    format!(
        "start {queue}: {size} from {base}, {descriptors:#x} {available:#x} {used:#x} {log:?}, \
         enabled {enabled}"
    )
}

fn noted_region(mapped: &MappedRegion<OwnedFd>) -> String {
    let MappedRegion { region, file } = mapped;
    format!("{region}, offset {}, file {}", region.file_offset(), size(file))
}

fn size(file: &OwnedFd) -> i64 {
    fstat(file).expect("a file").st_size
}

fn memory(bytes: u64) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&file, bytes).expect("room");
    file
}

fn region(file: &OwnedFd, guest: u64, user: u64, offset: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest,
        memory_size: 4 * PAGE,
        userspace_addr: user,
        mmap_offset: offset,
        mmap_handle: file.as_raw_fd(),
    }
}

fn ring(flags: u32) -> VringConfigData {
    VringConfigData {
        queue_max_size: 1024,
        queue_size: 128,
        flags,
        desc_table_addr: 0x1_0000,
        used_ring_addr: 0x1_2000,
        avail_ring_addr: 0x1_1000,
        log_addr: (flags != 0).then_some(0x2000),
    }
}

/// A front end that asks for replies, and its back end.
fn connect() -> (Frontend, JoinHandle<Vec<String>>) {
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let front_end = Frontend::from_stream(ours, QUEUES.into());
    front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    (front_end, BackEnd::start(theirs))
}

/// The same with all features that both have chosen, but for packed rings.
fn negotiated() -> (Frontend, JoinHandle<Vec<String>>) {
    let (mut front_end, back_end) = connect();
    let features = front_end.get_features().expect("features");
    assert_eq!(features, Features::all().bits());
    front_end.set_owner().expect("an owner");
    let known = front_end.get_protocol_features().expect("protocol features");
    front_end.set_protocol_features(known).expect("a choice");
    let left_out = Features::RING_PACKED | Features::LOG_ALL;
    front_end.set_features(features & !left_out.bits()).expect("a choice");
    (front_end, back_end)
}

#[test]
fn features_queues_and_configuration() {
    let (mut front_end, back_end) = negotiated();
    let known = front_end.get_protocol_features().expect("protocol features");
    assert!(known.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD));
    assert_eq!(known.bits(), ProtocolFeatures::all().bits());
    assert_eq!(front_end.get_queue_num().expect("a number"), u64::from(QUEUES));
    assert_eq!(front_end.get_max_mem_slots().expect("a number"), 509);
    let flags = VhostUserConfigFlags::WRITABLE;
    let (_, space) = front_end.get_config(0, 60, flags, &[0; 60]).expect("a configuration space");
    assert_eq!(space, config().to_bytes());
    front_end.set_config(32, flags, &[1]).expect("a cache");
    front_end.set_config(0, flags, &[1]).expect_err("the capacity cannot be written");
    front_end.reset_owner().expect("a reset");
    front_end.reset_device().expect("a reset");
    drop(front_end);
    let refused = "SET_CONFIG writes 1 bytes at 0 of the configuration space: only the byte \
                   writeback at 32 may be written";
    assert_eq!(
        back_end.join().expect("no panic"),
        ["SetWriteback(true)", refused, "Reset", "Reset"]
    );
}

#[test]
fn memory_as_a_table_and_by_regions() {
    let (mut front_end, back_end) = negotiated();
    let (one, two) = (memory(8 * PAGE), memory(9 * PAGE));
    let regions = [region(&one, 0, 0x1_0000, 0), region(&one, 0x4000, 0x2_0000, 4 * PAGE)];
    front_end.set_mem_table(&regions).expect("a table");
    let added = region(&two, 1 << 32, 0x3_0000, PAGE);
    front_end.add_mem_region(&added).expect("one more");
    front_end.add_mem_region(&added).expect_err("twice");
    front_end.remove_mem_region(&added).expect("one less");
    front_end.remove_mem_region(&added).expect_err("twice");
    drop(front_end);
    let expected = [
        "memory 0x4000 bytes at guest 0x0, user 0x10000, offset 0, file 32768; 0x4000 bytes at \
         guest 0x4000, user 0x20000, offset 16384, file 32768",
        "add 0x4000 bytes at guest 0x100000000, user 0x30000, offset 4096, file 36864",
        "ADD_MEM_REG: the region of 0x4000 bytes at guest 0x100000000, user 0x30000 shares guest \
         addresses with that of 0x4000 bytes at guest 0x100000000, user 0x30000",
        "remove 0x4000 bytes at guest 0x100000000, user 0x30000",
        "REM_MEM_REG: no region has 0x4000 bytes at guest 0x100000000, user 0x30000",
    ];
    assert_eq!(back_end.join().expect("no panic"), expected);
}

#[test]
fn a_table_of_many_regions() {
    let (front_end, back_end) = negotiated();
    let files: Vec<OwnedFd> = (1..=12).map(|pages| memory((4 + pages) * PAGE)).collect();
    let entries = files.iter().zip(0..);
    let place = |slot: u64| (slot * 4 * PAGE, (1 + slot) << 20);
    let regions: Vec<_> = entries
        .map(|(file, slot)| region(file, place(slot).0, place(slot).1, (1 + slot) * PAGE))
        .collect();
    front_end.set_mem_table(&regions).expect("a table");
    drop(front_end);
    let noted = (0..12).map(|slot| {
        let (guest, user) = place(slot);
        let (offset, bytes) = ((1 + slot) * PAGE, (5 + slot) * PAGE);
        format!("0x4000 bytes at guest {guest:#x}, user {user:#x}, offset {offset}, file {bytes}")
    });
    let noted = noted.collect::<Vec<String>>().join("; ");
    assert_eq!(back_end.join().expect("no panic"), [format!("memory {noted}")]);
}

#[test]
fn more_descriptors_than_a_message_may_have() {
    // The room for control messages is rounded up, so one more might still fit.
    const SENT: usize = DESCRIPTORS_MAX + 16;
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let back_end = BackEnd::start(theirs);
    let files = [ours.as_fd(); SENT];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let header = [3, 1, 0].map(u32::to_le_bytes).concat();
    let sent = sendmsg(&ours, &[IoSlice::new(&header)], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(header.len()));
    let lost = "descriptors of a message are lost: more came than 32, or the process has no room \
                for them";
    assert_eq!(back_end.join().expect("no panic"), [lost]);
    assert_eq!(std::io::Read::read(&mut &ours, &mut [0]).expect("an end"), 0, "it was closed");
}

#[test]
fn a_queue_from_its_size_to_its_end() {
    let (mut front_end, back_end) = negotiated();
    let guest = memory(4 * PAGE);
    let eventfd = || EventFd::new(0).expect("an eventfd");
    let (kick, call, err) = (eventfd(), eventfd(), eventfd());
    front_end.set_vring_call(1, &call).expect("a call descriptor");
    front_end.set_mem_table(&[region(&guest, 0, 0x1_0000, 0)]).expect("memory");
    front_end.set_vring_num(1, 0).expect_err("no entries");
    front_end.set_vring_num(1, 128).expect("a size");
    front_end.set_vring_base(1, 7).expect("a base");
    front_end.set_vring_addr(1, &ring(0)).expect("addresses");
    front_end.set_vring_err(1, &err).expect("an error descriptor");
    front_end.set_vring_kick(1, &kick).expect("a start");
    front_end.set_vring_enable(1, true).expect("enabled");
    front_end.set_vring_call(1, &call).expect("another call descriptor");
    front_end.set_vring_addr(1, &ring(1)).expect("a log");
    kick.write(21).expect("a kick");
    assert_eq!(front_end.get_vring_base(1).expect("a stop"), 21);
    assert_eq!(call.read().expect("a call"), 42);
    assert_eq!(front_end.get_vring_base(1).expect("it has stopped"), 21);
    drop(front_end);
    let expected = [
        "memory 0x4000 bytes at guest 0x0, user 0x10000, offset 0, file 16384",
        "SET_VRING_NUM gives queue 1 0 entries: 1 to 1024 are possible",
        "start 1: 128 from 7, 0x10000 0x11000 0x12000 None, enabled false",
        "EnableQueue { queue: QueueIndex(1), enabled: true }",
        "call 1 true",
        "SetRingLog { queue: QueueIndex(1), log: Some(GuestAddress(8192)) }",
    ];
    assert_eq!(back_end.join().expect("no panic"), expected);
}

#[test]
fn areas_and_the_channel_of_the_back_end() {
    let (mut front_end, back_end) = negotiated();
    let asked = VhostUserInflight::new(0, 0, 2, 128);
    let (region, file) = front_end.get_inflight_fd(&asked).expect("a region");
    assert_eq!((region.mmap_size, region.num_queues, region.queue_size), (4224, 2, 128));
    assert_eq!(file.metadata().expect("a file").len(), 4224);
    front_end.set_inflight_fd(&region, file.as_raw_fd()).expect("the same region");
    let three = VhostUserInflight::new(0, 0, 3, 128);
    assert!(front_end.get_inflight_fd(&three).is_err(), "three queues");
    let log = memory(2 * PAGE);
    let area =
        VhostUserDirtyLogRegion { mmap_size: PAGE, mmap_offset: 64, mmap_handle: log.as_raw_fd() };
    front_end.set_log_base(0, Some(area)).expect("a log");
    let (kept, given) = UnixStream::pair().expect("two sockets");
    front_end.set_log_fd(given.as_raw_fd()).expect("a descriptor for the log");
    drop(given);
    kept.set_nonblocking(true).expect("a socket");
    assert_eq!(std::io::Read::read(&mut &kept, &mut [0]).expect("no holder is left"), 0);
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    front_end.set_backend_request_fd(&theirs).expect("a channel");
    let mut bytes = [0; 5];
    std::io::Read::read_exact(&mut &ours, &mut bytes).expect("a message");
    assert_eq!(&bytes, b"hello");
    drop(front_end);
    let expected = [
        "make 2 queues of 128 entries, packed false",
        "inflight 4224 2, file 4224",
        "GET_INFLIGHT_FD is for 3 queues of 128 entries: 1 to 2 queues of 1 to 1024 entries are \
         possible",
        "log 4096 64, file 8192",
        "channel",
    ];
    assert_eq!(back_end.join().expect("no panic"), expected);
}
