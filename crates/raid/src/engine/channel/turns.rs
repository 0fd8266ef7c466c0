//! The turns that a channel has at shards: what it brings there, and what it takes away.

use super::ArrayChannel;
use crate::engine::conf::Conf;
use crate::engine::port::{Origin, Ports};
use crate::engine::ppl::{Log, Ticket};
use crate::engine::shard::{Shard, TurnInput};
use crate::engine::shared::{SHARDS, Shared};
use crate::ids::Role;
use drystone_core::sync::Guard;
use drystone_core::turn::{Place, TurnLock};
use drystone_core::{Bio, BioList, Env};
use std::sync::Arc;

/// How often a channel works off what others brought to a shard meanwhile, before it leaves that to
/// them: a bound for what is done for others in a call.
const ROUNDS_MAX: u32 = 4;

/// The port of the manager, who opens the first one.
const MANAGERS_PORT: u32 = 0;

impl ArrayChannel {
    /// Bring a bio, or a part of one, that lies in one region to its shard.
    pub(super) fn bring_item(&mut self, env: &mut Env, shard: usize, mut item: Box<Bio>) {
        item.home = self.port.index();
        item.status = drystone_core::Status::Ok;
        self.items += 1;
        env.entrusted += 1;
        self.bring_shard(shard, item);
    }

    /// I/O to a member has ended.
    pub(super) fn member_io_ended(&mut self, bio: Box<Bio>) {
        self.member_io -= 1;
        let actor = (bio.user_data >> 32) as usize;
        match actor.checked_sub(SHARDS) {
            Some(role) => self.bring_log(role, bio),
            None => self.bring_shard(actor, bio),
        }
    }

    fn bring_shard(&mut self, shard: usize, bio: Box<Bio>) {
        self.brought[shard].push(bio);
        self.touched |= 1 << shard;
    }

    fn bring_log(&mut self, role: usize, bio: Box<Bio>) {
        self.brought_logs[role].push(bio);
        self.touched_logs |= 1 << role;
    }

    /// Others may have left something at shards for whoever comes.
    pub(super) fn touch_published(&mut self) {
        let published = (0..SHARDS).filter(|shard| self.shared.shard(*shard).has_published());
        self.touched = published.fold(self.touched, |touched, shard| touched | 1 << shard);
        let logs = (0..self.shared.logs()).filter(|role| self.shared.log(*role).has_published());
        self.touched_logs = logs.fold(self.touched_logs, |touched, role| touched | 1 << role);
    }

    pub(super) fn run_touched(&mut self, env: &mut Env) {
        while self.touched != 0 || self.touched_logs != 0 {
            if self.touched != 0 {
                let shard = self.touched.trailing_zeros() as usize;
                self.touched &= self.touched - 1;
                let looks = self.changed & 1 << shard != 0;
                self.changed &= !(1 << shard);
                self.enter_shard(env, shard, looks);
                continue;
            }
            let role = self.touched_logs.trailing_zeros() as usize;
            self.touched_logs &= self.touched_logs - 1;
            let looks = self.changed_logs & 1 << role != 0;
            self.changed_logs &= !(1 << role);
            self.enter_log(env, role, looks);
        }
    }

