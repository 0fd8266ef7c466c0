//! The turns that a channel has at shards and logs: what it brings there, and what it takes away.

use super::ArrayChannel;
use super::work_set::Entry;
use crate::engine::port::Origin;
use crate::engine::ppl::{Log, Ticket};
use crate::engine::region::SHARDS;
use crate::engine::shard::{Shard, TurnEffects};
use crate::engine::shared::Shared;
use crate::engine::turn::TurnInput;
use drystone_core::sync::Guard;
use drystone_core::turn::{InsertAt, TurnLock};
use drystone_core::{Bio, BioList, Env, PortId};

/// The bound of the work that one call does for others: after so many rounds at a shard or log the
/// channel leaves new work to the channels that brought it.
const ROUNDS_MAX: u32 = 4;

/// The port of the manager: the manager opens its port first.
const MANAGERS_PORT: PortId = PortId(0);

impl ArrayChannel {
    /// Bring a bio, or a part of one, that lies in one region to its shard.
    pub(super) fn bring_item(&mut self, env: &mut Env, shard: usize, mut item: Box<Bio>) {
        item.port = self.peers.own().id();
        item.status = drystone_core::Status::Ok;
        self.traffic.bring_item();
        env.expected_remote += 1;
        self.to_shards.add(shard, item);
    }

    /// I/O to a member has ended.
    pub(super) fn member_io_ended(&mut self, bio: Box<Bio>) {
        self.traffic.receive();
        let actor = (bio.user_data >> 32) as usize;
        match actor.checked_sub(SHARDS) {
            Some(role) => self.to_logs.add(role, bio),
            None => self.to_shards.add(actor, bio),
        }
    }

    /// Touch the shards and logs at which other contexts left work for the next visitor.
    pub(super) fn touch_published(&mut self) {
        let shards = (0..SHARDS).filter(|shard| self.shared.shard(*shard).has_published());
        shards.for_each(|shard| self.to_shards.touch(shard));
        let logs = (0..self.shared.logs()).filter(|role| self.shared.log(*role).has_published());
        logs.for_each(|role| self.to_logs.touch(role));
    }

    /// Enter all shards and logs that are touched; shards first, also those that a log's turn
    /// touches.
    pub(super) fn run_touched(&mut self, env: &mut Env) {
        loop {
            if let Some(entry) = self.to_shards.next() {
                self.enter_shard(env, entry);
            } else if let Some(entry) = self.to_logs.next() {
                self.enter_log(env, entry);
            } else {
                return;
            }
        }
    }

