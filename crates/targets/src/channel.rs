//! A volume as one context uses it: bios are moved or divided, and sent on to the members.
//!
//! Invariants:
//! * A bio that the volume let pass carries its channel in its trail, so it counts as in flight
//!   here until it ends ([`Env::remapped_in_flight`]), whatever it was divided into.
//! * `members` are the context's channels of the live table's members.
//! * While the volume is suspended bios are kept, in the order in which they came, and nothing new
//!   passes; what passed before goes on by the table that it passed by.
//! * Nothing here is shared with other contexts but what is published.

mod delay;
mod flakey;
mod hooked;
mod log_writes;
mod route;

use self::delay::Delays;
use self::hooked::Hooked;
use self::log_writes::Logging;
use crate::flakey::Random;
use crate::table::{Table, To};
use crate::volume::{Live, Port, Shared};
use drystone_core::check::{check, is_plain};
use drystone_core::clock::Ns;
use drystone_core::context::RemappedDone;
use drystone_core::mailbox::Message;
use drystone_core::stats::{ChannelStats, StartedCounts};
use drystone_core::{
    Bio, BioFlags, BioList, Channel, Env, SECTOR_SIZE, Sector, Status, Subscription,
};
use std::cell::RefCell;
use std::sync::Arc;

/// One context's way into a volume. On cache lines of its own.
#[repr(align(128))]
pub struct VolumeChannel {
    shared: Arc<Shared>,
    port: Arc<Port>,
    index: u32,
    live: Subscription<Live>,
    members: Vec<u32>,
    /// What waits for `delay` segments of the live table. In a cell, as the next one, because the
    /// table is borrowed meanwhile; only one thread is inside.
    delays: RefCell<Delays>,
    /// The random numbers of the live table's `flakey` segments.
    randoms: RefCell<Vec<Random>>,
    /// What is on its way through `log-writes` segments.
    logging: RefCell<Logging>,
    /// Flags that a bio must not have to go the short way.
    special: BioFlags,
    /// Bios that came while the volume was suspended.
    kept: BioList,
    stats: Arc<ChannelStats>,
    /// Bios that passed in this call, by group.
    started: StartedCounts,
}

impl VolumeChannel {
    pub(crate) fn new(shared: Arc<Shared>, env: &mut Env, index: u32) -> Self {
        // First the port, then the look: a suspension between the two finds the port.
        let port = shared.open_port(Message::to(env.handle(), index, 0));
        let live = Subscription::new(&shared.live, &env.locks);
        let stats = shared.stats.for_channel();
        let mut channel = VolumeChannel {
            shared,
            port,
            index,
            live,
            members: Vec::new(),
            delays: RefCell::default(),
            randoms: RefCell::default(),
            logging: RefCell::default(),
            special: BioFlags::empty(),
            kept: BioList::new(),
            stats,
            started: StartedCounts::default(),
        };
        channel.go_by_live(env, true);
        channel
    }

    #[inline]
    fn refresh(&mut self, env: &mut Env) {
        if !self.live.is_current(&self.shared.live) {
            self.refresh_live(env);
        }
    }

    /// Take over what was published.
    #[cold]
    fn refresh_live(&mut self, env: &mut Env) {
        let live = Subscription::new(&self.shared.live, &env.locks);
        if live.closed {
            // What was let through goes on, by the table that it was let through by.
            self.send_due(env, Ns::MAX);
        }
        let former = std::mem::replace(&mut self.live, live);
        let is_same = is_same(former.table.as_deref(), self.live.table.as_deref());
        self.go_by_live(env, !is_same);
    }

    /// Go by what is published, whose table may be a new one.
    fn go_by_live(&mut self, env: &mut Env, is_new: bool) {
        let table = self.live.table.as_deref();
        if is_new {
            debug_assert_eq!(self.delays.get_mut().len(), 0, "tables are swapped in quiet volumes");
            self.delays = table.map(Delays::new).unwrap_or_default().into();
            let randoms = table.map(|table| flakey::randoms(table, env.context_id()));
            self.randoms = randoms.unwrap_or_default().into();
        }
        let members = table.map(Table::members).unwrap_or_default();
        self.members = members.iter().map(|device| env.channel_of(device)).collect();
        self.special = match self.live.io_poll {
            true => BioFlags::PREFLUSH,
            false => BioFlags::PREFLUSH | BioFlags::POLLED,
        };
        if self.live.suspended {
            self.send_due(env, Ns::MAX);
            self.report(env);
        } else {
            self.release(env);
        }
    }

