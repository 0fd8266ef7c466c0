//! The segments of the live table as one context uses them. A bio that passed is remapped or
//! divided as the table says, and goes on to members. `delay`, `flakey` and `log-writes` keep state
//! of their own here.
//!
//! Invariant: a `delay`, `flakey` or `log-writes` segment gets a part that the volume made, never
//! the submitted bio, because that has to keep its time, its data and its end_io hook.

use super::delay::Delays;
use super::end_io::EndIo;
use super::flakey::Corruption;
use super::log_writes::Logging;
use super::view::VolumeView;
use crate::striped::Striped;
use crate::table::{Map, Segment, Table, To};
use drystone_core::clock::Ns;
use drystone_core::context::Parts;
use drystone_core::mistake;
use drystone_core::{Bio, BioFlags, ContextId, Env, Op, SECTOR_SIZE, Sector, Status};

/// See the module's text.
#[derive(Default)]
pub(super) struct Segments {
    delays: Delays,
    corruption: Corruption,
    logging: Logging,
}

impl Segments {
    /// Change to another table, in context `context`. No bio waits at that time.
    pub(super) fn replace_table(&mut self, table: Option<&Table>, context: ContextId) {
        debug_assert_eq!(self.delays.len(), 0, "tables are swapped in quiesced volumes");
        self.delays = table.map(Delays::new).unwrap_or_default();
        self.corruption = table.map(|table| Corruption::new(table, context)).unwrap_or_default();
    }

    /// A part with this channel's end_io hook has returned.
    pub(super) fn returned(&mut self, view: &VolumeView, env: &mut Env, part: Box<Bio>) {
        match EndIo::of(&part) {
            EndIo::Preflush => self.flushed(view, env, part),
            EndIo::Corrupt(number) => self.corruption.ended(view, env, number, part),
            EndIo::Log(entry) => self.logging.part_ended(view, env, entry, part),
            EndIo::LogWrite(entry) => self.logging.write_ended(view, env, entry, part),
        }
    }

    /// Send on the bios that are due at `now`.
    pub(super) fn send_due(&mut self, view: &VolumeView, env: &mut Env, now: Ns) {
        self.delays.send_due(view, env, now);
    }

    /// The time of the next call of [`Segments::send_due`], if there is one.
    pub(super) fn due(&self) -> Option<Ns> {
        self.delays.due()
    }

    /// End the bios that wait for their time: no thread will send them on.
    pub(super) fn cancel_waiting(&mut self, view: &VolumeView, env: &mut Env) {
        self.delays.cancel(view, env);
    }

    /// Go on with carriers of logs, because other contexts may have written what they wait for.
    pub(super) fn resume_logging(&mut self, view: &VolumeView, env: &mut Env) {
        self.logging.resume(view, env);
    }

    /// True while a carrier of a log waits for log writes of other contexts.
    pub(super) fn waits_on_peer(&self) -> bool {
        self.logging.waiting() > 0
    }

    /// The number of bios that wait here.
    pub(super) fn in_flight(&self) -> usize {
        self.delays.len() + self.logging.waiting()
    }

    /// Start a bio, or a part, that passed.
    pub(super) fn start(&mut self, view: &VolumeView, env: &mut Env, bio: Box<Bio>) {
        if bio.op == Op::Flush {
            return self.flush(view, env, bio);
        }
        if bio.flags.contains(BioFlags::PREFLUSH) {
            return self.flush_first(view, env, bio);
        }
        if bio.bytes == 0 {
            return env.end_with(bio, Status::Ok);
        }
        self.spread(view, env, bio);
    }

    /// Send a flush to everything below.
    fn flush(&mut self, view: &VolumeView, env: &mut Env, bio: Box<Bio>) {
        let Some(table) = view.table() else {
            return env.end_with(bio, Status::IoError);
        };
        let mut parts = env.divide(bio);
        let left_out = usize::from(mistake!("flush_not_forwarded"));
        for to in table.flushes().iter().skip(left_out) {
            let flush = parts.flush(env);
            self.send(view, env, *to, 0, flush);
        }
        env.divided(parts);
    }

    /// Flush before a write: one part flushes, and after it the data is written
    /// (`Channel::returned`).
    fn flush_first(&mut self, view: &VolumeView, env: &mut Env, bio: Box<Bio>) {
        let mut parts = env.divide(bio);
        let mut flush = parts.flush(env);
        EndIo::Preflush.set(view.channel(), &mut flush);
        env.divided(parts);
        self.flush(view, env, flush);
    }

