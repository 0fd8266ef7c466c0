//! How a bio goes on that a volume let pass: moved or divided as the table says, to members.
//!
//! Invariant: what a `delay`, `flakey` or `log-writes` segment gets is a part that was made here, never the bio
//! that was submitted: that one has to keep its time, its data and its hook.

use super::VolumeChannel;
use super::hooked::Hooked;
use crate::striped::Striped;
use crate::table::{Map, Segment, To};
use drystone_core::context::Parts;
use drystone_core::mistake;
use drystone_core::{Bio, BioFlags, Env, Op, SECTOR_SIZE, Sector, Status};

impl VolumeChannel {
    /// Begin with a bio, or a part, that passed.
    pub(super) fn start(&self, env: &mut Env, bio: Box<Bio>) {
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

    /// A flush goes to everything below.
    fn flush(&self, env: &mut Env, bio: Box<Bio>) {
        let Some(table) = self.table() else {
            return env.end_with(bio, Status::IoError);
        };
        let mut parts = env.divide(bio);
        let left_out = usize::from(mistake!("flush_not_forwarded"));
        for to in table.flushes().iter().skip(left_out) {
            let flush = parts.flush(env);
            self.send(env, *to, 0, flush);
        }
        env.divided(parts);
    }

    /// A write that begins with a flush: a part flushes, and when it has ended the data follows
    /// (`Channel::returned`).
    fn flush_first(&self, env: &mut Env, bio: Box<Bio>) {
        let mut parts = env.divide(bio);
        let mut flush = parts.flush(env);
        Hooked::FlushFirst.hook(self.index, &mut flush);
        env.divided(parts);
        self.flush(env, flush);
    }

    /// The flush before a write's data has ended.
    pub(super) fn flushed(&self, env: &mut Env, flush: Box<Bio>) {
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
        let Some(table) = self.table() else {
            return env.end_with(bio, Status::IoError);
        };
        if !bio.op.has_data() {
            return self.spread_range(env, bio);
        }
        let (to, sector, bytes) = table.piece(bio.sector.0);
        let whole = bytes >= bio.bytes;
        if whole && !to.needs_part() {
            return self.send(env, to, sector, bio);
        }
        if !whole && bio.flags.contains(BioFlags::NOWAIT) {
            return env.end_with(bio, Status::Again);
        }
        self.divide(env, bio);
    }

    /// Divide a read or write and send its parts on.
    pub(super) fn divide(&self, env: &mut Env, bio: Box<Bio>) {
        let Some(table) = self.table() else {
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
            let (to, sector, bytes) = segment.piece(at);
            let bytes = bytes.min(parts.left());
            let part = parts.next(env, bytes);
            self.send(env, to, sector, part);
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

    /// Send a bio to where it lies.
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
            To::Delay(number) => self.delay(env, number, bio),
            To::Flakey(number) => self.flakey(env, number, bio),
            To::LogWrites(number) => self.log_writes(env, number, bio),
        }
    }

    /// Send on an operation without data: one range for each stripe, however many chunks it has.
    fn spread_range(&self, env: &mut Env, bio: Box<Bio>) {
        let Some(table) = self.table() else {
            return env.end_with(bio, Status::IoError);
        };
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
        let mut send = |to: To, sector: u64, sectors: u64| {
            if sectors > 0 {
                let part = parts.elsewhere(env, Sector(sector), sectors * SECTOR_SIZE);
                self.send(env, to, sector, part);
            }
        };
        let Map::Striped(striped) = &segment.map else {
            let (target, sector, _) = segment.piece(from);
            return send(target, sector, to - from);
        };
        let (from, to) = (from - segment.start, to - segment.start);
        for stripe in 0..striped.stripes() {
            let (sector, sectors) = striped.range(stripe, from, to);
            send(To::Member(striped.member(stripe)), sector, sectors);
        }
    }

    /// Send a part, whose place is the volume's, to a member where sectors lie `add` further on. A
    /// flush has no place.
    pub(super) fn send_to(&self, env: &mut Env, (member, add): (u32, u64), mut bio: Box<Bio>) {
        if bio.op != Op::Flush {
            bio.sector = Sector(bio.sector.0.wrapping_add(add));
        }
        env.send_down(self.members[member as usize], bio);
    }
}
