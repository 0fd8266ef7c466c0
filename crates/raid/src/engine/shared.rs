//! The state of an array that all its contexts share.
//!
//! Invariants:
//! * The data path reads published values by their epoch, and takes the turn at shards. It writes
//!   or locks nothing else here except on rare events: a fault, a first write.
//! * `wanted` are requests to the manager, which takes all of them at once and then does the work.

use super::bitmap::Bitmap;
use super::conf::Conf;
use super::port::{Origin, Port, PortState, Ports};
use super::ppl::{CommonSpares, Log, Spares};
use super::region::SHARDS;
use super::shard::{Shard, ShardCounts};
use super::turn::{Report, TurnInput};
use crate::ids::{MemberNumber, Role};
use drystone_core::context::Handle;
use drystone_core::mailbox::Message;
use drystone_core::primitive::{AtomicU32, AtomicU64, Ordering::*};
use drystone_core::stats::DeviceStats;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::turn::TurnLock;
use drystone_core::{Holders, PortId, Published, Subscription};
use drystone_parity::Parity;
use std::sync::{Arc, Weak};

bitflags::bitflags! {
    /// Requests to the manager.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Wanted: u32 {
        /// Make the array dirty, so that writes may begin.
        const WRITES = 1 << 0;
        /// Look at the reports of faults.
        const REPORTS = 1 << 1;
        /// Look at the requests of control calls.
        const CONTROL = 1 << 2;
        /// Set bits of the bitmap.
        const BITMAP = 1 << 3;
    }
}

/// See the module's text.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) conf: Published<Conf>,
    pub(crate) ports: Published<Ports>,
    shards: Box<[TurnLock<Shard>]>,
    /// Partial parity logs, by role; empty if the array has none.
    logs: Box<[TurnLock<Log>]>,
    /// Spare tickets for those logs that no channel keeps.
    pub(crate) spares: Arc<CommonSpares>,
    pub(crate) parity: Parity,
    /// Parity fits below this member sector.
    pub(crate) fits_below: AtomicU64,
    /// Sectors of parity that did not fit, since the last synchronisation began.
    pub(crate) mismatches: AtomicU64,
    reports: Lock<Vec<Report>>,
    /// Words of the bitmap that must be set.
    words: Lock<Vec<usize>>,
    wanted: AtomicU32,
    manager: Lock<Weak<Handle>>,
    pub(crate) stats: DeviceStats,
    pub(crate) holders: Holders,
    /// For the rare events. Each lock has counters of its own, which its holder writes.
    conf_locks: Arc<LockCounters>,
    ports_locks: Arc<LockCounters>,
    reports_locks: Arc<LockCounters>,
    words_locks: Arc<LockCounters>,
    manager_locks: Arc<LockCounters>,
    shards_locks: Arc<LockCounters>,
}

impl Shared {
    pub(crate) fn new(name: &str, conf: Conf, locks: &Arc<LockCounters>) -> Arc<Self> {
        let shard = |_| TurnLock::new(LockClass::Stripes, Shard::new());
        let log = |role| {
            conf.ppl.map(|ppl| TurnLock::new(LockClass::Stripes, Log::new(role, conf.layout, &ppl)))
        };
        let logs = (0..conf.layout.disks()).map(Role).filter_map(log).collect();
        Arc::new(Shared {
            name: name.to_owned(),
            conf: Published::new(conf),
            ports: Published::new(Ports::default()),
            shards: (0..SHARDS).map(shard).collect(),
            logs,
            spares: Spares::common(),
            parity: Parity::detect(),
            fits_below: AtomicU64::new(u64::MAX),
            mismatches: AtomicU64::new(0),
            reports: Lock::new(LockClass::Control, Vec::new()),
            words: Lock::new(LockClass::Control, Vec::new()),
            wanted: AtomicU32::new(0),
            manager: Lock::new(LockClass::Control, Weak::new()),
            stats: DeviceStats::new(locks.sibling()),
            holders: Holders::new(locks.sibling()),
            conf_locks: locks.sibling(),
            ports_locks: locks.sibling(),
            reports_locks: locks.sibling(),
            words_locks: locks.sibling(),
            manager_locks: locks.sibling(),
            shards_locks: locks.sibling(),
        })
    }
}

impl Shared {
    #[inline]
    pub(crate) fn shard(&self, number: usize) -> &TurnLock<Shard> {
        &self.shards[number]
    }

