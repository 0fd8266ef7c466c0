//! A volume as one context uses it: bios are moved or divided, and sent on to the members.
//!
//! Invariants:
//! * A bio that the volume let pass carries its channel in its trail, so it counts as in flight
//!   here until it ends ([`Env::passing`]), whatever it was divided into.
//! * `members` are the context's channels of the live table's members.
//! * While the volume is suspended bios are kept, in the order in which they came, and nothing new
//!   passes; what passed before goes on by the table that it passed by.
//! * Nothing here is shared with other contexts but what is published.

use crate::striped::Striped;
use crate::table::{Map, Segment, Table};
use crate::volume::{Live, Port, Shared};
use drystone_core::check::{check, is_plain};
use drystone_core::clock::Ns;
use drystone_core::context::{Parts, Passed};
use drystone_core::mailbox::Message;
use drystone_core::op::{OP_GROUPS, OpGroup};
use drystone_core::stats::ChannelStats;
use drystone_core::{Bio, BioFlags, BioList, Channel, Env, Op, SECTOR_SIZE, Sector, Status};
use std::sync::Arc;

const GROUPS: [OpGroup; OP_GROUPS] =
    [OpGroup::Read, OpGroup::Write, OpGroup::Discard, OpGroup::Flush];

/// One context's way into a volume. On cache lines of its own.
#[repr(align(128))]
pub(crate) struct VolumeChannel {
    shared: Arc<Shared>,
    port: Arc<Port>,
    index: u32,
    epoch: u64,
    live: Arc<Live>,
    members: Vec<u32>,
    /// Flags that a bio must not have to go the short way.
    special: BioFlags,
    /// Bios that came while the volume was suspended.
    kept: BioList,
    stats: Arc<ChannelStats>,
    /// Bios that passed in this call, by group.
    started: [u64; OP_GROUPS],
}

impl VolumeChannel {
    pub(crate) fn new(shared: Arc<Shared>, env: &mut Env, index: u32) -> Self {
        let port = Port::new(Message::to(env.handle(), index, 0));
        // First the port, then the look: a suspension between the two finds the port.
        shared.open_port(port.clone());
        let (_, live) = shared.live.get(&env.locks);
        let stats = shared.stats.for_channel();
        let mut channel = VolumeChannel {
            shared,
            port,
            index,
            epoch: 0,
            live,
            members: Vec::new(),
            special: BioFlags::empty(),
            kept: BioList::new(),
            stats,
            started: [0; OP_GROUPS],
        };
        channel.refresh_live(env);
        channel
    }

    #[inline]
    fn refresh(&mut self, env: &mut Env) {
        if self.shared.live.epoch() != self.epoch {
            self.refresh_live(env);
        }
    }

    /// Take over what was published.
    #[cold]
    fn refresh_live(&mut self, env: &mut Env) {
        (self.epoch, self.live) = self.shared.live.get(&env.locks);
        let table = self.live.table.as_deref();
        let members = table.map(Table::members).unwrap_or_default();
        self.members = members.iter().map(|device| env.channel_of(device)).collect();
        self.special = match self.live.io_poll {
            true => BioFlags::PREFLUSH,
            false => BioFlags::PREFLUSH | BioFlags::POLLED,
        };
        if self.live.suspended {
            self.report(env);
        } else {
            self.release(env);
        }
    }

    /// Tell whoever suspends the volume once nothing is in flight.
    fn report(&self, env: &mut Env) {
        if self.live.suspended {
            self.port.quiet.look(self.epoch, env.passing(self.index));
        }
    }

    /// Keep bios until the volume is resumed.
    #[cold]
    fn keep(&mut self, env: &mut Env, bios: &mut BioList, now: Ns) {
        while let Some(mut bio) = bios.pop() {
            if bio.flags.contains(BioFlags::NOWAIT) {
                env.end_with(bio, Status::Again);
                continue;
            }
            bio.stamp(now);
            self.kept.push(bio);
        }
    }

    /// Send on what was kept.
    fn release(&mut self, env: &mut Env) {
        let mut kept = self.kept.take();
        while let Some(bio) = kept.pop() {
            let Some(bio) = self.admit(env, bio) else { continue };
            // As a part: the bio itself keeps the time at which it was submitted.
            let mut parts = env.divide(bio);
            let bytes = parts.left();
            let part = parts.next(env, bytes);
            self.start(env, part);
            env.divided(parts);
        }
        self.publish_started();
    }

