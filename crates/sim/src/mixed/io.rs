//! One I/O of the workload, from the oracle's note of its begin to its verdict at the end.

use super::flushes::Flush;
use super::plan::{DeviceKind, Target};
use super::run::Run;
use crate::oracle::{Ended, FlushId, ReadId, WriteId, fill};
use drystone_core::{Bio, BioFlags, IoBuf, Op, Sector, Status};
use std::ops::Range;

/// The identity of an I/O in the oracle.
pub(super) enum Known {
    Read(ReadId),
    /// A write, perhaps after a flush.
    Write(WriteId, Option<FlushId>),
    Flush(FlushId),
    /// An I/O of a volume that keeps nothing; the oracle does not know it.
    Nothing,
    /// A nonsensical I/O, which must not succeed.
    Nonsense,
}

/// An I/O in flight.
pub(super) struct Io {
    pub(super) target: usize,
    /// Sectors of the target.
    pub(super) range: Range<u64>,
    pub(super) op: Op,
    pub(super) flags: BioFlags,
    pub(super) known: Known,
}

/// The properties that an I/O must have.
pub(super) struct Wanted {
    pub(super) target: usize,
    pub(super) range: Range<u64>,
    pub(super) op: Op,
    pub(super) flags: BioFlags,
    pub(super) nonsense: bool,
}

const SECTOR: usize = 512;

impl Wanted {
    /// Tell the oracle, and make the bio, with the memory of `buf` if there is one.
    pub(super) fn begin(self, run: &Run, buf: Option<IoBuf>) -> (Io, Box<Bio>) {
        let Wanted { target, range, op, flags, nonsense } = self;
        let to = &run.plan.targets[target];
        let known = match nonsense {
            true => Known::Nonsense,
            false => known(run, target, to, op, &range, flags),
        };
        let sector = Sector(if op == Op::Flush { 0 } else { to.first + range.start });
        let bytes = (range.end - range.start) as usize * SECTOR;
        let mut bio = match op {
            Op::Read => Bio::read(sector, memory(buf, bytes)),
            Op::Write => {
                let mut buf = memory(buf, bytes);
                match &known {
                    Known::Write(id, _) => fill(&mut buf, target as u32, range.start, id.stamp()),
                    _ => fill(&mut buf, target as u32, range.start, u64::MAX >> 8),
                }
                Bio::write(sector, buf)
            }
            Op::Flush => Bio::flush(),
            Op::Discard | Op::WriteZeroes => Bio::without_data(op, sector, bytes as u64),
        };
        bio.flags = flags;
        (Io { target, range, op, flags, known }, bio)
    }
}

fn memory(buf: Option<IoBuf>, bytes: usize) -> IoBuf {
    match buf {
        Some(buf) if buf.len() == bytes => buf,
        _ => IoBuf::zeroed(bytes),
    }
}

fn known(
    run: &Run,
    target: usize,
    to: &Target,
    op: Op,
    range: &Range<u64>,
    flags: BioFlags,
) -> Known {
    if !to.device_kind.holds_data() {
        return Known::Nothing;
    }
    let mut oracles = run.oracles.borrow_mut();
    let oracle = &mut oracles[target];
    let fua = flags.contains(BioFlags::FUA);
    let flush = flags.contains(BioFlags::PREFLUSH).then(|| oracle.flush_begins());
    match op {
        Op::Read => Known::Read(oracle.read_begins(range.clone())),
        Op::Flush => Known::Flush(flush.unwrap_or_else(|| oracle.flush_begins())),
        Op::Write => Known::Write(oracle.write_begins(range.clone(), fua), flush),
        Op::WriteZeroes => Known::Write(oracle.zeroes_begin(range.clone(), fua), flush),
        Op::Discard => Known::Write(oracle.discard_begins(range.clone()), flush),
    }
}

impl Io {
    /// Note that the I/O begins, in the context with this number.
    pub(super) fn note_begin(&self, run: &Run, number: u64, context: u64, bio: &Bio) {
        run.world.digest(number ^ bio.sector.0.rotate_left(32) ^ run.world.now());
        // A client's memory is not the memory that the server's disk operations use.
        if run.plan.nbd.is_none() {
            run.world.memory_of(number, bio.buf().map(|buf| &buf[..]));
        }
        run.world.note(|| {
            let name = &run.plan.targets[self.target].name;
            let Io { op, range, flags, .. } = self;
            format!(
                "I/O {number}: context {context}: {op:?} of {name}, sectors {range:?}, {flags:?}"
            )
        });
    }

    /// Count and judge an I/O that has ended.
    pub(super) fn complete(self, run: &Run, number: u64, bio: &Bio) {
        run.progress.end();
        run.world.digest(number ^ ((bio.status as u64) << 56) ^ run.world.now());
        run.world.memory_of(number, None);
        run.world.note(|| format!("I/O {number}: ends: {:?}", bio.status));
        self.count(run, bio.status);
        run.admit_losses();
        let is_flush = self.op == Op::Flush && !run.off.get();
        if is_flush && let Err(sentence) = self.judge_flush(run, number, bio.status) {
            run.world.fail(format!("I/O {number}: {sentence}"));
        }
        if let Err(sentence) = self.end(run, bio) {
            run.culprit.set(Some(number));
            run.world.fail(format!("I/O {number}: {sentence}"));
        }
    }

