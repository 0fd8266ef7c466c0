//! The throttle as one context uses it.
//!
//! Invariants:
//! * A group's bios of a direction pass in the order in which they came: while one waits, what comes
//!   after it does, too (`kept`).
//! * LocalCredits are given back when the rules change, when a bio has to wait, and when the channel goes.
//! * While bios wait the context promises to look for word of them ([`drystone_core::Env::entrusted`]),
//!   once for each.
//! * The way of a bio that finds its group's credit full touches no line that another context writes.

use crate::counts::GroupCounts;
use crate::device::DeviceThrottle;
use crate::lane::{Caller, Lane, NEVER};
use crate::limits::{Direction, charged_bytes, counted_at};
use crate::port::Port;
use crate::credit::LocalCredit;
use crate::rules::{Path, ROOT, Rules, slot_of};
use crate::throttled::{Throttle, ThrottleChannel};
use drystone_core::clock::Ns;
use drystone_core::mailbox::Message;
use drystone_core::{Bio, BioFlags, BioList, Channel, Env, Op, Status, Subscription};
use std::ops::Range;
use std::sync::Arc;

/// When a channel looks whose bios somebody else is just taking in.
const LOOK_AGAIN_NS: Ns = 1_000_000;

/// Longer bios are looked at one by one, so that sums of others do not overflow.
const LENGTH_MAX: u64 = 1 << 40;

/// A group in one direction.
struct Side {
    credit: LocalCredit,
    path: Option<Arc<Path>>,
    /// Bios that wait.
    kept: usize,
}

impl Side {
    fn new(path: Option<Arc<Path>>) -> Self {
        let credit = if path.is_none() { LocalCredit::unlimited() } else { LocalCredit::default() };
        Side { credit, path, kept: 0 }
    }

    /// False if there was nothing to give.
    fn give_back(&mut self) -> bool {
        self.path.as_ref().is_some_and(|path| self.credit.give_back(path))
    }

    /// Pay for an I/O of `bytes` that finds its credit empty. False if it has to wait.
    fn pay(&mut self, now: Ns, bytes: u64) -> bool {
        self.give_back();
        match &self.path {
            None => {
                self.credit = LocalCredit::unlimited();
                self.credit.try_spend(bytes)
            }
            Some(path) => {
                let waits = self.kept > 0 || path.meters().any(|meter| meter.is_blocked());
                !waits && self.credit.fill(path, now, bytes)
            }
        }
    }
}

/// A lane where bios of this channel wait.
struct Visited {
    lane: Arc<Lane>,
    bios: usize,
    /// Bios were brought there in this call.
    is_new: bool,
    /// When to look there if it is not known when bios may go.
    look_again: Ns,
}

impl Visited {
    fn due(&self, port: u32) -> Ns {
        match self.lane.due(port) {
            NEVER => self.look_again,
            due => due,
        }
    }
}

/// A group as this channel uses it.
struct Entry {
    group: u32,
    counts: Arc<GroupCounts>,
    sides: [Side; 2],
}

impl Entry {
    #[inline(always)]
    fn side(&mut self, bio: &Bio) -> &mut Side {
        &mut self.sides[Direction::of(bio) as usize]
    }

    #[inline(always)]
    fn count(&self, bio: &Bio) {
        self.counts.passed(counted_at(bio), bio.bytes, 1);
    }
}

/// See the module's text.
pub struct GroupChannel {
    device: Arc<DeviceThrottle>,
    port: Arc<Port>,
    rules: Subscription<Rules>,
    /// There is no group but the root.
    is_plain: bool,
    /// By slot.
    entries: Vec<Option<Box<Entry>>>,
    /// Those of groups that are no more, whose slots others have, while bios of them wait.
    former: Vec<Entry>,
    /// Lanes where bios of this channel wait, each once.
    lanes: Vec<Visited>,
    kept: usize,
    /// The context's locks, for when the channel goes.
    locks: Arc<drystone_core::sync::LockCounters>,
}

