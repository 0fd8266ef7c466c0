//! The turns that a channel has at shards: what it brings there, and what it takes away.

use super::ArrayChannel;
use crate::engine::conf::Conf;
use crate::engine::port::{Brings, Ports};
use crate::engine::ppl::{Log, Ticket};
use crate::engine::shard::{At, Shard};
use crate::engine::shared::{SHARDS, Shared};
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
                self.run(env, shard, looks);
                continue;
            }
            let role = self.touched_logs.trailing_zeros() as usize;
            self.touched_logs &= self.touched_logs - 1;
            let looks = self.changed_logs & 1 << role != 0;
            self.changed_logs &= !(1 << role);
            self.run_log(env, role, looks);
        }
    }

    /// Have a shard do all that there is to do, here or by whoever has the turn. `looks`: there is a
    /// configuration that it may not know.
    fn run(&mut self, env: &mut Env, number: usize, looks: bool) {
        let shared = self.shared.clone();
        let work = |channel: &mut Self, env: &mut Env, turn: &mut Guard<'_, Shard>| {
            channel.work(env, number, turn);
        };
        let at = (shared.shard(number), looks);
        self.take_turns(env, at, |channel| &mut channel.brought[number], work);
    }

    /// The same of a log.
    fn run_log(&mut self, env: &mut Env, role: usize, looks: bool) {
        let shared = self.shared.clone();
        let work = |channel: &mut Self, env: &mut Env, turn: &mut Guard<'_, Log>| {
            channel.work_log(env, role, turn);
        };
        let at = (shared.log(role), looks);
        self.take_turns(env, at, |channel| &mut channel.brought_logs[role], work);
    }

    fn take_turns<T>(
        &mut self,
        env: &mut Env,
        (lock, looks): (&TurnLock<T>, bool),
        brought: impl Fn(&mut Self) -> &mut BioList,
        work: impl Fn(&mut Self, &mut Env, &mut Guard<'_, T>),
    ) {
        if env.is_abandoned() {
            return self.leave_to_manager(env, lock, brought);
        }
        for _ in 0..ROUNDS_MAX {
            let who = self.port.index();
            // A bio that is published has its holder look, too.
            let turn = match looks && brought(self).is_empty() {
                true => lock.enter_to_look(&env.locks, who),
                false => lock.enter(&env.locks, who, brought(self), Place::Tail),
            };
            let Some(mut turn) = turn else { return };
            work(self, env, &mut turn);
            let again = lock.leave(turn);
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

    fn work(&mut self, env: &mut Env, number: usize, shard: &mut Guard<'_, Shard>) {
        // First what was left here, then the configuration: whoever left it may know a later one.
        let [first, second] = self.shared.shard(number).take();
        self.refresh(env);
        let conf = self.conf.value().clone();
        let at = self.shared.at(&conf, self.conf.epoch(), self.port.index());
        let stripes = Shared::stripes_of(&conf, number);
        shard.refresh(&at, stripes, &mut self.out);
        let mut brought = self.brought[number].take();
        for list in [&mut brought, &mut { first.0 }, &mut { second.0 }] {
            self.take_in(env, &at, shard, list);
        }
        shard.work(&at, stripes, &mut self.out);
        self.send_member_io(env, number, &at, shard);
        self.out.tickets.iter_mut().for_each(|ticket| ticket.set_shard(number));
        // Within the turn: who has the next one, and sees what this one has done, finds them told.
        if !self.out.reports.is_empty() {
            self.shared.report(&mut self.out.reports);
        }
    }

    fn work_log(&mut self, env: &mut Env, role: usize, log: &mut Guard<'_, Log>) {
        let [first, second] = self.shared.log(role).take();
        self.refresh(env);
        let conf = self.conf.value().clone();
        let at = self.shared.at(&conf, self.conf.epoch(), self.port.index());
        let mut brought = self.brought_logs[role].take();
        for list in [&mut brought, &mut { first.0 }, &mut { second.0 }] {
            while let Some(bio) = list.pop() {
                log.take(&at, bio, &mut self.log_out);
            }
        }
        log.work(&at, &mut self.log_out);
        let mut io = std::mem::take(&mut self.log_out.io);
        for (to, is_replacement, mut bio) in io.drain(..) {
            bio.user_data |= ((SHARDS + role) as u64) << 32;
            bio.give_to_channel(self.index);
            self.member_io += 1;
            env.send_down(self.channel_of(&conf, to, is_replacement), bio);
        }
        self.log_out.io = io;
    }

    fn channel_of(&self, conf: &Conf, role: u32, is_replacement: bool) -> u32 {
        let replacements = if is_replacement { conf.layout.disks() } else { 0 };
        self.by_role[(role + replacements) as usize]
    }

    fn take_in(&mut self, env: &mut Env, at: &At<'_>, shard: &mut Shard, list: &mut BioList) {
        while let Some(bio) = list.pop() {
            if bio.is_of_channel() {
                shard.run_ended(at, bio, &mut self.out);
                continue;
            }
            if Ticket::is(&bio) {
                shard.take_ticket(Ticket::of(bio));
                continue;
            }
            let is_sync = match bio.home == self.port.index() {
                true => self.port.brings == Brings::Sync,
                false => self.brings_of(env, bio.home) == Brings::Sync,
            };
            shard.take(at, bio, is_sync, &mut self.out);
        }
    }

    fn brings_of(&mut self, env: &mut Env, home: u32) -> Brings {
        self.ports_now(env).get(home).map_or(Brings::Io, |port| port.brings)
    }

    fn ports_now(&mut self, env: &mut Env) -> &Ports {
        if !self.ports.is_current(&self.shared.ports) {
            self.ports.refresh(&self.shared.ports, &env.locks);
        }
        &self.ports
    }

    fn send_member_io(&mut self, env: &mut Env, number: usize, at: &At<'_>, shard: &mut Shard) {
        let (members, sent, index) = (&self.by_role, &mut self.member_io, self.index);
        let disks = at.conf.layout.disks();
        let channel = |role: u32, is_replacement: bool| {
            members[(role + if is_replacement { disks } else { 0 }) as usize]
        };
        let send = |role: u32, is_replacement: bool, mut bio: Box<Bio>| {
            bio.user_data |= (number as u64) << 32;
            bio.give_to_channel(index);
            *sent += 1;
            env.send_down(channel(role, is_replacement), bio);
        };
        shard.make_runs(at, &mut self.out, send);
    }

    /// Hand on what a turn has left to be done.
    fn deliver(&mut self, env: &mut Env) {
        while let Some(ticket) = self.out.tickets.pop() {
            let role = self.conf.layout.row_at(ticket.sector()).p;
            self.bring_log(role as usize, ticket.into_bio());
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
            env.leave_word(port.doorbell().clone());
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
        env.leave_word(port.doorbell().clone());
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