    pub(crate) fn log(&self, role: usize) -> &TurnLock<Log> {
        &self.logs[role]
    }

    pub(crate) fn logs(&self) -> usize {
        self.logs.len()
    }

    /// The number of stripes that shard `number` has.
    pub(crate) fn stripes_of(conf: &Conf, number: usize) -> usize {
        let (all, shards) = (conf.cache_stripes as usize, SHARDS);
        (all / shards + usize::from(number < all % shards)).max(1)
    }

    /// The input of a turn at a shard or a log.
    pub(crate) fn turn_input<'a>(&self, conf: &'a Conf, epoch: u64, port: PortId) -> TurnInput<'a> {
        TurnInput {
            conf,
            epoch,
            parity: self.parity,
            fits_below: self.fits_below.load(Acquire),
            port,
        }
    }

    /// The configuration, for the control plane.
    pub(crate) fn conf(&self) -> Arc<Conf> {
        self.conf.get(&self.conf_locks).1
    }

    /// Change the configuration, and have every channel look at it. Returns its epoch.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut Conf)) -> u64 {
        let published = self.conf.update(&self.conf_locks, |conf| {
            change(conf);
            conf.role_slots_changed();
            Ok(())
        });
        debug_assert!(published.is_ok());
        let epoch = self.conf.epoch();
        self.kick_all();
        epoch
    }

    /// Hold new I/O from now on. Returns the epoch of the configuration that suspended the array.
    pub(crate) fn suspend(&self) -> u64 {
        let conf = self.conf();
        if conf.is_suspended {
            return conf.suspended_since;
        }
        // The lock under which this change is made is also the one that counts epochs.
        self.publish(|conf| {
            (conf.is_suspended, conf.suspended_since) = (true, self.conf.epoch() + 1);
        });
        self.conf().suspended_since
    }

    /// The array is suspended, and no I/O that passed before is in flight.
    pub(crate) fn is_quiesced(&self) -> bool {
        let conf = self.conf();
        conf.is_suspended && self.is_quiesced_since(conf.suspended_since)
    }

    /// No I/O of the array that passed before the suspension at `epoch` is in flight. Kicks the
    /// channels that have not confirmed this yet.
    pub(crate) fn is_quiesced_since(&self, epoch: u64) -> bool {
        self.all_say(|port| port.quiesced.is_since(epoch))
    }

    /// The same for writes, with `epoch` of a configuration that lets no write begin.
    pub(crate) fn writes_are_quiet(&self, epoch: u64) -> bool {
        self.all_say(|port| port.writes_quiesced.is_since(epoch))
    }

    fn all_say(&self, is_so: impl Fn(&Port) -> bool) -> bool {
        let ports = self.ports();
        let of_io = || ports.iter().filter(|port| port.origin == Origin::Io);
        of_io()
            .filter(|port| !is_so(port))
            .for_each(|port| port.doorbell().clone().send_and_kick());
        of_io().all(|port| is_so(port))
    }

    pub(crate) fn kick_all(&self) {
        let (_, ports) = self.ports.get(&self.ports_locks);
        ports.iter().for_each(|port| port.doorbell().clone().send_and_kick());
    }

    pub(crate) fn ports(&self) -> Arc<Ports> {
        self.ports.get(&self.ports_locks).1
    }

    /// Take over the current ports.
    pub(crate) fn refresh_ports(&self, ports: &mut Subscription<Ports>) {
        ports.refresh(&self.ports, &self.ports_locks);
    }

    pub(crate) fn open_port(&self, origin: Origin, doorbell: Arc<Message>) -> Arc<Port> {
        let mut opened = None;
        let published = self.ports.update(&self.ports_locks, |ports| {
            opened = Some(ports.open(doorbell, PortState::new(origin)));
            Ok(())
        });
        debug_assert!(published.is_ok());
        opened.expect("it was just opened")
    }

    pub(crate) fn close_port(&self, port: &Arc<Port>) {
        port.quiesced.set_gone();
        port.writes_quiesced.set_gone();
        let published = self.ports.update(&self.ports_locks, |ports| {
            ports.close(port);
            Ok(())
        });
        debug_assert!(published.is_ok());
    }

    /// Send requests to the manager, from any thread. The manager sees all that the caller wrote
    /// before.
    #[cold]
    pub(crate) fn ask(&self, wanted: Wanted) {
        self.wanted.fetch_or(wanted.bits(), AcqRel);
        let manager = self.manager.lock(&self.manager_locks).upgrade();
        if let Some(manager) = manager {
            manager.wake();
        }
    }

    /// Take all requests since the previous call.
    pub(crate) fn take_wanted(&self) -> Wanted {
        Wanted::from_bits_truncate(self.wanted.swap(0, AcqRel))
    }

    /// There is a request that the manager has not taken.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Acquire) != 0
    }

    /// Set the manager's context, which every request wakes.
    pub(crate) fn set_manager(&self, manager: Weak<Handle>) {
        *self.manager.lock(&self.manager_locks) = manager;
    }

    /// Tell the manager of faults.
    #[cold]
    pub(crate) fn report(&self, reports: &mut Vec<Report>) {
        self.reports.lock(&self.reports_locks).append(reports);
        self.ask(Wanted::REPORTS);
    }

    pub(crate) fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut *self.reports.lock(&self.reports_locks))
    }

    /// Have the manager set bits of the bitmap, and publish.
    #[cold]
    pub(crate) fn want_words(&self, words: &mut Vec<usize>) {
        self.words.lock(&self.words_locks).append(words);
        self.ask(Wanted::BITMAP);
    }

    pub(crate) fn take_words(&self) -> Vec<usize> {
        std::mem::take(&mut *self.words.lock(&self.words_locks))
    }

    /// Count sectors whose parity did not fit.
    #[cold]
    pub(crate) fn add_mismatches(&self, sectors: u64) {
        self.mismatches.fetch_add(sectors, Relaxed);
    }

    /// The sum of the shards' counts, and the number of their busy stripes. Waits for each shard's
    /// turn.
    pub(crate) fn counts(&self) -> (ShardCounts, usize) {
        let (mut sum, mut active) = (ShardCounts::default(), 0);
        self.visit(&self.shards_locks, |shard| {
            sum += shard.counts();
            active += shard.active();
        });
        (sum, active)
    }

    /// True if every shard has worked by the configuration of `epoch` or a later one: none will use
    /// an earlier one again. Otherwise kicks the channels. Waits for each shard's turn.
    pub(crate) fn shards_are_at(&self, epoch: u64, locks: &LockCounters) -> bool {
        let mut are_all = true;
        self.visit(locks, |shard| are_all &= shard.epoch() >= epoch);
        if !are_all {
            self.kick_all();
        }
        are_all
    }

    /// Keep the bits of all chunks for which a write is under way. Waits for each shard's turn.
    pub(crate) fn keep_under_way(&self, bitmap: &Bitmap, locks: &LockCounters) {
        self.visit(locks, |shard| shard.under_way(bitmap).for_each(|word| bitmap.keep(word)));
    }

    /// Wait until all turns that had begun have ended. From then on no turn works by a
    /// configuration older than the current one.
    pub(crate) fn pass_turns(&self, locks: &LockCounters) {
        self.visit(locks, |_| {});
    }

    /// True if no write is on its way to device `number`, or to any device if `None`. If the
    /// configuration no longer has the device, none will follow. Otherwise kicks the channels.
    /// Waits for each turn.
    pub(crate) fn writes_have_ended(
        &self,
        number: Option<MemberNumber>,
        locks: &LockCounters,
    ) -> bool {
        let mut have_ended = true;
        self.visit(locks, |shard| have_ended &= !shard.writes_to(number));
        self.visit_all(&self.logs, locks, |log| have_ended &= !log.writes_to(number));
        if !have_ended {
            self.kick_all();
        }
        have_ended
    }

    /// Look at every shard in its turn. Waits for each turn.
    fn visit(&self, locks: &LockCounters, look: impl FnMut(&Shard)) {
        self.visit_all(&self.shards, locks, look);
    }

    fn visit_all<T>(&self, turns: &[TurnLock<T>], locks: &LockCounters, mut look: impl FnMut(&T)) {
        for lock in turns {
            let turn = lock.wait(locks);
            look(&turn);
            if lock.leave(turn) {
                // A channel published bios meanwhile and left without the turn: its doorbell makes
                // it come back.
                self.ports()
                    .get(lock.publisher())
                    .iter()
                    .for_each(|port| port.doorbell().clone().send_and_kick());
            }
        }
    }
}