impl GroupChannel {
    fn new(device: &Arc<DeviceThrottle>, env: &mut Env, index: u32) -> Self {
        let port = device.open_port(Message::to(env.handle(), index, 0), &env.locks);
        let rules = Subscription::new(device.published_rules(), &env.locks);
        GroupChannel {
            device: device.clone(),
            port,
            is_plain: rules.is_plain(),
            rules,
            entries: Vec::new(),
            former: Vec::new(),
            lanes: Vec::new(),
            kept: 0,
            locks: env.locks.clone(),
        }
    }

    #[inline]
    fn look_at_rules(&mut self, env: &mut Env) {
        if !self.rules.is_current(self.device.published_rules()) {
            self.refresh(env);
        }
    }

    /// Take over new rules.
    #[cold]
    fn refresh(&mut self, env: &mut Env) {
        let mut given = Vec::new();
        self.rules.refresh(self.device.published_rules(), &env.locks);
        self.is_plain = self.rules.is_plain();
        self.lanes.clear();
        let mut entries = std::mem::take(&mut self.entries);
        for place in &mut entries {
            let Some(entry) = place else { continue };
            let exists = self.refresh_entry(entry, &mut given);
            if !exists && entry.sides.iter().all(|side| side.kept == 0) {
                self.device.retire(entry.group, &entry.counts);
                *place = None;
            }
        }
        self.entries = entries;
        let mut former = std::mem::take(&mut self.former);
        former.iter_mut().for_each(|entry| _ = self.refresh_entry(entry, &mut given));
        self.former = former;
        self.run_given(env, &given);
    }

    /// Whatever waits in these lanes may go earlier, because something was given back: by much, if the
    /// limit has become much less.
    fn run_given(&self, env: &mut Env, lanes: &[Arc<Lane>]) {
        let now = env.time.submit_time();
        // Not as one of those whose bios wait: what of ours may go comes by word, too.
        let mut caller =
            Caller::new(&self.device, (self.rules.epoch(), &self.rules), &self.locks, now, None);
        lanes.iter().filter(|lane| lane.has_bios()).for_each(|lane| caller.run(lane));
        tell(env, caller);
    }

    /// False if there is no such group any more. Lanes for which something was given back are `given`.
    fn refresh_entry(&mut self, entry: &mut Entry, given: &mut Vec<Arc<Lane>>) -> bool {
        let ruled = self.rules.get(entry.group).cloned();
        for direction in Direction::ALL {
            let side = &mut entry.sides[direction as usize];
            let gave = side.give_back();
            let path = ruled.as_ref().and_then(|ruled| ruled.path(direction)).cloned();
            if path.is_some() || side.kept == 0 {
                *side = Side { kept: side.kept, ..Side::new(path) };
            }
            // Else what comes goes the way of those that still wait, behind them.
            given.extend(side.path.iter().filter(|_| gave).map(|path| path.lane.clone()));
            if let Some(path) = side.path.as_ref().filter(|_| side.kept > 0) {
                visited(&mut self.lanes, &path.lane).bios += side.kept;
            }
        }
        ruled.is_some()
    }

    #[inline(always)]
    fn entry(&mut self, group: u32) -> Option<&mut Entry> {
        find(&mut self.entries, group)
    }

    /// True if all of `bios` belong together and may go as they are, paid and counted: the way of most.
    #[inline]
    fn all_pass(&mut self, device: &impl Channel, bios: &BioList) -> bool {
        let Some(first) = bios.front() else { return true };
        let (group, op) = (first.group, first.op);
        if group == ROOT {
            return bios.iter().all(|bio| bio.group == ROOT);
        }
        let Some(entry) = find(&mut self.entries, group) else { return false };
        let (whole, mut bytes) = (device.max_io_bytes().min(LENGTH_MAX), 0u64);
        let same = bios.iter().all(|bio| {
            bytes = bytes.wrapping_add(bio.bytes);
            bio.group == group && bio.op == op && bio.bytes <= whole
        });
        let side = &mut entry.sides[Direction::of(first) as usize];
        let passes = same && op.has_data() && side.credit.try_spend_all(bytes, bios.len() as u64);
        if passes {
            entry.counts.passed(counted_at(first), bytes, bios.len() as u64);
        }
        passes
    }

    /// The bios at the beginning of `bios` that may go as they are.
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