    /// Send the data of a write on, because its flush has ended.
    fn flushed(&mut self, view: &VolumeView, env: &mut Env, flush: Box<Bio>) {
        if flush.status.is_ok() {
            let mut parts = env.divide_again(&flush);
            let bytes = parts.left();
            if bytes > 0 {
                let mut data = parts.next(env, bytes);
                data.flags.remove(BioFlags::PREFLUSH);
                self.spread(view, env, data);
            }
            env.divided(parts);
        }
        env.end_bio(flush);
    }

    /// Send a bio on, in as many parts as the table makes of it.
    fn spread(&mut self, view: &VolumeView, env: &mut Env, bio: Box<Bio>) {
        let Some(table) = view.table() else {
            return env.end_with(bio, Status::IoError);
        };
        if !bio.op.has_data() {
            return self.spread_range(view, env, bio);
        }
        let (to, sector, bytes) = table.piece(bio.sector.0);
        let whole = bytes >= bio.bytes;
        if whole && !to.needs_part() {
            return self.send(view, env, to, sector, bio);
        }
        if !whole && bio.flags.contains(BioFlags::NOWAIT) {
            return env.end_with(bio, Status::Again);
        }
        self.divide(view, env, bio);
    }

    /// Divide a read or write and send its parts on.
    pub(super) fn divide(&mut self, view: &VolumeView, env: &mut Env, bio: Box<Bio>) {
        let Some(table) = view.table() else {
            return env.end_with(bio, Status::IoError);
        };
        let mut parts = env.divide(bio);
        while parts.left() > 0 {
            let at = parts.sector().0;
            let segment = table.segment(at);
            if let Map::Striped(striped) = &segment.map {
                self.divide_striped(view, env, (segment, striped), &mut parts);
                continue;
            }
            let (to, sector, bytes) = segment.piece(at);
            let bytes = bytes.min(parts.left());
            let part = parts.next(env, bytes);
            self.send(view, env, to, sector, part);
        }
        env.divided(parts);
    }

    /// Send on the rest of a bio that lies in one striped segment, chunk by chunk.
    #[inline]
    fn divide_striped(
        &mut self,
        view: &VolumeView,
        env: &mut Env,
        (segment, striped): (&Segment, &Striped),
        parts: &mut Parts,
    ) {
        let at = parts.sector().0;
        let mut left = parts.left().min((segment.end - at) * SECTOR_SIZE);
        let mut there = striped.position(at - segment.start);
        while left > 0 {
            let bytes = left.min(there.left * SECTOR_SIZE);
            let part = parts.next(env, bytes);
            view.send_to_sector(env, (striped.member(there.stripe), there.sector), part);
            there = striped.next(there);
            left -= bytes;
        }
    }

    /// Send a bio to its destination.
    #[inline]
    fn send(&mut self, view: &VolumeView, env: &mut Env, to: To, sector: u64, mut bio: Box<Bio>) {
        match to {
            To::Member(member) => view.send_to_sector(env, (member, sector), bio),
            To::Zero => {
                if bio.op == Op::Read {
                    bio.zero_data();
                }
                env.end_with(bio, Status::Ok);
            }
            To::Error => env.end_with(bio, Status::IoError),
            To::Delay(number) => self.delays.submit(view, env, number, bio),
            To::Flakey(number) => self.corruption.submit(view, env, number, bio),
            To::LogWrites(number) => self.logging.submit(view, env, number, bio),
        }
    }

    /// Send on an operation without data: one range to each stripe, for all of its chunks.
    fn spread_range(&mut self, view: &VolumeView, env: &mut Env, bio: Box<Bio>) {
        let Some(table) = view.table() else {
            return env.end_with(bio, Status::IoError);
        };
        let (from, to) = (bio.sector.0, bio.end_sector().0);
        let mut parts = env.divide(bio);
        let segments = table.segments();
        let first = segments.partition_point(|segment| segment.end <= from);
        for segment in segments[first..].iter().take_while(|segment| segment.start < to) {
            let (from, to) = (from.max(segment.start), to.min(segment.end));
            self.send_range(view, env, segment, &mut parts, (from, to));
        }
        env.divided(parts);
    }

