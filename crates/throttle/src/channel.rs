//! The throttle as one context uses it. Its state of groups is in [`entries`], of lanes in
//! [`visited`].
//!
//! Invariants:
//! * A group's bios of one direction pass in their order of arrival: while one waits, later ones
//!   wait too.
//! * The context expects a message for each bio that waits
//!   ([`drystone_core::Env::expected_remote`]).
//! * A bio that finds credit of its group touches no cache line that another context writes.

mod entries;
#[cfg(all(test, not(loom)))]
mod testing;
mod visited;

use self::entries::Entries;
use self::visited::Visited;
use crate::device::DeviceThrottle;
use crate::dispatcher::Dispatcher;
use crate::group::GroupId;
use crate::lane::Lane;
use crate::limits::{Direction, charged_bytes, counted_at};
use crate::port::Port;
use crate::rules::Rules;
use crate::throttled::{Throttle, ThrottleChannel};
use drystone_core::clock::Ns;
use drystone_core::mailbox::Message;
use drystone_core::{Bio, BioFlags, BioList, Channel, ChannelId, Env, Op, Status, Subscription};
use std::ops::Range;
use std::sync::Arc;

/// Longer bios are admitted one by one, so that sums of bytes do not overflow.
const LENGTH_MAX: u64 = 1 << 40;

/// See the module's text.
pub struct GroupChannel {
    device: Arc<DeviceThrottle>,
    port: Arc<Port>,
    rules: Subscription<Rules>,
    /// The root is the only group.
    is_plain: bool,
    entries: Entries,
    visited: Visited,
    /// The number of bios that wait.
    waiting: usize,
    /// The context's lock counters, for when the channel is dropped.
    locks: Arc<drystone_core::sync::LockCounters>,
}

impl GroupChannel {
    fn new(device: &Arc<DeviceThrottle>, env: &mut Env, id: ChannelId) -> Self {
        let port = device.shared().open_port(Message::to(env.handle(), id, 0), &env.locks);
        let rules = Subscription::new(device.shared().published_rules(), &env.locks);
        GroupChannel {
            device: device.clone(),
            port,
            is_plain: rules.is_plain(),
            rules,
            entries: Entries::default(),
            visited: Visited::default(),
            waiting: 0,
            locks: env.locks.clone(),
        }
    }

    #[inline]
    fn follow_rules(&mut self, env: &mut Env) {
        if !self.rules.is_current(self.device.shared().published_rules()) {
            self.refresh(env);
        }
    }

    /// Take over new rules.
    #[cold]
    fn refresh(&mut self, env: &mut Env) {
        self.rules.refresh(self.device.shared().published_rules(), &env.locks);
        self.is_plain = self.rules.is_plain();
        self.visited.clear();
        let given = self.entries.refresh(&self.rules, &self.device, &mut self.visited);
        self.run_given(env, &given);
    }

    /// Run these lanes: their bios may go earlier because credit was given back, much earlier if
    /// the limit has become much lower.
    fn run_given(&self, env: &mut Env, lanes: &[Arc<Lane>]) {
        let now = env.time.submit_time();
        // The dispatcher runs as no channel, so that the doorbell rings for this channel's own bios
        // too.
        let mut dispatcher = Dispatcher::new(
            self.device.shared(),
            (self.rules.epoch(), &self.rules),
            &self.locks,
            now,
            None,
        );
        lanes.iter().filter(|lane| lane.has_bios()).for_each(|lane| dispatcher.run(lane));
        tell(env, dispatcher);
    }

    /// True if all of `bios` are alike and may go as they are; they are paid and counted then. This
    /// is the fast path.
    #[inline]
    fn all_pass(&mut self, device: &impl Channel, bios: &BioList) -> bool {
        let Some(first) = bios.front() else { return true };
        let (group, op) = (GroupId::of(first), first.op);
        if group == GroupId::ROOT {
            return bios.iter().all(|bio| GroupId::of(bio) == GroupId::ROOT);
        }
        let Some(entry) = self.entries.find(group) else { return false };
        let (whole, mut bytes) = (device.max_io_bytes().min(LENGTH_MAX), 0u64);
        let same = bios.iter().all(|bio| {
            bytes = bytes.wrapping_add(bio.bytes);
            GroupId::of(bio) == group && bio.op == op && bio.bytes <= whole
        });
        let (credit, counts) = entry.credit(Direction::of(first));
        let passes = same && op.has_data() && credit.try_spend_all(bytes, bios.len() as u64);
        if passes {
            counts.passed(counted_at(first), bytes, bios.len() as u64);
        }
        passes
    }

    /// Take the first of `bios` that may go as they are.
    #[inline]
    fn pass(&mut self, device: &impl Channel, bios: &mut BioList) -> BioList {
        let mut pass = self.run(device, bios);
        while !pass.is_empty() && !bios.is_empty() {
            let mut run = self.run(device, bios);
            if run.is_empty() {
                break;
            }
            pass.append(&mut run);
        }
        pass
    }