    /// Of these, those that belong together: of one group and doing the same, paid and counted at once.
    #[inline(always)]
    fn run(&mut self, device: &impl Channel, bios: &mut BioList) -> BioList {
        let Some(first) = bios.front() else { return BioList::new() };
        let (group, op) = (first.group, first.op);
        if group == ROOT || op == Op::Flush {
            return bios.take_while(|bio| bio.group == ROOT || bio.op == Op::Flush);
        }
        if op == Op::Discard {
            return BioList::new();
        }
        let at = counted_at(first);
        let direction = Direction::of(first);
        let Some(entry) = find(&mut self.entries, group) else { return BioList::new() };
        let credit = &mut entry.sides[direction as usize].credit;
        let (whole, mut bytes) = (device.max_io_bytes(), 0u64);
        let run = match credit.is_unlimited() {
            true => bios.take_while(|bio| {
                let goes = bio.group == group && bio.op == op && bio.bytes <= whole;
                bytes = if goes { bytes.wrapping_add(bio.bytes) } else { bytes };
                goes
            }),
            false => bios.take_while(|bio| {
                let same = bio.group == group && bio.op == op && bio.bytes <= whole;
                let goes = same && credit.try_spend(bio.bytes);
                bytes = if goes { bytes.wrapping_add(bio.bytes) } else { bytes };
                goes
            }),
        };
        entry.counts.passed(at, bytes, run.len() as u64);
        run
    }

    /// A bio that needs a closer look; what is left of one that is cut goes to the head of `bios`.
    #[inline(never)]
    fn look_at(
        &mut self,
        env: &mut Env,
        device: &impl Channel,
        bio: Box<Bio>,
        bios: &mut BioList,
    ) -> Option<Box<Bio>> {
        if !self.has_entry(bio.group) {
            // Of a group that is no more.
            return Some(bio);
        }
        let bio = cut(env, device, bio, bios);
        let now = env.time.submit_time();
        let entry = self.entry(bio.group).expect("it was made");
        let side = entry.side(&bio);
        let bytes = charged_bytes(&bio);
        if side.credit.try_spend(bytes) || side.pay(now, bytes) {
            entry.count(&bio);
            return Some(bio);
        }
        if bio.flags.contains(BioFlags::NOWAIT) {
            env.end_with(bio, Status::Again);
            return None;
        }
        self.keep(env, bio, now);
        None
    }

    /// Make an entry for `group` if there is none. False if there is no such group.
    fn has_entry(&mut self, group: u32) -> bool {
        if self.entry(group).is_some() {
            return true;
        }
        let Some(ruled) = self.rules.get(group).cloned() else { return false };
        let slot = slot_of(group);
        if self.entries.len() <= slot {
            self.entries.resize_with(slot + 1, || None);
        }
        if let Some(entry) = self.entries[slot].take() {
            self.former.push(*entry);
            self.free_former();
        }
        let counts = self.device.counts(group);
        let sides = Direction::ALL.map(|direction| Side::new(ruled.path(direction).cloned()));
        self.entries[slot] = Some(Box::new(Entry { group, counts, sides }));
        true
    }

    /// Forget the groups that are no more and of which nothing waits any more.
    fn free_former(&mut self) {
        let is_over = |entry: &mut Entry| entry.sides.iter().all(|side| side.kept == 0);
        for mut entry in self.former.extract_if(.., is_over) {
            entry.sides.iter_mut().for_each(|side| _ = side.give_back());
            self.device.retire(entry.group, &entry.counts);
        }
    }

    /// Let `bio` wait.
    fn keep(&mut self, env: &mut Env, mut bio: Box<Bio>, now: Ns) {
        bio.stamp(now);
        bio.home = self.port.index();
        let entry = self.entry(bio.group).expect("it was looked at");
        let side = entry.side(&bio);
        side.give_back();
        side.kept += 1;
        let lane = side.path.as_ref().expect("something limits it").lane.clone();
        self.kept += 1;
        env.entrusted += 1;
        let mut one = BioList::new();
        one.push(bio);
        lane.publish(&self.locks, &mut one);
        let visited = visited(&mut self.lanes, &lane);
        visited.bios += 1;
        visited.is_new = true;
    }