    fn publish_started(&mut self) {
        for group in GROUPS {
            let n = std::mem::take(&mut self.started[group as usize]);
            if n != 0 && self.live.iostats {
                self.stats.started(group, n);
            }
        }
    }

    /// Let bios pass that were just submitted. Those that one member takes whole are only moved, and
    /// get their time there.
    #[inline]
    fn take(&mut self, env: &mut Env, bios: &mut BioList, now: Ns) {
        self.take_run(env, bios);
        let mut moved = 0;
        loop {
            moved += self.take_striped(env, bios);
            let Some(mut bio) = bios.pop() else { break };
            match way(&self.live, self.special, &bio) {
                Way::Move(member, sector) => {
                    moved += 1;
                    self.started[bio.op.group() as usize] += 1;
                    let passed = bio.pass(self.index);
                    debug_assert!(passed, "it was looked at before");
                    bio.sector = Sector(sector);
                    env.send_down(self.members[member as usize], bio);
                }
                Way::Divide => {
                    bio.stamp(now);
                    self.started[bio.op.group() as usize] += 1;
                    let bio = env.pass(bio, self.index);
                    self.divide(env, bio);
                }
                Way::Slow => {
                    bio.stamp(now);
                    if let Some(bio) = self.admit(env, bio) {
                        self.start(env, bio);
                    }
                }
            }
        }
        env.entered(self.index, moved);
    }

    /// The bios at the beginning, if all that a table says is that they are moved to one member:
    /// the list goes there as it is.
    #[inline]
    fn take_run(&mut self, env: &mut Env, bios: &mut BioList) {
        let (live, special, index) = (&*self.live, self.special, self.index);
        let Some((member, add)) = live.table.as_deref().and_then(Table::only_linear) else {
            return;
        };
        let started = &mut self.started;
        let mut run = bios.take_while(|bio| {
            let plain = is_plain(bio, &live.limits, live.size_bytes, special);
            if !plain || !bio.pass(index) {
                return false;
            }
            started[bio.op.group() as usize] += 1;
            bio.sector = Sector(bio.sector.0.wrapping_add(add));
            true
        });
        env.entered(index, run.len());
        env.send_all_down(self.members[member as usize], &mut run);
    }

    /// The same for a single striped segment, as long as bios lie in one chunk each. How many.
    #[inline]
    fn take_striped(&mut self, env: &mut Env, bios: &mut BioList) -> usize {
        let (live, special) = (&*self.live, self.special);
        let Some(striped) = live.table.as_deref().and_then(Table::only_striped) else { return 0 };
        let mut moved = 0;
        while let Some(bio) = bios.front_mut() {
            if !is_plain(bio, &live.limits, live.size_bytes, special) {
                break;
            }
            let place = striped.place(bio.sector.0);
            if bio.bytes > place.left * SECTOR_SIZE || !bio.pass(self.index) {
                break;
            }
            self.started[bio.op.group() as usize] += 1;
            bio.sector = Sector(place.sector);
            moved += 1;
            let Some(bio) = bios.pop() else { break };
            env.send_down(self.members[striped.member(place.stripe) as usize], bio);
        }
        moved
    }

    /// Check a bio and let it pass.
    fn admit(&mut self, env: &mut Env, mut bio: Box<Bio>) -> Option<Box<Bio>> {
        if !self.live.io_poll {
            bio.flags.remove(BioFlags::POLLED);
        }
        if let Err(status) = check(&bio, &self.live.limits, self.live.size_bytes) {
            env.end_with(bio, status);
            return None;
        }
        if self.live.table.is_none() {
            env.end_with(bio, Status::IoError);
            return None;
        }
        self.started[bio.op.group() as usize] += 1;
        Some(env.pass(bio, self.index))
    }

    /// Begin with a bio, or a part, that passed.
    fn start(&self, env: &mut Env, bio: Box<Bio>) {
        if bio.op == Op::Flush {
            return self.flush(env, bio);
        }
        if bio.flags.contains(BioFlags::PREFLUSH) {
            return self.flush_first(env, bio);
        }
        if bio.bytes == 0 {
            return env.end_with(bio, Status::Ok);
        }
        self.spread(env, bio);
    }