    /// Tell whoever suspends the volume once nothing is in flight.
    fn report(&self, env: &mut Env) {
        if self.live.suspended {
            self.port.quiesced.report(self.live.epoch(), env.remapped_in_flight(self.index));
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
        self.started.publish(self.live.iostats.then_some(&*self.stats));
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
                    self.started.add(bio.op.group(), 1);
                    let passed = bio.begin_remap(self.index);
                    debug_assert!(passed, "it was looked at before");
                    bio.sector = Sector(sector);
                    env.send_down(self.members[member as usize], bio);
                }
                Way::Divide => {
                    bio.stamp(now);
                    self.started.add(bio.op.group(), 1);
                    let bio = env.begin_remap(bio, self.index);
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
        env.count_remapped(self.index, moved);
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
            if !plain || !bio.begin_remap(index) {
                return false;
            }
            started.add(bio.op.group(), 1);
            bio.sector = Sector(bio.sector.0.wrapping_add(add));
            true
        });
        env.count_remapped(index, run.len());
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
            if bio.bytes > place.left * SECTOR_SIZE || !bio.begin_remap(self.index) {
                break;
            }
            self.started.add(bio.op.group(), 1);
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
        self.started.add(bio.op.group(), 1);
        Some(env.begin_remap(bio, self.index))
    }

    /// The live table: that of all bios that passed.
    #[inline]
    fn table(&self) -> Option<&Table> {
        self.live.table.as_deref()
    }
}

fn is_same(a: Option<&Table>, b: Option<&Table>) -> bool {
    a.map(std::ptr::from_ref) == b.map(std::ptr::from_ref)
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
    if !is_plain(bio, &live.limits, live.size_bytes, special) || bio.is_trail_full() {
        return Way::Slow;
    }
    let (to, sector, bytes) = table.piece(bio.sector.0);
    match to {
        To::Member(member) if bio.bytes <= bytes => Way::Move(member, sector),
        _ if bio.flags.contains(BioFlags::NOWAIT) => Way::Slow,
        _ => Way::Divide,
    }
}

impl Channel for VolumeChannel {
    #[inline]
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        self.refresh(env);
        let now = env.time.submit_time();
        self.shared.stats.busy.update(now, false, env.remapped_in_flight(self.index) > 0);
        if self.live.suspended {
            return self.keep(env, bios, now);
        }
        self.take(env, bios, now);
        self.publish_started();
    }

    #[inline]
    fn remapped_done(&mut self, env: &mut Env, done: &[RemappedDone]) {
        let now = env.time.completion_time();
        if self.live.iostats {
            for run in done {
                let latency = now.saturating_sub(run.start_ns);
                self.stats.ended(run.group, run.count, run.bytes, latency);
            }
        }
        self.shared.stats.busy.update(now, true, env.remapped_in_flight(self.index) > 0);
        self.report(env);
    }

    fn returned(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(bio) = bios.pop() {
            match Hooked::of(&bio) {
                Hooked::FlushFirst => self.flushed(env, bio),
                Hooked::Flakey(number) => self.corrupted(env, number, bio),
                Hooked::Logged(place) => self.logged(env, place, bio),
                Hooked::LogWrite(place) => self.log_written(env, place, bio),
            }
        }
    }

    fn message(&mut self, env: &mut Env, _message: Arc<Message>) {
        self.refresh(env);
        self.go_on_logging(env);
        self.report(env);
    }

    /// What waits for a log may wait for a write of another context, whose owner is away: then its
    /// ring is watched.
    fn waits_on_peer(&self) -> bool {
        self.logging.borrow().waiting() > 0
    }

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn is_over(&mut self) -> bool {
        if !self.live.closed {
            return false;
        }
        self.shared.close_port(&self.port);
        Port::is_ours_alone(&mut self.port)
    }

    fn deadline(&self) -> Option<Ns> {
        self.delays.borrow().due()
    }

    fn tick(&mut self, env: &mut Env, now: Ns) {
        self.send_due(env, now);
    }

    fn in_flight(&self) -> usize {
        self.kept.len() + self.delays.borrow().len() + self.logging.borrow().waiting()
    }

    fn cancel_pending(&mut self, env: &mut Env) {
        let mut kept = self.kept.take();
        while let Some(bio) = kept.pop() {
            env.end_with(bio, Status::Cancelled);
        }
        self.cancel_waiting(env);
    }
}

impl Drop for VolumeChannel {
    fn drop(&mut self) {
        self.shared.close_port(&self.port);
    }
}