    /// Have done what is to be done at the lanes that `wants` says; what may go comes to `pass`.
    fn run_lanes(
        &mut self,
        env: &mut Env,
        now: Ns,
        pass: &mut BioList,
        wants: impl Fn(&Visited) -> bool,
    ) {
        let me = Some(self.port.index());
        let mut caller =
            Caller::new(&self.device, (self.rules.epoch(), &self.rules), &self.locks, now, me);
        for visited in self.lanes.iter_mut().filter(|visited| wants(visited)) {
            caller.run(&visited.lane);
            visited.is_new = false;
            visited.look_again = now.saturating_add(LOOK_AGAIN_NS);
        }
        tell(env, caller);
        self.take_granted(env, pass);
    }

    /// Take the bios of this channel that may go.
    fn take_granted(&mut self, env: &mut Env, pass: &mut BioList) {
        let mut granted = self.port.granted.take();
        let count = granted.len();
        while let Some(bio) = granted.pop() {
            let entry = self.take_back(&bio);
            if env.is_draining() {
                env.end_with(bio, Status::Cancelled);
            } else {
                entry.count(&bio);
                pass.push(bio);
            }
        }
        self.kept -= count;
        env.entrusted -= count;
        self.lanes.retain(|visited| visited.bios > 0);
        if !self.former.is_empty() {
            self.free_former();
        }
    }

    /// `bio` waits no more. Its entry.
    fn take_back(&mut self, bio: &Bio) -> &mut Entry {
        let former = self.former.iter_mut().find(|entry| entry.group == bio.group);
        let entry = former.or_else(|| find(&mut self.entries, bio.group));
        let entry = entry.expect("it stays while bios of it wait");
        let side = entry.side(bio);
        let lane = &side.path.as_ref().expect("something limited it").lane;
        visited(&mut self.lanes, lane).bios -= 1;
        side.kept -= 1;
        if side.kept == 0 && self.rules.path(bio.group, Direction::of(bio)).is_none() {
            *side = Side::new(None);
        }
        entry
    }
}

#[inline(always)]
fn find(entries: &mut [Option<Box<Entry>>], group: u32) -> Option<&mut Entry> {
    let entry = entries.get_mut(slot_of(group))?.as_deref_mut()?;
    (entry.group == group).then_some(entry)
}

fn tell(env: &mut Env, caller: Caller<'_>) {
    for port in caller.told {
        env.notify_lazily(port.doorbell().clone());
    }
}

/// What is known of `lane` in `lanes`.
fn visited<'a>(lanes: &'a mut Vec<Visited>, lane: &Arc<Lane>) -> &'a mut Visited {
    let known = lanes.iter().position(|visited| Arc::ptr_eq(&visited.lane, lane));
    let at = known.unwrap_or_else(|| {
        lanes.push(Visited { lane: lane.clone(), bios: 0, is_new: false, look_again: 0 });
        lanes.len() - 1
    });
    &mut lanes[at]
}

/// The part of `bio` that the device takes at once; what is left goes to the head of `rest`. A bio
/// that the device will refuse stays as it is.
fn cut(env: &mut Env, device: &impl Channel, bio: Box<Bio>, rest: &mut BioList) -> Box<Bio> {
    let bytes = device.first_part(&bio);
    if bytes == 0 || bytes >= bio.bytes || bio.flags.contains(BioFlags::NOWAIT) {
        return bio;
    }
    let (front, left) = env.split(bio, bytes);
    rest.push_front(left);
    front
}

/// Groups as cgroup v2 has them: the product's own.
impl Throttle for DeviceThrottle {
    type Channel = GroupChannel;

    fn over(device: Arc<DeviceThrottle>) -> Arc<Self> {
        device
    }

    fn open(self: &Arc<Self>, env: &mut Env, index: u32) -> GroupChannel {
        GroupChannel::new(self, env, index)
    }
}