    /// Take the first bios of one group and operation that may go, paid and counted at once.
    #[inline(always)]
    fn run(&mut self, device: &impl Channel, bios: &mut BioList) -> BioList {
        let Some(first) = bios.front() else { return BioList::new() };
        let (group, op) = (GroupId::of(first), first.op);
        if group == GroupId::ROOT || op == Op::Flush {
            return bios.take_while(|bio| GroupId::of(bio) == GroupId::ROOT || bio.op == Op::Flush);
        }
        if op == Op::Discard {
            return BioList::new();
        }
        let at = counted_at(first);
        let direction = Direction::of(first);
        let Some(entry) = self.entries.find(group) else { return BioList::new() };
        let (credit, counts) = entry.credit(direction);
        let (whole, mut bytes) = (device.max_io_bytes(), 0u64);
        let run = match credit.is_unlimited() {
            true => bios.take_while(|bio| {
                let goes = GroupId::of(bio) == group && bio.op == op && bio.bytes <= whole;
                bytes = if goes { bytes.wrapping_add(bio.bytes) } else { bytes };
                goes
            }),
            false => bios.take_while(|bio| {
                let same = GroupId::of(bio) == group && bio.op == op && bio.bytes <= whole;
                let goes = same && credit.try_spend(bio.bytes);
                bytes = if goes { bytes.wrapping_add(bio.bytes) } else { bytes };
                goes
            }),
        };
        counts.passed(at, bytes, run.len() as u64);
        run
    }

    /// Admit one bio, by credit or at the limits. The bio is first cut to the size that the device
    /// takes; the rest goes to the head of `bios`. `None` if the bio waits or has ended.
    #[inline(never)]
    fn admit_one(
        &mut self,
        env: &mut Env,
        device: &impl Channel,
        bio: Box<Bio>,
        bios: &mut BioList,
    ) -> Option<Box<Bio>> {
        let entry = self.entries.find_or_make(GroupId::of(&bio), &self.rules, &self.device);
        // The group may have been removed.
        let Some(entry) = entry else { return Some(bio) };
        let bio = cut(env, device, bio, bios);
        let now = env.time.submit_time();
        if entry.pay(Direction::of(&bio), now, charged_bytes(&bio)) {
            entry.count(&bio);
            return Some(bio);
        }
        if bio.flags.contains(BioFlags::NOWAIT) {
            env.end_with(bio, Status::Again);
            return None;
        }
        self.queue(env, bio, now);
        None
    }

    /// Let `bio` wait.
    fn queue(&mut self, env: &mut Env, mut bio: Box<Bio>, now: Ns) {
        bio.stamp(now);
        bio.port = self.port.id();
        let entry = self.entries.find(GroupId::of(&bio)).expect("it was found before");
        let lane = entry.begin_waiting(Direction::of(&bio));
        self.waiting += 1;
        env.expected_remote += 1;
        let mut one = BioList::new();
        one.push(bio);
        lane.publish(&self.locks, &mut one);
        self.visited.add_new(&lane);
    }

    /// Run lanes by `run`. Bios that may go are added to `pass`.
    fn run_lanes(
        &mut self,
        env: &mut Env,
        now: Ns,
        pass: &mut BioList,
        run: impl FnOnce(&mut Visited, &mut Dispatcher<'_>),
    ) {
        let me = Some(self.port.id());
        let mut dispatcher = Dispatcher::new(
            self.device.shared(),
            (self.rules.epoch(), &self.rules),
            &self.locks,
            now,
            me,
        );
        run(&mut self.visited, &mut dispatcher);
        tell(env, dispatcher);
        self.take_granted(env, pass);
    }

    /// Take the bios of this channel that may go.
    fn take_granted(&mut self, env: &mut Env, pass: &mut BioList) {
        let mut granted = self.port.granted.take();
        let count = granted.len();
        while let Some(bio) = granted.pop() {
            let entry = self.entries.end_waiting(&bio, &self.rules, &mut self.visited);
            if env.is_draining() {
                env.end_with(bio, Status::Cancelled);
            } else {
                entry.count(&bio);
                pass.push(bio);
            }
        }
        self.waiting -= count;
        env.expected_remote -= count;
        self.visited.drop_idle();
        self.entries.retire_former(&self.device);
    }
}

fn tell(env: &mut Env, dispatcher: Dispatcher<'_>) {
    for port in dispatcher.into_told() {
        env.notify_lazily(port.doorbell().clone());
    }
}

/// Cut `bio` to the part that the device takes at once; the rest goes to the head of `rest`. A bio
/// that the device will refuse is not cut.
fn cut(env: &mut Env, device: &impl Channel, bio: Box<Bio>, rest: &mut BioList) -> Box<Bio> {
    let bytes = device.first_part(&bio);
    if bytes == 0 || bytes >= bio.bytes || bio.flags.contains(BioFlags::NOWAIT) {
        return bio;
    }
    let (front, left) = env.split(bio, bytes);
    rest.push_front(left);
    front
}

/// Groups as in cgroup v2, the throttle of the product.
impl Throttle for DeviceThrottle {
    type Channel = GroupChannel;

