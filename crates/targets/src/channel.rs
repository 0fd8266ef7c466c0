//! A volume as one context uses it: it remaps or divides bios, and sends them on to the members.
//!
//! The channel is made of parts that own their state: the [`view`] of what is published, the
//! [`segments`] whose targets hold bios or data, the bios [`held`] while the volume is suspended,
//! and the [`accounts`]. This file has no state but these.
//!
//! Invariants:
//! * A bio that the volume let pass carries the volume's channel in its trail. So it counts as in
//!   flight here until it ends ([`Env::remapped_in_flight`]), even if it was divided.
//! * While the volume is suspended, bios are held in their order and nothing new passes. Bios that
//!   passed before go on by the table that was live then.
//! * The channel shares only published state with other contexts.

mod accounts;
mod delay;
mod end_io;
mod flakey;
mod held;
mod log_writes;
mod segments;
#[cfg(test)]
mod testing;
mod view;

use self::accounts::Accounts;
use self::held::HeldBios;
use self::segments::Segments;
use self::view::{VolumeView, Way};
use crate::shared::Shared;
use crate::table::Table;
use drystone_core::clock::Ns;
use drystone_core::context::RemappedDone;
use drystone_core::mailbox::Message;
use drystone_core::{Bio, BioList, Channel, ChannelId, Env, SECTOR_SIZE, Sector};
use std::sync::Arc;

/// One context's way into a volume. On cache lines of its own.
#[repr(align(128))]
pub struct VolumeChannel {
    view: VolumeView,
    accounts: Accounts,
    held: HeldBios,
    segments: Segments,
}

impl VolumeChannel {
    pub(crate) fn new(shared: Arc<Shared>, env: &mut Env, id: ChannelId) -> Self {
        let mut channel = VolumeChannel {
            view: VolumeView::new(shared.clone(), env, id),
            accounts: Accounts::new(shared),
            held: HeldBios::default(),
            segments: Segments::default(),
        };
        channel.go_by_live(env, true);
        channel
    }

    #[inline]
    fn refresh(&mut self, env: &mut Env) {
        if !self.view.is_current() {
            self.refresh_live(env);
        }
    }

    /// Take over the published state.
    #[cold]
    fn refresh_live(&mut self, env: &mut Env) {
        let live = self.view.published(env);
        if live.closed {
            // Bios that passed go on by the old table, before it is dropped.
            self.segments.send_due(&self.view, env, Ns::MAX);
        }
        let is_new = self.view.replace(live);
        self.go_by_live(env, is_new);
    }

    /// Follow the published state; `is_new` if its table is another one.
    fn go_by_live(&mut self, env: &mut Env, is_new: bool) {
        if is_new {
            self.segments.replace_table(self.view.table(), env.context_id());
        }
        self.view.follow(env);
        if self.view.is_suspended() {
            self.segments.send_due(&self.view, env, Ns::MAX);
            self.view.report(env);
        } else {
            self.release(env);
        }
    }

    /// Start the held bios.
    fn release(&mut self, env: &mut Env) {
        let mut held = self.held.take();
        while let Some(bio) = held.pop() {
            let Some(bio) = self.admit(env, bio) else { continue };
            // A part goes on instead of the bio, because the bio keeps the time at which it was
            // submitted.
            let mut parts = env.divide(bio);
            let bytes = parts.left();
            let part = parts.next(env, bytes);
            self.segments.start(&self.view, env, part);
            env.divided(parts);
        }
        self.accounts.publish(self.view.has_iostats());
    }

    /// Let bios pass that were just submitted. A bio that lies on one member is only remapped, and
    /// gets its time there.
    #[inline]
    fn take(&mut self, env: &mut Env, bios: &mut BioList, now: Ns) {
        let own = self.view.channel();
        self.take_run(env, bios);
        let mut moved = 0;
        loop {
            moved += self.take_striped(env, bios);
            let Some(mut bio) = bios.pop() else { break };
            match self.view.way(&bio) {
                Way::Move(member, sector) => {
                    moved += 1;
                    self.accounts.start(bio.op.group());
                    let noted = bio.begin_remap(own);
                    debug_assert!(noted, "its trail was checked before");
                    self.view.send_to_sector(env, (member, sector), bio);
                }
                Way::Divide => {
                    bio.stamp(now);
                    self.accounts.start(bio.op.group());
                    let bio = env.begin_remap(bio, own);
                    self.segments.divide(&self.view, env, bio);
                }
                Way::Slow => {
                    bio.stamp(now);
                    if let Some(bio) = self.admit(env, bio) {
                        self.segments.start(&self.view, env, bio);
                    }
                }
            }
        }
        env.count_remapped(own, moved);
    }