    fn send_range(
        &mut self,
        view: &VolumeView,
        env: &mut Env,
        segment: &Segment,
        parts: &mut Parts,
        (from, to): (u64, u64),
    ) {
        let mut send = |to: To, sector: u64, sectors: u64| {
            if sectors > 0 {
                let part = parts.elsewhere(env, Sector(sector), sectors * SECTOR_SIZE);
                self.send(view, env, to, sector, part);
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
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, area, member, publish, run, shared, table};
    use super::*;
    use crate::delay::{DelayClass, DelaySpec};
    use crate::table::TargetSpec;
    use drystone_core::IoBuf;

    /// Call `act` with the segments of a channel over these targets, 8 sectors each, and with a bio
    /// that it has to end. Returns the ended bio.
    fn with_segments(
        targets: Vec<TargetSpec>,
        bio: Box<Bio>,
        act: impl FnOnce(&mut Segments, &VolumeView, &mut Env, Box<Bio>) + Send + 'static,
    ) -> Box<Bio> {
        let shared = shared();
        publish(&shared, table(targets));
        run(bio, move |env, id, bio| {
            let mut view = VolumeView::new(shared, env, id);
            view.follow(env);
            let mut segments = Segments::default();
            segments.replace_table(view.table(), env.context_id());
            act(&mut segments, &view, env, bio);
        })
    }

    fn read(sector: u64, sectors: usize) -> Box<Bio> {
        Bio::read(Sector(sector), IoBuf::from_slice(&vec![7; sectors * 512]))
    }

    #[test]
    fn a_bio_is_divided_as_the_table_says() {
        for (sector, sectors, status, zeroes) in [
            (0, 8, Status::Ok, 8),
            (6, 2, Status::Ok, 2),
            (8, 1, Status::IoError, 0),
            (4, 8, Status::IoError, 4),
        ] {
            let targets = vec![TargetSpec::Zero, TargetSpec::Error];
            let bio = with_segments(targets, read(sector, sectors), |segments, view, env, bio| {
                segments.start(view, env, bio);
                assert_eq!((segments.in_flight(), segments.due()), (0, None));
            });
            assert_eq!(bio.status, status, "{sector}, {sectors}");
            let mut data = vec![0; sectors * 512];
            bio.copy_data_to(&mut data);
            assert!(data[..zeroes * 512].iter().all(|byte| *byte == 0));
            assert!(data[zeroes * 512..].iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn a_part_waits_in_a_delay_segment_and_the_others_go_on() {
        const DELAY_NS: Ns = 5_000_000;
        let (device, seen) = member();
        let delayed = DelayClass { area: area(&device, 200), delay_ms: 5 };
        let delay = DelaySpec { read: delayed, write: None, flush: None };
        let targets = vec![TargetSpec::Linear(area(&device, 100)), TargetSpec::Delay(delay)];
        let bio = with_segments(targets, read(5, 8), |segments, view, env, bio| {
            segments.start(view, env, bio);
            assert_eq!((segments.in_flight(), segments.due()), (1, Some(NOW + DELAY_NS)));
            assert!(!segments.waits_on_peer());
            segments.send_due(view, env, NOW + DELAY_NS - 1);
            assert_eq!(segments.in_flight(), 1);
            segments.send_due(view, env, NOW + DELAY_NS);
            assert_eq!((segments.in_flight(), segments.due()), (0, None));
        });
        assert!(bio.status.is_ok());
        assert_eq!(*seen.lock().unwrap(), [(Op::Read, 105, 3), (Op::Read, 200, 5)]);
    }

    #[test]
    fn bios_that_wait_are_cancelled_when_nobody_will_come() {
        let (device, seen) = member();
        let delayed = DelayClass { area: area(&device, 0), delay_ms: 5 };
        let delay = DelaySpec { read: delayed, write: None, flush: None };
        let bio = with_segments(
            vec![TargetSpec::Delay(delay)],
            read(0, 8),
            |segments, view, env, bio| {
                segments.start(view, env, bio);
                segments.cancel_waiting(view, env);
                assert_eq!((segments.in_flight(), segments.due()), (0, None));
            },
        );
        assert_eq!((bio.status, seen.lock().unwrap().len()), (Status::Cancelled, 0));
    }

    #[test]
    fn a_flush_goes_to_each_member_once() {
        let ((first, seen), (second, other)) = (member(), member());
        let targets = [&first, &second, &first].map(|device| TargetSpec::Linear(area(device, 0)));
        let bio = with_segments(targets.into(), Bio::flush(), |segments, view, env, bio| {
            segments.start(view, env, bio);
        });
        assert!(bio.status.is_ok());
        let flushes = |seen: &std::sync::Mutex<Vec<super::super::testing::Seen>>| {
            seen.lock().unwrap().iter().map(|(op, ..)| *op).collect::<Vec<Op>>()
        };
        assert_eq!((flushes(&seen), flushes(&other)), (vec![Op::Flush], vec![Op::Flush]));
    }
}