    /// Have a shard do all that there is to do, here or by whoever has the turn. `looks`: there is a
    /// configuration that it may not know.
    fn enter_shard(&mut self, env: &mut Env, number: usize, looks: bool) {
        let shared = self.shared.clone();
        let run_turn = |channel: &mut Self, env: &mut Env, shard: &mut Guard<'_, Shard>| {
            channel.run_shard_turn(env, number, shard);
        };
        let at = (shared.shard(number), looks);
        self.combine(env, at, |channel| &mut channel.brought[number], run_turn);
    }

    /// The same of a log.
    fn enter_log(&mut self, env: &mut Env, role: usize, looks: bool) {
        let shared = self.shared.clone();
        let run_turn = |channel: &mut Self, env: &mut Env, log: &mut Guard<'_, Log>| {
            channel.run_log_turn(env, role, log);
        };
        let at = (shared.log(role), looks);
        self.combine(env, at, |channel| &mut channel.brought_logs[role], run_turn);
    }

    fn combine<T>(
        &mut self,
        env: &mut Env,
        (lock, looks): (&TurnLock<T>, bool),
        brought: impl Fn(&mut Self) -> &mut BioList,
        run_turn: impl Fn(&mut Self, &mut Env, &mut Guard<'_, T>),
    ) {
        if env.is_draining() {
            return self.leave_to_manager(env, lock, brought);
        }
        for _ in 0..ROUNDS_MAX {
            let who = self.port.index();
            // A bio that is published has its holder look, too.
            let guard = match looks && brought(self).is_empty() {
                true => lock.enter_to_recheck(&env.locks, who),
                false => lock.enter(&env.locks, who, brought(self), Place::Tail),
            };
            let Some(mut guard) = guard else { return };
            run_turn(self, env, &mut guard);
            let again = lock.leave(guard);
            self.deliver(env);
            if !again {
                return;
            }
        }
        let publisher = self.ports_now(env).get(lock.publisher()).cloned();
        if let Some(publisher) = publisher {
            env.send_and_kick(publisher.doorbell().clone());
        }
    }

    /// The context was dropped: what it would begin might never be carried on.
    fn leave_to_manager<T>(
        &mut self,
        env: &mut Env,
        lock: &TurnLock<T>,
        brought: impl Fn(&mut Self) -> &mut BioList,
    ) {
        if brought(self).is_empty() {
            return;
        }
        lock.leave_to_others(&env.locks, brought(self), Place::Tail);
        if let Some(manager) = self.ports_now(env).get(MANAGERS_PORT).cloned() {
            env.send_and_kick(manager.doorbell().clone());
        }
    }

    fn run_shard_turn(&mut self, env: &mut Env, number: usize, shard: &mut Guard<'_, Shard>) {
        // First what was left here, then the configuration: whoever left it may know a later one.
        let [first, second] = self.shared.shard(number).take();
        self.refresh(env);
        let conf = self.conf.value().clone();
        let turn = self.shared.turn_input(&conf, self.conf.epoch(), self.port.index());
        let stripes = Shared::stripes_of(&conf, number);
        shard.refresh(&turn, stripes, &mut self.out);
        let mut brought = self.brought[number].take();
        for list in [&mut brought, &mut { first.0 }, &mut { second.0 }] {
            self.accept(env, &turn, shard, list);
        }
        shard.handle_ready(&turn, stripes, &mut self.out);
        self.send_member_io(env, number, &turn, shard);
        self.out.tickets.iter_mut().for_each(|ticket| ticket.set_shard(number));
        // Within the turn: who has the next one, and sees what this one has done, finds them told.
        if !self.out.reports.is_empty() {
            self.shared.report(&mut self.out.reports);
        }
    }

    fn run_log_turn(&mut self, env: &mut Env, role: usize, log: &mut Guard<'_, Log>) {
        let [first, second] = self.shared.log(role).take();
        self.refresh(env);
        let conf = self.conf.value().clone();
        let turn = self.shared.turn_input(&conf, self.conf.epoch(), self.port.index());
        let mut brought = self.brought_logs[role].take();
        for list in [&mut brought, &mut { first.0 }, &mut { second.0 }] {
            while let Some(bio) = list.pop() {
                log.accept(&turn, bio, &mut self.log_out);
            }
        }
        log.begin(&turn, &mut self.log_out);
        let mut io = std::mem::take(&mut self.log_out.io);
        for (to, is_replacement, mut bio) in io.drain(..) {
            bio.user_data |= ((SHARDS + role) as u64) << 32;
            bio.give_to_channel(self.index);
            self.member_io += 1;
            env.send_down(self.channel_of(&conf, to, is_replacement), bio);
        }
        self.log_out.io = io;
    }

    fn channel_of(&self, conf: &Conf, role: Role, is_replacement: bool) -> u32 {
        let replacements = if is_replacement { conf.layout.disks() as usize } else { 0 };
        self.by_role[role.index() + replacements]
    }

    fn accept(
        &mut self,
        env: &mut Env,
        turn: &TurnInput<'_>,
        shard: &mut Shard,
        list: &mut BioList,
    ) {
        while let Some(bio) = list.pop() {
            if bio.is_of_channel() {
                shard.run_ended(turn, bio, &mut self.out);
                continue;
            }
            if Ticket::is(&bio) {
                shard.accept_ticket(Ticket::of(bio));
                continue;
            }
            let is_sync = match bio.home == self.port.index() {
                true => self.port.origin == Origin::Sync,
                false => self.origin_of(env, bio.home) == Origin::Sync,
            };
            shard.accept(turn, bio, is_sync, &mut self.out);
        }
    }

    fn origin_of(&mut self, env: &mut Env, home: u32) -> Origin {
        self.ports_now(env).get(home).map_or(Origin::Io, |port| port.origin)
    }

    fn ports_now(&mut self, env: &mut Env) -> &Ports {
        if !self.ports.is_current(&self.shared.ports) {
            self.ports.refresh(&self.shared.ports, &env.locks);
        }
        &self.ports
    }

    fn send_member_io(
        &mut self,
        env: &mut Env,
        number: usize,
        turn: &TurnInput<'_>,
        shard: &mut Shard,
    ) {
        let (members, sent, index) = (&self.by_role, &mut self.member_io, self.index);
        let disks = turn.conf.layout.disks() as usize;
        let channel = |role: Role, is_replacement: bool| {
            members[role.index() + if is_replacement { disks } else { 0 }]
        };
        let send = |role: Role, is_replacement: bool, mut bio: Box<Bio>| {
            bio.user_data |= (number as u64) << 32;
            bio.give_to_channel(index);
            *sent += 1;
            env.send_down(channel(role, is_replacement), bio);
        };
        shard.make_runs(turn, &mut self.out, send);
    }

    /// Hand on what a turn has left to be done.
    fn deliver(&mut self, env: &mut Env) {
        while let Some(ticket) = self.out.tickets.pop() {
            let role = self.conf.layout.row_at(ticket.sector()).p;
            self.bring_log(role.index(), ticket.into_bio());
        }
        while let Some(ticket) = self.log_out.tickets.pop() {
            self.bring_shard(ticket.shard(), ticket.into_bio());
        }
        self.out.spares.keep(&mut self.log_out.done);
        self.out.reports.append(&mut self.log_out.reports);
        self.out.foreign.append(&mut self.log_out.foreign);
        if self.out.mismatches > 0 {
            self.shared.add_mismatches(std::mem::take(&mut self.out.mismatches));
        }
        if !self.out.reports.is_empty() {
            self.shared.report(&mut self.out.reports);
        }
        if !self.out.words.is_empty() {
            self.shared.want_words(&mut self.out.words);
        }
        while let Some(home) = self.out.foreign.pop() {
            self.tell_of_foreign(env, home);
        }
        let mut done = self.out.done.take();
        while let Some(bio) = done.pop() {
            match bio.home == self.port.index() {
                true => self.end_item(env, bio),
                false => self.end_for_other(env, bio),
            }
        }
    }

    fn tell_of_foreign(&mut self, env: &mut Env, home: u32) {
        if home == self.port.index() {
            self.port.set_foreign();
            return;
        }
        let port = self.ports_now(env).get(home).cloned();
        if let Some(port) = port.filter(|port| port.set_foreign()) {
            env.notify_lazily(port.doorbell().clone());
        }
    }

    fn end_item(&mut self, env: &mut Env, bio: Box<Bio>) {
        self.items -= 1;
        env.entrusted -= 1;
        if self.items == 0 {
            self.port.clear_foreign();
        }
        env.end_bio(bio);
    }

    fn end_for_other(&mut self, env: &mut Env, bio: Box<Bio>) {
        let port = self.ports_now(env).get(bio.home).cloned();
        let Some(port) = port else {
            debug_assert!(false, "a port stays open while items of it are in a shard");
            return;
        };
        let mut list = BioList::new();
        list.push(bio);
        port.done.add(&mut list);
        env.notify_lazily(port.doorbell().clone());
    }

    /// Items that others have ended.
    pub(super) fn take_done(&mut self, env: &mut Env) {
        let port: Arc<_> = self.port.clone();
        let mut done = port.done.take();
        while let Some(bio) = done.pop() {
            self.end_item(env, bio);
        }
    }
}
