//! Flushes of an array. A flush of the array flushes all members at once. A write with `PREFLUSH`
//! waits for such a flush.
//!
//! Invariants:
//! * A flush succeeds only when every member has flushed from which the array could be assembled
//!   after a power cut. The members that could not flush are recorded as failed first; the others
//!   flush again after that.
//! * A member that cannot flush fails the array's flush only if parity does not make up for the
//!   member.

use super::membership::Membership;
use crate::engine::turn::{Fault, Report};
use crate::ids::MemberNumber;
use drystone_core::{Bio, Slab, Status};

/// The members that could not flush, and how they failed.
type Failures = Vec<(MemberNumber, Status)>;

/// A flush, or a write after one, that waits for the members.
struct Flushing {
    left: usize,
    failures: Failures,
    part: Box<Bio>,
}

/// A flush that some members could not do.
pub(super) struct FailedFlush {
    failures: Failures,
    pub(super) part: Box<Bio>,
}

/// The result of a flush when the last member has answered.
pub(super) enum Flushed {
    /// All have flushed.
    Done(Box<Bio>),
    /// Some have not.
    Failed(FailedFlush),
}

/// The next step of a failed flush under a new configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// The members that failed are out: the others flush again.
    Again,
    /// The flush of the array fails.
    Fail(Status),
    /// The failures are not on record yet.
    Wait,
}

/// See the module's text.
pub(super) struct Flushes {
    running: Slab<Flushing>,
    /// Flushes that wait until the manager has recorded their failures.
    unrecorded: Vec<FailedFlush>,
}

impl Flushes {
    pub(super) fn new() -> Self {
        Flushes { running: Slab::new(), unrecorded: Vec::new() }
    }

    /// Let `part` wait until `members` members have answered. Returns the number of the flush.
    pub(super) fn begin(&mut self, part: Box<Bio>, members: usize) -> u32 {
        self.running.insert(Flushing { left: members, failures: Vec::new(), part })
    }

    /// Note a member's answer to flush `number`. Returns the outcome if this was the last answer.
    pub(super) fn answered(
        &mut self,
        number: u32,
        member: MemberNumber,
        status: Status,
    ) -> Option<Flushed> {
        let flushing = &mut self.running[number];
        flushing.left -= 1;
        if !status.is_ok() {
            flushing.failures.push((member, status));
        }
        if flushing.left > 0 {
            return None;
        }
        let Flushing { failures, part, .. } = self.running.remove(number)?;
        Some(match failures.is_empty() {
            true => Flushed::Done(part),
            false => Flushed::Failed(FailedFlush { failures, part }),
        })
    }

    /// Let a failed flush wait for the next configuration.
    pub(super) fn await_record(&mut self, flush: FailedFlush) {
        self.unrecorded.push(flush);
    }

    /// Take the flushes that wait for the next configuration.
    pub(super) fn take_unrecorded(&mut self) -> Vec<FailedFlush> {
        std::mem::take(&mut self.unrecorded)
    }

    pub(super) fn len(&self) -> usize {
        self.running.len() + self.unrecorded.len()
    }
}

impl FailedFlush {
    /// The status with which the flush fails at once, if it does. It does if a member's flush was
    /// cancelled, if a failed member is one that the array needs, or if no manager is there to
    /// record anything (`is_final`).
    pub(super) fn immediate_status(
        &self,
        membership: &Membership,
        is_final: bool,
    ) -> Option<Status> {
        let failures = || self.failures.iter();
        let cancelled = failures().find(|(_, status)| *status == Status::Cancelled);
        let needed = failures().find(|(number, _)| membership.is_needed(*number));
        let found = cancelled.or(needed).or(failures().next().filter(|_| is_final));
        found.map(|(_, status)| *status)
    }

    /// The failures, for the manager.
    pub(super) fn reports(&self) -> Vec<Report> {
        let report = |(number, _): &(MemberNumber, Status)| Report {
            number: *number,
            sector: 0,
            fault: Fault::Flush,
        };
        self.failures.iter().map(report).collect()
    }

