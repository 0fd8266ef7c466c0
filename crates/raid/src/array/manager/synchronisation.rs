//! The synchronisation under way, and the one that will follow.
//!
//! Invariants:
//! * At most one synchronisation is under way, and at most one more is asked for: the latest
//!   request counts.
//! * A command to synchronise, or to end a synchronisation, also ends a freeze.

use super::sync_run::{Speed, SyncRun};
use crate::array::status::SyncStatus;
use crate::engine::SyncAction;
use drystone_core::ChannelId;
use drystone_core::clock::Ns;

/// True for an action that a user asked for. The other actions begin because the array needs them.
pub(super) fn is_asked_for(action: SyncAction) -> bool {
    matches!(action, SyncAction::Check | SyncAction::Repair)
}

/// See the module's text.
pub(super) struct Synchronisation {
    /// The device that takes bios by member sectors.
    device: ChannelId,
    run: Option<SyncRun>,
    /// The action that was asked for and has not begun.
    asked: Option<SyncAction>,
    frozen: bool,
    speed: Speed,
}

impl Synchronisation {
    pub(super) fn new(device: ChannelId) -> Self {
        Synchronisation { device, run: None, asked: None, frozen: false, speed: Speed::default() }
    }

    /// The kind of the synchronisation under way.
    pub(super) fn action(&self) -> Option<SyncAction> {
        self.run.as_ref().map(SyncRun::action)
    }

    /// A synchronisation is under way, or due.
    pub(super) fn is_busy(&self) -> bool {
        self.run.is_some() || self.asked.is_some()
    }

    /// A synchronisation that was asked for is under way.
    pub(super) fn is_asked_for(&self) -> bool {
        self.action().is_some_and(is_asked_for)
    }

    pub(super) fn status(&self, total: u64, now: Ns) -> Option<SyncStatus> {
        self.run.as_ref().map(|run| run.status(total, now))
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen
    }

    pub(super) fn speed(&self) -> Speed {
        self.speed
    }

    /// Change limits.
    pub(super) fn set_speed(&mut self, min: Option<u64>, max: Option<u64>) {
        self.speed.min = min.unwrap_or(self.speed.min);
        self.speed.max = max.unwrap_or(self.speed.max);
    }

    /// Ask for an action.
    pub(super) fn ask(&mut self, action: SyncAction) {
        (self.frozen, self.asked) = (false, Some(action));
    }

    /// End the action that was asked for.
    pub(super) fn end_asked(&mut self) {
        (self.frozen, self.asked) = (false, None);
        if self.is_asked_for() {
            self.interrupt();
        }
    }

    /// Freeze, so that no synchronisation runs, or end the freeze.
    pub(super) fn freeze(&mut self, on: bool) {
        self.frozen = on;
        if on {
            self.interrupt();
        }
    }

    /// Interrupt the synchronisation under way; it ends as soon as possible.
    pub(super) fn interrupt(&mut self) {
        if let Some(run) = &mut self.run {
            run.interrupt();
        }
    }

    /// The device whose bios synchronise regions, by member sectors.
    pub(super) fn device(&self) -> ChannelId {
        self.device
    }

    /// Take the run under way, to carry it on.
    pub(super) fn take(&mut self) -> Option<SyncRun> {
        self.run.take()
    }

    /// Put back the run that was taken, or put in a new one.
    pub(super) fn put_back(&mut self, run: SyncRun) {
        debug_assert!(self.run.is_none());
        self.run = Some(run);
    }

    pub(super) fn run_mut(&mut self) -> Option<&mut SyncRun> {
        self.run.as_mut()
    }

    /// Take the action that was asked for, which begins now.
    pub(super) fn take_asked(&mut self) -> Option<SyncAction> {
        self.asked.take()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::array::tests::stand::Stand;

    fn synchronisation() -> Synchronisation {
        let stand = Stand::new(1);
        let (mut ctx, ..) = stand.look();
        Synchronisation::new(ctx.open(&stand.devices[0]).unwrap())
    }

    fn run(action: SyncAction) -> SyncRun {
        SyncRun::new(action, 0..1 << 20, false, Vec::new(), 0)
    }

    #[test]
    fn the_last_action_that_was_asked_for_follows_once() {
        let mut sync = synchronisation();
        assert!(!sync.is_busy());
        sync.ask(SyncAction::Check);
        sync.ask(SyncAction::Repair);
        assert!(sync.is_busy() && sync.action().is_none());
        assert_eq!((sync.take_asked(), sync.take_asked()), (Some(SyncAction::Repair), None));
        assert!(!sync.is_busy());
    }

    #[test]
    fn only_an_asked_for_run_ends_by_command() {
        for (action, is_ended) in [
            (SyncAction::Check, true),
            (SyncAction::Repair, true),
            (SyncAction::Resync, false),
            (SyncAction::Recover, false),
        ] {
            let mut sync = synchronisation();
            sync.put_back(run(action));
            sync.ask(SyncAction::Check);
            assert_eq!((sync.action(), sync.is_asked_for()), (Some(action), is_ended));
            sync.end_asked();
            assert_eq!(sync.take_asked(), None);
            assert_eq!(sync.take().unwrap().is_interrupted(), is_ended, "{action:?}");
            assert!(!sync.is_busy());
        }
    }

    #[test]
    fn freezing_interrupts_and_a_command_thaws() {
        let mut sync = synchronisation();
        sync.put_back(run(SyncAction::Recover));
        sync.freeze(false);
        assert!(!sync.run_mut().unwrap().is_interrupted());
        sync.freeze(true);
        assert!(sync.is_frozen() && sync.run_mut().unwrap().is_interrupted());
        sync.ask(SyncAction::Check);
        assert!(!sync.is_frozen());
        sync.freeze(true);
        sync.end_asked();
        assert!(!sync.is_frozen());
    }

    #[test]
    fn a_limit_that_is_not_named_stays() {
        let mut sync = synchronisation();
        let Speed { min, .. } = sync.speed();
        sync.set_speed(None, Some(7));
        assert_eq!(sync.speed(), Speed { min, max: 7 });
        sync.set_speed(Some(5), None);
        assert_eq!(sync.speed(), Speed { min: 5, max: 7 });
    }
}