    /// A flush goes to every member.
    fn flush(&self, env: &mut Env, bio: Box<Bio>) {
        let mut parts = env.divide(bio);
        for at in 0..self.members.len() {
            let flush = parts.flush(env);
            env.send_down(self.members[at], flush);
        }
        env.divided(parts);
    }

    /// A write that begins with a flush: a part flushes, and when it has ended the data follows
    /// ([`Channel::returned`]).
    fn flush_first(&self, env: &mut Env, bio: Box<Bio>) {
        let mut parts = env.divide(bio);
        let mut flush = parts.flush(env);
        flush.set_hook(self.index);
        env.divided(parts);
        self.flush(env, flush);
    }

    /// The flush before a write's data has ended.
    fn flushed(&self, env: &mut Env, flush: Box<Bio>) {
        if flush.status.is_ok() {
            let mut parts = env.divide_again(&flush);
            let bytes = parts.left();
            if bytes > 0 {
                let mut data = parts.next(env, bytes);
                data.flags.remove(BioFlags::PREFLUSH);
                self.spread(env, data);
            }
            env.divided(parts);
        }
        env.end_bio(flush);
    }

    /// Send a bio on, in as many parts as the table makes of it.
    fn spread(&self, env: &mut Env, bio: Box<Bio>) {
        let Some(table) = &self.live.table else {
            return env.end_with(bio, Status::IoError);
        };
        if !bio.op.has_data() {
            return self.spread_range(env, table, bio);
        }
        let (member, sector, bytes) = piece(table, bio.sector.0);
        if bytes >= bio.bytes {
            return self.send(env, member, sector, bio);
        }
        if bio.flags.contains(BioFlags::NOWAIT) {
            return env.end_with(bio, Status::Again);
        }
        self.divide(env, bio);
    }

    /// Divide a read or write and send its parts on.
    fn divide(&self, env: &mut Env, bio: Box<Bio>) {
        let Some(table) = &self.live.table else {
            return env.end_with(bio, Status::IoError);
        };
        let mut parts = env.divide(bio);
        while parts.left() > 0 {
            let at = parts.sector().0;
            let segment = table.segment(at);
            if let Map::Striped(striped) = &segment.map {
                self.divide_striped(env, (segment, striped), &mut parts);
                continue;
            }
            let (member, sector, bytes) = piece(table, at);
            let bytes = bytes.min(parts.left());
            let part = parts.next(env, bytes);
            self.send(env, member, sector, part);
        }
        env.divided(parts);
    }

    /// Send on all chunks of a striped segment that are left of a bio.
    #[inline]
    fn divide_striped(
        &self,
        env: &mut Env,
        (segment, striped): (&Segment, &Striped),
        parts: &mut Parts,
    ) {
        let at = parts.sector().0;
        let mut left = parts.left().min((segment.end - at) * SECTOR_SIZE);
        let mut place = striped.place(at - segment.start);
        while left > 0 {
            let bytes = left.min(place.left * SECTOR_SIZE);
            let mut part = parts.next(env, bytes);
            part.sector = Sector(place.sector);
            env.send_down(self.members[striped.member(place.stripe) as usize], part);
            place = striped.next(place);
            left -= bytes;
        }
    }

    /// Send a read or write to where it lies.
    #[inline]
    fn send(&self, env: &mut Env, to: To, sector: u64, mut bio: Box<Bio>) {
        match to {
            To::Member(member) => {
                bio.sector = Sector(sector);
                env.send_down(self.members[member as usize], bio);
            }
            To::Zero => {
                if bio.op == Op::Read {
                    bio.zero_data();
                }
                env.end_with(bio, Status::Ok);
            }
            To::Error => env.end_with(bio, Status::IoError),
        }
    }

    /// Send on an operation without data: one range for each stripe, however many chunks it has.
    fn spread_range(&self, env: &mut Env, table: &Table, bio: Box<Bio>) {
        let (from, to) = (bio.sector.0, bio.end_sector().0);
        let mut parts = env.divide(bio);
        let segments = table.segments();
        let first = segments.partition_point(|segment| segment.end <= from);
        for segment in segments[first..].iter().take_while(|segment| segment.start < to) {
            let (from, to) = (from.max(segment.start), to.min(segment.end));
            self.send_range(env, segment, &mut parts, (from, to));
        }
        env.divided(parts);
    }