impl ThrottleChannel for GroupChannel {
    #[inline]
    fn admit(&mut self, env: &mut Env, device: &mut impl Channel, bios: &mut BioList) {
        self.look_at_rules(env);
        if self.is_plain {
            return;
        }
        // By these they are measured and cut here.
        device.follow_limits(env);
        if self.kept > 0 {
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
        self.look_at_rules(env);
        self.take_granted(env, pass);
        true
    }

    fn deadline(&self) -> Option<Ns> {
        self.lanes.iter().map(|visited| visited.due(self.port.index())).min()
    }

    fn tick(&mut self, env: &mut Env, now: Ns, pass: &mut BioList) {
        if self.deadline().is_some_and(|due| due <= now) {
            let me = self.port.index();
            self.run_lanes(env, now, pass, |visited| visited.due(me) <= now);
        }
    }

    fn waiting(&self) -> usize {
        self.kept
    }

    fn cancel(&mut self, env: &mut Env) {
        if self.kept == 0 {
            return;
        }
        // Whoever moves bios to a lane that is not known here yet finds this there.
        self.port.set_gone();
        self.look_at_rules(env);
        self.lanes.iter().for_each(|visited| visited.lane.purge());
        let now = env.time.submit_time();
        self.run_lanes(env, now, &mut BioList::new(), |_| true);
    }

    fn withdraw(&mut self, env: &mut Env, range: &Range<u64>, pass: &mut BioList) {
        if self.kept == 0 {
            return;
        }
        let now = env.time.submit_time();
        self.take_out(env, now, range);
        while !self.rules.is_current(self.device.published_rules()) {
            // Some may have moved to lanes that were not known here.
            self.refresh(env);
            self.take_out(env, now, range);
        }
        self.take_granted(env, pass);
    }

    fn is_over(&mut self) -> bool {
        self.lanes.clear();
        self.device.close_port(&self.port, &self.locks);
        self.kept == 0 && Port::is_ours_alone(&mut self.port)
    }
}

impl GroupChannel {
    /// End the bios that wait in the lanes known here and have `user_data` in `range`.
    fn take_out(&mut self, env: &mut Env, now: Ns, range: &Range<u64>) {
        let me = self.port.index();
        let mut caller = Caller::new(
            &self.device,
            (self.rules.epoch(), &self.rules),
            &self.locks,
            now,
            Some(me),
        );
        let is_one = |bio: &Bio| bio.home == me && range.contains(&bio.user_data);
        let mut bios = BioList::new();
        for visited in &self.lanes {
            bios.append(&mut visited.lane.take_out(&mut caller, is_one));
            // Whoever found the turn taken meanwhile relies on us.
            caller.run(&visited.lane);
        }
        tell(env, caller);
        self.kept -= bios.len();
        env.entrusted -= bios.len();
        while let Some(bio) = bios.pop() {
            self.take_back(&bio);
            env.end_with(bio, Status::Cancelled);
        }
    }

    /// Some wait: what may go by now goes first.
    #[inline(never)]
    fn admit_behind(&mut self, env: &mut Env, device: &impl Channel, bios: &mut BioList) {
        let mut pass = BioList::new();
        self.take_granted(env, &mut pass);
        self.admit_rest(env, device, bios);
        bios.prepend(&mut pass);
    }

    #[inline(never)]
    fn admit_rest(&mut self, env: &mut Env, device: &impl Channel, bios: &mut BioList) {
        let before = self.kept;
        let mut pass = self.pass(device, bios);
        while let Some(bio) = bios.pop() {
            if let Some(bio) = self.look_at(env, device, bio, bios) {
                pass.push(bio);
            }
            pass.append(&mut self.pass(device, bios));
        }
        if self.kept > before {
            let now = env.time.submit_time();
            self.run_lanes(env, now, &mut pass, |visited| visited.is_new);
        }
        bios.append(&mut pass);
    }
}

impl Drop for GroupChannel {
    fn drop(&mut self) {
        debug_assert!(self.kept == 0 || std::thread::panicking());
        let entries = self.entries.iter_mut().flatten().map(|entry| &mut **entry);
        for entry in entries.chain(&mut self.former) {
            entry.sides.iter_mut().for_each(|side| _ = side.give_back());
            self.device.retire(entry.group, &entry.counts);
        }
        self.device.close_port(&self.port, &self.locks);
    }
}