    fn over(device: Arc<DeviceThrottle>) -> Arc<Self> {
        device
    }

    fn open(self: &Arc<Self>, env: &mut Env, id: ChannelId) -> GroupChannel {
        GroupChannel::new(self, env, id)
    }
}

impl ThrottleChannel for GroupChannel {
    #[inline]
    fn admit(&mut self, env: &mut Env, device: &mut impl Channel, bios: &mut BioList) {
        self.follow_rules(env);
        if self.is_plain {
            return;
        }
        // The device's limits decide how bios are measured and cut here.
        device.follow_limits(env);
        if self.waiting > 0 {
            return self.admit_behind(env, device, bios);
        }
        if !self.all_pass(device, bios) {
            self.admit_rest(env, device, bios);
        }
    }

    fn message(&mut self, env: &mut Env, message: &Arc<Message>, pass: &mut BioList) -> bool {
        if !Arc::ptr_eq(message, self.port.doorbell()) {
            return false;
        }
        self.follow_rules(env);
        self.take_granted(env, pass);
        true
    }

    fn deadline(&self) -> Option<Ns> {
        self.visited.due(self.port.id())
    }

    fn tick(&mut self, env: &mut Env, now: Ns, pass: &mut BioList) {
        if self.deadline().is_some_and(|due| due <= now) {
            let me = self.port.id();
            self.run_lanes(env, now, pass, |visited, dispatcher| visited.run_due(dispatcher, me));
        }
    }

    fn waiting(&self) -> usize {
        self.waiting
    }

    fn cancel(&mut self, env: &mut Env) {
        if self.waiting == 0 {
            return;
        }
        // A thread may be moving bios to a lane that this channel does not know yet. It checks this
        // flag there.
        self.port.set_gone();
        self.follow_rules(env);
        let now = env.time.submit_time();
        self.run_lanes(env, now, &mut BioList::new(), Visited::purge);
    }

    fn withdraw(&mut self, env: &mut Env, range: &Range<u64>, pass: &mut BioList) {
        if self.waiting == 0 {
            return;
        }
        let now = env.time.submit_time();
        self.take_out(env, now, range);
        while !self.rules.is_current(self.device.shared().published_rules()) {
            // Some bios may have moved to lanes that this channel does not know yet.
            self.refresh(env);
            self.take_out(env, now, range);
        }
        self.take_granted(env, pass);
    }

    fn try_end(&mut self) -> bool {
        self.visited.clear();
        self.device.shared().close_port(&self.port, &self.locks);
        self.waiting == 0 && Port::is_ours_alone(&mut self.port)
    }
}

impl GroupChannel {
    /// End the bios that wait in lanes known to the channel and have `user_data` in `range`.
    fn take_out(&mut self, env: &mut Env, now: Ns, range: &Range<u64>) {
        let me = self.port.id();
        let mut dispatcher = Dispatcher::new(
            self.device.shared(),
            (self.rules.epoch(), &self.rules),
            &self.locks,
            now,
            Some(me),
        );
        let is_one = |bio: &Bio| bio.port == me && range.contains(&bio.user_data);
        let mut bios = self.visited.take_out(&mut dispatcher, is_one);
        tell(env, dispatcher);
        self.waiting -= bios.len();
        env.expected_remote -= bios.len();
        while let Some(bio) = bios.pop() {
            self.entries.end_waiting(&bio, &self.rules, &mut self.visited);
            env.end_with(bio, Status::Cancelled);
        }
    }

    /// Admit bios while others wait: the waiting bios that may go by now go first.
    #[inline(never)]
    fn admit_behind(&mut self, env: &mut Env, device: &impl Channel, bios: &mut BioList) {
        let mut pass = BioList::new();
        self.take_granted(env, &mut pass);
        self.admit_rest(env, device, bios);
        bios.prepend(&mut pass);
    }

    #[inline(never)]
    fn admit_rest(&mut self, env: &mut Env, device: &impl Channel, bios: &mut BioList) {
        let before = self.waiting;
        let mut pass = self.pass(device, bios);
        while let Some(bio) = bios.pop() {
            if let Some(bio) = self.admit_one(env, device, bio, bios) {
                pass.push(bio);
            }
            pass.append(&mut self.pass(device, bios));
        }
        if self.waiting > before {
            let now = env.time.submit_time();
            self.run_lanes(env, now, &mut pass, Visited::run_new);
        }
        bios.append(&mut pass);
    }
}

impl Drop for GroupChannel {
    fn drop(&mut self) {
        debug_assert!(self.waiting == 0 || std::thread::panicking());
        self.entries.retire_all(&self.device);
        self.device.shared().close_port(&self.port, &self.locks);
    }
}
