//! A block device in the memory of the test, behind the session, ring and parser of our back end.

use super::socket;
use drystone_core::buf::Segment;
use drystone_core::{Bio, Op, Sector};
use drystone_exports::vhost::blk::BlkLimits;
use drystone_exports::vhost::{
    Action, BlkCommand, BlkConfig, BlkParser, BlkRequest, BlkStatus, Features, GuestMemory,
    HostMemory, Offer, Parser, ProtocolFeatures, QueueStart, RingSetup, Session, SplitRing, Step,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Sectors of the device.
pub const SECTORS: u64 = 256;
/// Entries of its queue.
pub const QUEUE_SIZE: u16 = 64;

/// What the device did, in the end.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Kicks of the driver: several may be one.
    pub kicks: u64,
    /// How often used elements were published.
    pub publishes: u64,
    /// How often the driver wanted a call for that.
    pub calls: u64,
}

fn config() -> BlkConfig {
    BlkConfig {
        capacity_sectors: SECTORS,
        seg_max: 8,
        block_bytes: 512,
        queues: 1,
        max_discard_sectors: 64,
        max_discard_segments: 1,
        max_write_zeroes_sectors: 64,
        max_write_zeroes_segments: 1,
        ..BlkConfig::default()
    }
}

/// A queue that runs.
struct Queue {
    start: QueueStart<OwnedFd>,
    ring: SplitRing,
    parser: BlkParser,
}

/// The device and its front end's socket.
pub struct Device {
    socket: UnixStream,
    parser: Parser<OwnedFd>,
    session: Session<OwnedFd>,
    memory: Arc<GuestMemory>,
    queue: Option<Queue>,
    disk: Vec<u8>,
    counts: Counts,
}

impl Device {
    /// A device of zeroes.
    pub fn new(socket: UnixStream) -> Self {
        let features = Features::all() - Features::RING_PACKED - Features::RO;
        let offer = Offer::new(features, ProtocolFeatures::all(), 1, QUEUE_SIZE);
        Self {
            socket,
            parser: Parser::new(),
            session: Session::new(offer),
            memory: Arc::default(),
            queue: None,
            disk: vec![0; (SECTORS << 9) as usize],
            counts: Counts::default(),
        }
    }

    /// Serves socket and queue until the front end closes the socket.
    pub fn serve(mut self) -> Counts {
        loop {
            let (message, kick) = self.wait();
            if kick {
                self.serve_queue();
            }
            if message && !self.serve_message() {
                return self.counts;
            }
        }
    }

    /// Waits for a message or a kick.
    fn wait(&self) -> (bool, bool) {
        let mut polled = vec![PollFd::new(&self.socket, PollFlags::IN)];
        let kick = self.queue.as_ref().map(|queue| &queue.start.kick);
        polled.extend(kick.map(|kick| PollFd::new(kick, PollFlags::IN)));
        poll(&mut polled, None).expect("a poll");
        let mut news = polled.iter().map(|polled| !polled.revents().is_empty());
        (news.next().unwrap_or(false), news.next().unwrap_or(false))
    }

    /// Serves a piece of a message; false at the end.
    fn serve_message(&mut self) -> bool {
        let received = socket::receive(&self.socket, self.parser.wanted_bytes());
        let (bytes, descriptors) = received.expect("no descriptors are lost");
        let frame = self.parser.receive(&bytes, descriptors).expect("a good header");
        if let Some(frame) = frame {
            let step = self.session.receive(frame, &config().to_bytes());
            self.take(step);
        }
        !bytes.is_empty()
    }

    fn take(&mut self, step: Step<OwnedFd>) {
        match step {
            Step::Done => {}
            Step::Reply(reply) => socket::send(&self.socket, reply),
            Step::Act(action) => {
                self.carry_out(action);
                let step = self.session.action_done();
                self.take(step);
            }
            Step::Refused { reason, .. } | Step::Close(reason) => panic!("{reason}"),
        }
    }