    /// Have a shard do all of its work, in this channel's turn or in that of the current holder.
    fn enter_shard(&mut self, env: &mut Env, Entry { number, is_changed }: Entry) {
        let shared = self.shared.clone();
        let run_turn = |channel: &mut Self, env: &mut Env, shard: &mut Guard<'_, Shard>| {
            channel.run_shard_turn(env, number, shard);
        };
        let at = (shared.shard(number), is_changed);
        self.combine(env, at, |channel| channel.to_shards.list(number), run_turn);
    }

    /// The same for a log.
    fn enter_log(&mut self, env: &mut Env, Entry { number: role, is_changed }: Entry) {
        let shared = self.shared.clone();
        let run_turn = |channel: &mut Self, env: &mut Env, log: &mut Guard<'_, Log>| {
            channel.run_log_turn(env, role, log);
        };
        let at = (shared.log(role), is_changed);
        self.combine(env, at, |channel| channel.to_logs.list(role), run_turn);
    }

    /// Work at a shard or log in turns. A context that finds the turn taken leaves its bios to the
    /// holder (flat combining). With `is_changed`, the shard or log may not know the current
    /// configuration.
    fn combine<T>(
        &mut self,
        env: &mut Env,
        (lock, is_changed): (&TurnLock<T>, bool),
        brought: impl Fn(&mut Self) -> &mut BioList,
        run_turn: impl Fn(&mut Self, &mut Env, &mut Guard<'_, T>),
    ) {
        if env.is_draining() {
            return self.leave_to_manager(env, lock, brought);
        }
        for _ in 0..ROUNDS_MAX {
            let own = self.peers.own().id();
            // The holder also looks again if bios are published; without bios it must be asked to.
            let guard = match is_changed && brought(self).is_empty() {
                true => lock.enter_to_recheck(&env.locks, own),
                false => lock.enter(&env.locks, own, brought(self), InsertAt::Tail),
            };
            let Some(mut guard) = guard else { return };
            run_turn(self, env, &mut guard);
            let again = lock.leave(guard);
            self.deliver(env);
            if !again {
                return;
            }
        }
        self.kick(env, lock.publisher());
    }

    /// Leave the bios to the manager: this context was dropped, and might never carry on I/O that
    /// it began.
    fn leave_to_manager<T>(
        &mut self,
        env: &mut Env,
        lock: &TurnLock<T>,
        brought: impl Fn(&mut Self) -> &mut BioList,
    ) {
        if brought(self).is_empty() {
            return;
        }
        lock.leave_to_others(&env.locks, brought(self), InsertAt::Tail);
        self.kick(env, MANAGERS_PORT);
    }

    /// Have the channel of a port look at its work, even if the owner of its context is away.
    fn kick(&mut self, env: &mut Env, id: PortId) {
        let doorbell = self.peers.find(id, &env.locks).map(|port| port.doorbell().clone());
        if let Some(doorbell) = doorbell {
            env.send_and_kick(doorbell);
        }
    }

    fn run_shard_turn(&mut self, env: &mut Env, number: usize, shard: &mut Guard<'_, Shard>) {
        // Take the bios that others left first, and refresh the configuration afterwards: the
        // context that left them may have known a newer one.
        let [first, second] = self.shared.shard(number).take();
        self.refresh(env);
        let (conf, epoch) = (self.membership.conf(), self.membership.epoch());
        let turn = self.shared.turn_input(conf, epoch, self.peers.own().id());
        let stripes = Shared::stripes_of(conf, number);
        shard.refresh(&turn, stripes, &mut self.effects);
        let mut brought = self.to_shards.list(number).take();
        for list in [&mut brought, &mut { first.0 }, &mut { second.0 }] {
            let is_sync = |port| self.peers.origin_of(port, &env.locks) == Some(Origin::Sync);
            accept(shard, &turn, list, is_sync, &mut self.effects);
        }
        shard.handle_ready(&turn, stripes, &mut self.effects);
        let send = |role, is_replacement, mut bio: Box<Bio>| {
            bio.user_data |= (number as u64) << 32;
            bio.give_to_channel(self.id);
            self.traffic.send();
            env.send_down(self.membership.channel(role, is_replacement), bio);
        };
        shard.make_runs(&turn, &mut self.effects, send);
        self.effects.tickets.iter_mut().for_each(|ticket| ticket.set_shard(number));
        // Tell the manager within the turn. The next holder sees the state that this turn leaves,
        // and relies on the manager having been told.
        if !self.effects.reports.is_empty() {
            self.shared.report(&mut self.effects.reports);
        }
    }

    fn run_log_turn(&mut self, env: &mut Env, role: usize, log: &mut Guard<'_, Log>) {
        let [first, second] = self.shared.log(role).take();
        self.refresh(env);
        let (conf, epoch) = (self.membership.conf(), self.membership.epoch());
        let turn = self.shared.turn_input(conf, epoch, self.peers.own().id());
        let mut brought = self.to_logs.list(role).take();
        for list in [&mut brought, &mut { first.0 }, &mut { second.0 }] {
            while let Some(bio) = list.pop() {
                log.accept(&turn, bio, &mut self.log_effects);
            }
        }
        log.begin(&turn, &mut self.log_effects);
        for (to, is_replacement, mut bio) in self.log_effects.io.drain(..) {
            bio.user_data |= ((SHARDS + role) as u64) << 32;
            bio.give_to_channel(self.id);
            self.traffic.send();
            env.send_down(self.membership.channel(to, is_replacement), bio);
        }
    }

    /// Hand on the effects of a turn.
    fn deliver(&mut self, env: &mut Env) {
        while let Some(ticket) = self.effects.tickets.pop() {
            let role = self.conf().layout.row_at(ticket.sector()).p;
            self.to_logs.add(role.index(), ticket.into_bio());
        }
        while let Some(ticket) = self.log_effects.tickets.pop() {
            self.to_shards.add(ticket.shard(), ticket.into_bio());
        }
        self.effects.spares.keep(&mut self.log_effects.done);
        self.effects.reports.append(&mut self.log_effects.reports);
        self.effects.remote.append(&mut self.log_effects.remote);
        if self.effects.mismatches > 0 {
            self.shared.add_mismatches(std::mem::take(&mut self.effects.mismatches));
        }
        if !self.effects.reports.is_empty() {
            self.shared.report(&mut self.effects.reports);
        }
        if !self.effects.words.is_empty() {
            self.shared.want_words(&mut self.effects.words);
        }
        while let Some(port) = self.effects.remote.pop() {
            if let Some(doorbell) = self.peers.mark_remote(port, &env.locks) {
                env.notify_lazily(doorbell);
            }
        }
        let mut done = self.effects.done.take();
        while let Some(item) = done.pop() {
            if item.port == self.peers.own().id() {
                self.end_item(env, item);
            } else if let Some(doorbell) = self.peers.hand_back(item, &env.locks) {
                env.notify_lazily(doorbell);
            }
        }
    }

    fn end_item(&mut self, env: &mut Env, item: Box<Bio>) {
        self.traffic.end_item();
        env.expected_remote -= 1;
        if !self.traffic.has_items() {
            self.peers.own().clear_remote();
        }
        env.end_bio(item);
    }

    /// End the items that other channels handed back.
    pub(super) fn take_done(&mut self, env: &mut Env) {
        let mut done = self.peers.take_done();
        while let Some(item) = done.pop() {
            self.end_item(env, item);
        }
    }
}

/// Give a shard all that was brought to it: ended I/O of members, tickets that have come back, and
/// items. `is_sync` tells whether the items of a port ask for synchronisation.
fn accept(
    shard: &mut Shard,
    turn: &TurnInput<'_>,
    list: &mut BioList,
    mut is_sync: impl FnMut(PortId) -> bool,
    effects: &mut TurnEffects,
) {
    while let Some(bio) = list.pop() {
        if bio.is_of_channel() {
            shard.run_ended(turn, bio, effects);
        } else if Ticket::is(&bio) {
            shard.accept_ticket(Ticket::of(bio));
        } else {
            let is_sync = is_sync(bio.port);
            shard.accept(bio, is_sync);
        }
    }
}