    /// Send the first bios on as one list, if the table is a single linear segment.
    #[inline]
    fn take_run(&mut self, env: &mut Env, bios: &mut BioList) {
        let (view, accounts, own) = (&self.view, &mut self.accounts, self.view.channel());
        let Some((member, add)) = view.table().and_then(Table::only_linear) else { return };
        let mut run = bios.take_while(|bio| {
            if !view.is_plain(bio) || !bio.begin_remap(own) {
                return false;
            }
            accounts.start(bio.op.group());
            bio.sector = Sector(bio.sector.0.wrapping_add(add));
            true
        });
        env.count_remapped(own, run.len());
        view.send_all(env, member, &mut run);
    }

    /// The same for a single striped segment, while each bio lies in one chunk. Returns how many
    /// went on.
    #[inline]
    fn take_striped(&mut self, env: &mut Env, bios: &mut BioList) -> usize {
        let (view, own) = (&self.view, self.view.channel());
        let Some(striped) = view.table().and_then(Table::only_striped) else { return 0 };
        let mut moved = 0;
        while let Some(bio) = bios.front_mut() {
            if !view.is_plain(bio) {
                break;
            }
            let there = striped.position(bio.sector.0);
            if bio.bytes > there.left * SECTOR_SIZE || !bio.begin_remap(own) {
                break;
            }
            self.accounts.start(bio.op.group());
            moved += 1;
            let Some(bio) = bios.pop() else { break };
            view.send_to_sector(env, (striped.member(there.stripe), there.sector), bio);
        }
        moved
    }

    /// Check a bio and let it pass.
    fn admit(&mut self, env: &mut Env, mut bio: Box<Bio>) -> Option<Box<Bio>> {
        if let Err(status) = self.view.check(&mut bio) {
            env.end_with(bio, status);
            return None;
        }
        self.accounts.start(bio.op.group());
        Some(env.begin_remap(bio, self.view.channel()))
    }
}

impl Channel for VolumeChannel {
    #[inline]
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        self.refresh(env);
        let now = env.time.submit_time();
        self.accounts.submitted(now, self.view.in_flight(env) > 0);
        if self.view.is_suspended() {
            return self.held.hold(env, bios, now);
        }
        self.take(env, bios, now);
        self.accounts.publish(self.view.has_iostats());
    }

    #[inline]
    fn remapped_done(&mut self, env: &mut Env, done: &[RemappedDone]) {
        let (now, busy) = (env.time.completion_time(), self.view.in_flight(env) > 0);
        self.accounts.ended(done, self.view.has_iostats(), now, busy);
        self.view.report(env);
    }

    fn returned(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(bio) = bios.pop() {
            self.segments.returned(&self.view, env, bio);
        }
    }

    fn message(&mut self, env: &mut Env, _message: Arc<Message>) {
        self.refresh(env);
        self.segments.resume_logging(&self.view, env);
        self.view.report(env);
    }

    /// A carrier that waits for a log may wait for a write of another context. That context's owner
    /// may be away, so its ring must be watched.
    fn waits_on_peer(&self) -> bool {
        self.segments.waits_on_peer()
    }

    fn members(&self) -> &[ChannelId] {
        self.view.members()
    }

    fn try_retire(&mut self) -> bool {
        self.view.is_closed() && self.view.close()
    }

    fn deadline(&self) -> Option<Ns> {
        self.segments.due()
    }

    fn tick(&mut self, env: &mut Env, now: Ns) {
        self.segments.send_due(&self.view, env, now);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.segments.in_flight()
    }

    fn cancel_pending(&mut self, env: &mut Env) {
        self.held.cancel(env);
        self.segments.cancel_waiting(&self.view, env);
    }
}