    fn count(&self, run: &Run, status: Status) {
        let mut counts = run.counts.borrow_mut();
        counts.add("I/O", 1);
        counts.add(op_name(self.op), 1);
        counts.add(run.plan.targets[self.target].kind, 1);
        for (flag, name) in FLAGS {
            counts.add(name, u64::from(self.flags.contains(flag)));
        }
        counts.add("failed", u64::from(status != Status::Ok));
        if status == Status::Ok {
            counts.add(&format!("{} succeeded", op_name(self.op)), 1);
        }
    }

    /// Judges the end of a flush that began as number `number`.
    fn judge_flush(&self, run: &Run, number: u64, status: Status) -> Result<(), &'static str> {
        let (target, to) = (self.target, &run.plan.targets[self.target]);
        let [disk] = to.disks[..] else { return Ok(()) };
        if to.fails || to.device_kind != DeviceKind::Keeps {
            return Ok(());
        }
        let begun = run.progress.begun();
        run.faults.judge_flush(&Flush { target, disk, number, status, begun })
    }

    /// Tell the oracle that the I/O has ended. Returns its verdict.
    fn end(self, run: &Run, bio: &Bio) -> Result<(), String> {
        if run.off.get() {
            // No result counts after the power has gone.
            return Ok(());
        }
        let to = &run.plan.targets[self.target];
        self.judge_status(run, to, bio.status)?;
        let ok = bio.status == Status::Ok;
        let mut oracles = run.oracles.borrow_mut();
        let oracle = &mut oracles[self.target];
        match self.known {
            Known::Read(id) if ok => {
                let data = bio.buf().expect("a read has a buffer");
                oracle.read_ends_ok(id, data).map_err(|violation| violation.to_string())
            }
            Known::Read(id) => {
                oracle.read_failed(id);
                Ok(())
            }
            Known::Write(id, flush) => {
                // A device that drops writes may acknowledge them all the same.
                let tells = to.device_kind != DeviceKind::Drops;
                if let Some(flush) = flush {
                    oracle.flush_ends(flush, ok && tells);
                }
                oracle.write_ends(id, if ok && tells { Ended::Ok } else { Ended::Failed });
                Ok(())
            }
            Known::Flush(id) => {
                oracle.flush_ends(id, ok && to.device_kind != DeviceKind::Drops);
                Ok(())
            }
            Known::Nothing if ok && self.op == Op::Read => zeroes(bio),
            Known::Nothing | Known::Nonsense => Ok(()),
        }
    }

    /// The I/O has surely ended, but its result is lost.
    pub(super) fn lost(self, run: &Run) {
        let mut oracles = run.oracles.borrow_mut();
        let oracle = &mut oracles[self.target];
        match self.known {
            Known::Read(id) => oracle.read_failed(id),
            Known::Write(id, flush) => {
                flush.into_iter().for_each(|flush| oracle.flush_ends(flush, false));
                oracle.write_ends(id, Ended::Failed);
            }
            Known::Flush(id) => oracle.flush_ends(id, false),
            Known::Nothing | Known::Nonsense => {}
        }
    }

    /// The sectors that can explain an error of the I/O if one is bad: all of the blocks that it
    /// touches. For a durable I/O these are all sectors: after one failed durable write a file
    /// makes nothing durable any more.
    fn reach(&self, block: u64) -> Range<u64> {
        let durable = self.flags.intersects(BioFlags::FUA | BioFlags::PREFLUSH);
        if durable || self.op == Op::Flush {
            return 0..u64::MAX;
        }
        self.range.start / block * block..self.range.end.next_multiple_of(block)
    }

    /// Checks that a fault explains this status.
    fn judge_status(&self, run: &Run, to: &Target, status: Status) -> Result<(), String> {
        let wrong = |what: &str| {
            let Io { op, range, flags, .. } = self;
            let name = &to.name;
            Err(format!("{op:?} of {name}, sectors {range:?}, flags {flags:?}: {what}"))
        };
        let nonsense = matches!(self.known, Known::Nonsense);
        match status {
            Status::Ok if nonsense => wrong("succeeded, and makes no sense"),
            Status::Ok if to.device_kind == DeviceKind::Error && self.op != Op::Flush => {
                wrong("succeeded on a target that fails all I/O")
            }
            Status::Ok => Ok(()),
            // No fault of a disk makes a bio invalid.
            Status::Invalid
            | Status::Permission
            | Status::Protection
            | Status::Reservation
            | Status::Resource
                if !nonsense =>
            {
                wrong(&format!("ended with {status:?}"))
            }
            Status::NoSpace if run.plan.faults.cuts && !nonsense => {
                wrong(&format!("ended with {status:?}, and its file was cut off at the most"))
            }
            _ if nonsense || to.fails || run.faults.may_fail(to, self.reach(to.block)) => Ok(()),
            Status::Again if self.flags.contains(BioFlags::NOWAIT) => Ok(()),
            Status::NotSupported if matches!(self.op, Op::Discard | Op::WriteZeroes) => Ok(()),
            status => wrong(&format!("ended with {status:?}, and nothing has failed")),
        }
    }
}

const FLAGS: [(BioFlags, &str); 5] = [
    (BioFlags::FUA, "FUA"),
    (BioFlags::PREFLUSH, "PREFLUSH"),
    (BioFlags::NOWAIT, "NOWAIT"),
    (BioFlags::POLLED, "POLLED"),
    (BioFlags::NOUNMAP, "NOUNMAP"),
];

fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write zeroes",
    }
}

fn zeroes(bio: &Bio) -> Result<(), String> {
    let data = bio.buf().expect("a read has a buffer");
    match data.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err("a zero target gave something else than zeroes".to_owned()),
    }
}