    fn send_range(
        &self,
        env: &mut Env,
        segment: &Segment,
        parts: &mut Parts,
        (from, to): (u64, u64),
    ) {
        let mut send = |env: &mut Env, member: u32, sector: u64, sectors: u64| {
            if sectors > 0 {
                let part = parts.elsewhere(env, Sector(sector), sectors * SECTOR_SIZE);
                env.send_down(self.members[member as usize], part);
            }
        };
        match &segment.map {
            Map::Linear { member, add } => send(env, *member, from.wrapping_add(*add), to - from),
            Map::Striped(striped) => {
                for stripe in 0..striped.stripes() {
                    let (from, to) = (from - segment.start, to - segment.start);
                    let (sector, sectors) = striped.range(stripe, from, to);
                    send(env, striped.member(stripe), sector, sectors);
                }
            }
            Map::Zero => {}
            Map::Error => {
                let part = parts.elsewhere(env, Sector(from), (to - from) * SECTOR_SIZE);
                env.end_with(part, Status::IoError);
            }
        }
    }
}

/// Who has a piece of a table.
#[derive(Clone, Copy)]
enum To {
    /// A member, by its index.
    Member(u32),
    Zero,
    Error,
}

/// How a bio goes on that was just submitted.
#[derive(Clone, Copy)]
enum Way {
    /// Whole, to a sector of a member.
    Move(u32, u64),
    /// In parts.
    Divide,
    /// As a closer look will tell.
    Slow,
}

#[inline(always)]
fn way(live: &Live, special: BioFlags, bio: &Bio) -> Way {
    let Some(table) = live.table.as_deref() else { return Way::Slow };
    if !is_plain(bio, &live.limits, live.size_bytes, special) || bio.has_passed_many() {
        return Way::Slow;
    }
    let (to, sector, bytes) = piece(table, bio.sector.0);
    match to {
        To::Member(member) if bio.bytes <= bytes => Way::Move(member, sector),
        _ if bio.flags.contains(BioFlags::NOWAIT) => Way::Slow,
        _ => Way::Divide,
    }
}

/// The piece of `table` that begins with `sector`, or lies around it: who has it, the sector there,
/// and how many bytes follow.
#[inline(always)]
fn piece(table: &Table, sector: u64) -> (To, u64, u64) {
    let segment = table.segment(sector);
    let left = segment.end - sector;
    let (to, sector, left) = match &segment.map {
        Map::Linear { member, add } => (To::Member(*member), sector.wrapping_add(*add), left),
        Map::Striped(striped) => {
            let place = striped.place(sector - segment.start);
            // A segment is whole chunks.
            (To::Member(striped.member(place.stripe)), place.sector, place.left)
        }
        Map::Zero => (To::Zero, 0, left),
        Map::Error => (To::Error, 0, left),
    };
    (to, sector, left * SECTOR_SIZE)
}

impl Channel for VolumeChannel {
    #[inline]
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        self.refresh(env);
        let now = env.time.submit_time();
        self.shared.stats.busy.update(now, false, env.passing(self.index) > 0);
        if self.live.suspended {
            return self.keep(env, bios, now);
        }
        self.take(env, bios, now);
        self.publish_started();
    }

    #[inline]
    fn passed(&mut self, env: &mut Env, passed: &[Passed]) {
        let now = env.time.completion_time();
        if self.live.iostats {
            for run in passed {
                let latency = now.saturating_sub(run.start_ns);
                self.stats.ended(run.group, run.count, run.bytes, latency);
            }
        }
        self.shared.stats.busy.update(now, true, env.passing(self.index) > 0);
        self.report(env);
    }

    fn returned(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(bio) = bios.pop() {
            self.flushed(env, bio);
        }
    }

    fn message(&mut self, env: &mut Env, _message: Arc<Message>) {
        self.refresh(env);
        self.report(env);
    }

    fn in_flight(&self) -> usize {
        self.kept.len()
    }

    fn cancel_pending(&mut self, env: &mut Env) {
        let mut kept = self.kept.take();
        while let Some(bio) = kept.pop() {
            env.end_with(bio, Status::Cancelled);
        }
    }
}

impl Drop for VolumeChannel {
    fn drop(&mut self) {
        self.shared.close_port(&self.port);
    }
}
