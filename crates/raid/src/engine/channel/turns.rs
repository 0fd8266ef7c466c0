//! The turns that a channel has at shards: what it brings there, and what it takes away.

use super::ArrayChannel;
use crate::engine::port::{Brings, Ports};
use crate::engine::shard::{At, Shard};
use crate::engine::shared::{SHARDS, Shared};
use drystone_core::sync::Guard;
use drystone_core::turn::Place;
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
        item.home = self.port.index;
        item.status = drystone_core::Status::Ok;
        self.items += 1;
        env.entrusted += 1;
        self.brought[shard].push(item);
        self.touched |= 1 << shard;
    }

    /// I/O to a member has ended.
    pub(super) fn member_io_ended(&mut self, bio: Box<Bio>) {
        self.member_io -= 1;
        let shard = (bio.user_data >> 32) as usize;
        self.brought[shard].push(bio);
        self.touched |= 1 << shard;
    }

    /// Others may have left something at shards for whoever comes.
    pub(super) fn touch_published(&mut self) {
        let published = (0..SHARDS).filter(|shard| self.shared.shard(*shard).has_published());
        self.touched = published.fold(self.touched, |touched, shard| touched | 1 << shard);
    }

    pub(super) fn run_touched(&mut self, env: &mut Env) {
        while self.touched != 0 {
            let shard = self.touched.trailing_zeros() as usize;
            self.touched &= self.touched - 1;
            self.run(env, shard);
        }
    }

    /// Have a shard do all that there is to do, here or by whoever has the turn.
    fn run(&mut self, env: &mut Env, number: usize) {
        let shared = self.shared.clone();
        let shard = shared.shard(number);
        if env.is_abandoned() {
            return self.leave_to_manager(env, number);
        }
        for _ in 0..ROUNDS_MAX {
            let brought = &mut self.brought[number];
            let turn = shard.enter(&env.locks, self.port.index, brought, Place::Tail);
            let Some(mut turn) = turn else { return };
            self.work(env, number, &mut turn);
            let again = shard.leave(turn);
            self.deliver(env);
            if !again {
                return;
            }
        }
        let publisher = self.ports_now(env).get(shard.publisher()).cloned();
        if let Some(publisher) = publisher {
            env.send_and_kick(publisher.word.clone());
        }
    }

    /// The context was dropped: what it would begin might never be carried on.
    fn leave_to_manager(&mut self, env: &mut Env, number: usize) {
        let brought = &mut self.brought[number];
        if brought.is_empty() {
            return;
        }
        self.shared.shard(number).leave_to_others(&env.locks, brought, Place::Tail);
        if let Some(manager) = self.ports_now(env).get(MANAGERS_PORT).cloned() {
            env.send_and_kick(manager.word.clone());
        }
    }

    fn work(&mut self, env: &mut Env, number: usize, shard: &mut Guard<'_, Shard>) {
        // Somebody with a later configuration may have been here.
        if shard.epoch() > self.epoch {
            self.refresh(env);
        }
        let conf = self.conf.clone();
        let at = self.shared.at(&conf, self.epoch, self.port.index);
        let stripes = Shared::stripes_of(&conf, number);
        shard.refresh(&at, stripes, &mut self.out);
        let [first, second] = self.shared.shard(number).take();
        let mut brought = self.brought[number].take();
        for list in [&mut brought, &mut { first.0 }, &mut { second.0 }] {
            self.take_in(env, &at, shard, list);
        }
        shard.work(&at, stripes, &mut self.out);
        self.send_member_io(env, number, &at, shard);
    }

    fn take_in(&mut self, env: &mut Env, at: &At<'_>, shard: &mut Shard, list: &mut BioList) {
        while let Some(bio) = list.pop() {
            if bio.is_of_channel() {
                shard.run_ended(at, bio, &mut self.makings, &mut self.out);
                continue;
            }
            let is_sync = match bio.home == self.port.index {
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
        if self.shared.ports.epoch() != self.ports_epoch {
            (self.ports_epoch, self.ports) = self.shared.ports.get(&env.locks);
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
        shard.make_runs(at, &mut self.out, &mut self.makings, send);
    }

    /// Hand on what a turn has left to be done.
    fn deliver(&mut self, env: &mut Env) {
        if self.out.mismatches > 0 {
            self.shared.add_mismatches(std::mem::take(&mut self.out.mismatches));
        }
        if !self.out.reports.is_empty() {
            self.shared.report(&mut self.out.reports);
        }
        while let Some(home) = self.out.foreign.pop() {
            self.tell_of_foreign(env, home);
        }
        let mut done = self.out.done.take();
        while let Some(bio) = done.pop() {
            match bio.home == self.port.index {
                true => self.end_item(env, bio),
                false => self.end_for_other(env, bio),
            }
        }
    }

    fn tell_of_foreign(&mut self, env: &mut Env, home: u32) {
        if home == self.port.index {
            self.port.set_foreign();
            return;
        }
        let port = self.ports_now(env).get(home).cloned();
        if let Some(port) = port.filter(|port| port.set_foreign()) {
            env.leave_word(port.word.clone());
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
        env.leave_word(port.word.clone());
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