    fn carry_out(&mut self, action: Action<OwnedFd>) {
        match action {
            Action::AddRegion(mapped) => {
                let memory = HostMemory::map(&mapped.file, &mapped.region).expect("a mapping");
                self.set_memory(self.memory.with(mapped.region, memory));
            }
            Action::RemoveRegion(region) => self.set_memory(self.memory.without(&region)),
            Action::StartQueue(start) => {
                let setup = RingSetup::from(&*start);
                let ring = SplitRing::new(setup, self.memory.clone()).expect("a ring");
                let limits = BlkLimits::new(&config(), start.features, false);
                let parser = BlkParser::new(limits, ring.pieces_max());
                self.queue = Some(Queue { start: *start, ring, parser });
            }
            Action::SetCall { call, .. } => self.queue.as_mut().expect("it runs").start.call = call,
            Action::EnableQueue { .. } => {}
            action => panic!("the driver sends nothing for {action:?}"),
        }
    }

    fn set_memory(&mut self, memory: GuestMemory) {
        self.memory = Arc::new(memory);
        if let Some(queue) = &mut self.queue {
            queue.ring.set_memory(self.memory.clone()).expect("the ring stays in memory");
        }
    }

    /// Takes requests until there are none, and asks for the next kick.
    fn serve_queue(&mut self) {
        let Self { queue: Some(queue), disk, counts, .. } = self else { return };
        rustix::io::read(&queue.start.kick, &mut [0; 8]).expect("an eventfd");
        counts.kicks += 1;
        loop {
            queue.ring.disable_notifications();
            if queue.carry_out_all(disk, counts) {
                let call = queue.start.call.as_ref().expect("the driver waits for calls");
                rustix::io::write(call, &1u64.to_ne_bytes()).expect("an eventfd");
            }
            if !queue.ring.enable_notifications() {
                return;
            }
        }
    }
}

impl Queue {
    /// Carries all requests out, and publishes two at a time; true if the driver wants a call.
    fn carry_out_all(&mut self, disk: &mut [u8], counts: &mut Counts) -> bool {
        let (mut unseen, mut must_call) = (0, false);
        while let Some(chain) = self.ring.take().expect("the driver makes no mistakes") {
            let request = self.parser.parse(&chain).expect("it can be answered");
            let status = carry_out(&request, disk);
            let (head, bytes) = (chain.head(), request.reply.write(status));
            self.ring.put(head, bytes);
            counts.requests += 1;
            unseen += 1;
            if unseen == 2 {
                must_call |= self.publish(counts);
                unseen = 0;
            }
        }
        must_call | (unseen > 0 && self.publish(counts))
    }

    fn publish(&mut self, counts: &mut Counts) -> bool {
        let wants_call = self.ring.publish();
        counts.publishes += 1;
        counts.calls += u64::from(wants_call);
        wants_call
    }
}

fn carry_out(request: &BlkRequest<'_>, disk: &mut [u8]) -> BlkStatus {
    match request.command {
        BlkCommand::Read { sector, segments } => {
            let mut bio = bio(Op::Read, sector, segments);
            let range = range(sector, bio.bytes);
            bio.fill_data_from(&disk[range]);
        }
        BlkCommand::Write { sector, segments } => {
            let bio = bio(Op::Write, sector, segments);
            bio.copy_data_to(&mut disk[range(sector, bio.bytes)]);
        }
        BlkCommand::Discard { ranges } | BlkCommand::WriteZeroes { ranges } => {
            ranges.iter().for_each(|zero| disk[range(zero.sector, zero.bytes)].fill(0));
        }
        BlkCommand::Flush => {}
        BlkCommand::GetId => return BlkStatus::Unsupported,
        BlkCommand::End(status) => return status,
    }
    BlkStatus::Ok
}

fn range(sector: Sector, bytes: u64) -> std::ops::Range<usize> {
    sector.bytes() as usize..(sector.bytes() + bytes) as usize
}

#[allow(unsafe_code, reason = "a bio takes the memory of its segments on trust")]
fn bio(op: Op, sector: Sector, segments: &[Segment]) -> Box<Bio> {
    // SAFETY: the memory is mapped until the device has ended.
    unsafe { Bio::from_raw_segments(op, sector, segments) }
}