    /// The next step under the current configuration.
    pub(super) fn retry(&self, membership: &Membership) -> Retry {
        let is_member = |(number, _): &&(MemberNumber, Status)| membership.has(*number);
        match self.failures.iter().find(is_member) {
            None if membership.conf().is_broken => Retry::Fail(Status::IoError),
            None => Retry::Again,
            Some((_, status))
                if self.failures.iter().any(|(number, _)| membership.is_needed(*number)) =>
            {
                Retry::Fail(*status)
            }
            Some(_) => Retry::Wait,
        }
    }
}

/// The `user_data` of a member's flush: the member, and the number of the array's flush.
pub(super) fn tag(member: MemberNumber, number: u32) -> u64 {
    u64::from(member.0) << 32 | u64::from(number)
}

/// The parts of a [`tag`].
pub(super) fn of_tag(tag: u64) -> (MemberNumber, u32) {
    (MemberNumber((tag >> 32) as u32), tag as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::conf::Conf;
    use crate::engine::shard::tests::conf;
    use drystone_core::clock::ManualClock;
    use drystone_core::sync::LockCounters;
    use drystone_core::{ChannelId, Published};

    fn membership(change: impl FnOnce(&mut Conf)) -> Membership {
        let mut conf = conf(3);
        change(&mut conf);
        conf.role_slots_changed();
        let locks = LockCounters::new(ManualClock::new(1));
        let published = Published::new(conf);
        let mut membership = Membership::new(&published, &locks);
        membership.refresh(&published, &locks, |_| ChannelId(0));
        membership
    }

    fn failed(failures: &[(u32, Status)]) -> FailedFlush {
        let mut flushes = Flushes::new();
        let number = flushes.begin(Bio::flush(), failures.len());
        let answers = failures.iter().map(|(n, status)| (MemberNumber(*n), *status));
        let last = answers.map(|(n, status)| flushes.answered(number, n, status)).last();
        match last {
            Some(Some(Flushed::Failed(flush))) => flush,
            _ => panic!("the last member decides"),
        }
    }

    #[test]
    fn a_flush_ends_with_its_last_member() {
        let mut flushes = Flushes::new();
        let (first, second) = (flushes.begin(Bio::flush(), 2), flushes.begin(Bio::flush(), 1));
        let ok = Status::Ok;
        assert!(flushes.answered(first, MemberNumber(0), ok).is_none());
        assert!(matches!(flushes.answered(second, MemberNumber(1), ok), Some(Flushed::Done(_))));
        let last = flushes.answered(first, MemberNumber(1), Status::IoError);
        let Some(Flushed::Failed(flush)) = last else { panic!("one member failed") };
        assert_eq!(flush.reports().iter().map(|r| r.number.0).collect::<Vec<_>>(), [1]);
        assert_eq!(flushes.len(), 0);
        flushes.await_record(flush);
        assert_eq!((flushes.len(), flushes.take_unrecorded().len(), flushes.len()), (1, 1, 0));
    }

    #[test]
    fn a_failure_counts_at_once_if_nothing_can_make_up_for_it() {
        let whole = membership(|_| {});
        let degraded = membership(|conf| conf.role_slots[0].member = None);
        let flush = || failed(&[(1, Status::IoError)]);
        assert_eq!(flush().immediate_status(&whole, false), None);
        assert_eq!(flush().immediate_status(&whole, true), Some(Status::IoError));
        assert_eq!(flush().immediate_status(&degraded, false), Some(Status::IoError));
        let cancelled = failed(&[(1, Status::IoError), (2, Status::Cancelled)]);
        assert_eq!(cancelled.immediate_status(&degraded, false), Some(Status::Cancelled));
    }

    #[test]
    fn the_others_flush_again_once_the_failure_is_on_record() {
        let flush = failed(&[(1, Status::IoError)]);
        assert_eq!(flush.retry(&membership(|_| {})), Retry::Wait);
        let without = |roles: &[usize]| {
            membership(|conf| roles.iter().for_each(|role| conf.role_slots[*role].member = None))
        };
        assert_eq!(flush.retry(&without(&[1])), Retry::Again);
        assert_eq!(flush.retry(&without(&[0])), Retry::Fail(Status::IoError), "it is needed now");
        assert_eq!(flush.retry(&without(&[0, 1])), Retry::Fail(Status::IoError), "it is broken");
    }

    #[test]
    fn tags_tell_member_and_flush() {
        assert_eq!(of_tag(tag(MemberNumber(300), 7)), (MemberNumber(300), 7));
    }
}
