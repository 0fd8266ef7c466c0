//! Flushes of an array: of all members at once.
//!
//! Invariants:
//! * A flush succeeds only when all members have flushed that it could be read from after a power cut:
//!   those that could not are on record as failed before, and the others flush again after that.
//! * A member that cannot flush is a fault of the array only if parity does not make up for it.

use super::ArrayChannel;
use crate::engine::conf::{Conf, Member};
use crate::engine::shard::{Fault, Report};
use crate::ids::MemberNumber;
use drystone_core::{Bio, BioFlags, Env, Op, Status};

/// A flush, or a write after one, that waits for the members.
pub(super) struct Flushing {
    left: usize,
    failed: Failed,
    part: Box<Bio>,
}

/// md's numbers of members that could not flush, and how they failed.
type Failed = Vec<(MemberNumber, Status)>;

/// What waits until members are on record that could not flush.
pub(super) struct Unflushed {
    failed: Failed,
    pub(super) part: Box<Bio>,
}

impl ArrayChannel {
    /// All members flush; when they have, the bio goes on: a flush ends, a write is written.
    pub(super) fn flush(&mut self, env: &mut Env, bio: Box<Bio>) {
        let mut parts = env.divide(bio);
        let bytes = parts.left();
        let mut part = parts.next(env, bytes);
        part.flags.remove(BioFlags::PREFLUSH);
        if self.members.is_empty() {
            env.end_with(part, Status::IoError);
            return env.divided(parts);
        }
        let left = self.members.len();
        let number = self.flushing.insert(Flushing { left, failed: Vec::new(), part });
        for (at, channel) in self.by_role.iter().enumerate() {
            let Some(member) = member_at(&self.conf, at).filter(|_| *channel != u32::MAX) else {
                continue;
            };
            let mut flush = parts.flush(env);
            flush.user_data = u64::from(member.number.0) << 32 | u64::from(number);
            flush.set_end_io(self.index);
            env.send_down(*channel, flush);
        }
        env.divided(parts);
    }

    /// A member has flushed, or not.
    pub(super) fn flushed(&mut self, env: &mut Env, mut bio: Box<Bio>) {
        let (member, number) = (MemberNumber((bio.user_data >> 32) as u32), bio.user_data as u32);
        let status = std::mem::replace(&mut bio.status, Status::Ok);
        env.end_bio(bio);
        let flushing = self.flushing.get_mut(number);
        flushing.left -= 1;
        if !status.is_ok() {
            flushing.failed.push((member, status));
        }
        if flushing.left > 0 {
            return;
        }
        let Some(Flushing { failed, part, .. }) = self.flushing.remove(number) else { return };
        match failed.is_empty() {
            true => self.after_flush(env, part),
            false => self.flush_failed(env, failed, part),
        }
    }

    fn after_flush(&mut self, env: &mut Env, part: Box<Bio>) {
        match part.op {
            Op::Flush => env.end_bio(part),
            _ => self.bring(env, part),
        }
    }

    /// Have those put on record that could not flush; or fail, if they cannot be done without.
    #[cold]
    fn flush_failed(&mut self, env: &mut Env, failed: Failed, part: Box<Bio>) {
        let cancelled = failed.iter().find(|(_, status)| *status == Status::Cancelled);
        let needed = failed.iter().find(|(number, _)| is_needed(&self.conf, *number));
        let is_final = self.conf.limits.read_only || env.is_draining();
        if let Some((_, status)) = cancelled.or(needed).or(failed.first().filter(|_| is_final)) {
            return env.end_with(part, *status);
        }
        let report = |(number, _): &(MemberNumber, Status)| Report {
            number: *number,
            sector: 0,
            fault: Fault::Flush,
        };
        let mut reports = failed.iter().map(report).collect();
        self.unflushed.push(Unflushed { failed, part });
        self.shared.report(&mut reports);
    }

    /// The configuration has changed: who waited for a member's failure to be on record flushes the
    /// others again.
    pub(super) fn flush_again(&mut self, env: &mut Env) {
        for Unflushed { failed, part } in std::mem::take(&mut self.unflushed) {
            let is_there = |(number, _): &&(MemberNumber, Status)| {
                member_by_number(&self.conf, *number).is_some()
            };
            match failed.iter().find(is_there) {
                None if self.conf.is_broken => env.end_with(part, Status::IoError),
                None => self.flush(env, part),
                Some((_, status)) if failed.iter().any(|(n, _)| is_needed(&self.conf, *n)) => {
                    env.end_with(part, *status);
                }
                Some(_) => self.unflushed.push(Unflushed { failed, part }),
            }
        }
    }
}

/// The member at a place of `by_role`: members by role, then replacements.
fn member_at(conf: &Conf, at: usize) -> Option<&Member> {
    let role_slots = &conf.role_slots;
    match at.checked_sub(role_slots.len()) {
        None => role_slots[at].member.as_ref(),
        Some(at) => role_slots[at].replacement.as_ref(),
    }
}

fn member_by_number(conf: &Conf, number: MemberNumber) -> Option<&Member> {
    let all = (0..2 * conf.role_slots.len()).filter_map(|at| member_at(conf, at));
    all.into_iter().find(|member| member.number == number)
}

/// Without it more would be lost than parity makes up for.
fn is_needed(conf: &Conf, number: MemberNumber) -> bool {
    let is_in_sync = member_by_number(conf, number).is_some_and(Member::is_in_sync);
    is_in_sync && conf.lost().len() >= conf.layout.level().parity_disks()
}
