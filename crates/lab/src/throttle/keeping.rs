//! A channel that keeps bios that must wait, and asks again in time.
//!
//! Invariant: if a group and direction has bios in `kept`, only the first of these may pass.

use std::ops::Range;
use std::sync::Arc;

use drystone_core::clock::Ns;
use drystone_core::mailbox::Message;
use drystone_core::{Bio, BioFlags, BioList, Channel, Env, Op, Status};
use drystone_throttle::ThrottleChannel;

use super::queue::direction;

/// The interface that decides whether a bio may pass.
pub trait Gate: Send {
    /// Charge and count `bio`, which then passes. `now` defaults to the time of its submission.
    ///
    /// # Errors
    /// If the bio may not pass: the time to ask again.
    fn ask(&mut self, env: &mut Env, bio: &Bio, now: Option<Ns>) -> Result<(), Ns>;
}

/// See the module's text.
pub struct Keeping<G> {
    gate: G,
    kept: BioList,
    /// The time to ask again.
    due: Ns,
}

fn kind(bio: &Bio) -> (u32, usize) {
    (bio.group, direction(bio))
}

impl<G: Gate> Keeping<G> {
    pub(super) fn new(gate: G) -> Self {
        Keeping { gate, kept: BioList::new(), due: 0 }
    }

    #[inline]
    fn answer(&mut self, env: &mut Env, bio: &Bio) -> Result<(), Ns> {
        if bio.op == Op::Flush {
            return Ok(());
        }
        if !self.kept.is_empty() && self.kept.iter().any(|it| kind(it) == kind(bio)) {
            return Err(self.due);
        }
        self.gate.ask(env, bio, None)
    }

    fn keep(&mut self, env: &mut Env, bio: Box<Bio>, at: Ns) {
        if bio.flags.contains(BioFlags::NOWAIT) {
            env.end_with(bio, Status::Again);
            return;
        }
        self.due = if self.kept.is_empty() { at } else { self.due.min(at) };
        self.kept.push(bio);
    }

    /// Ask again for each bio that may be next; bios that pass go to `pass`.
    fn retry(&mut self, env: &mut Env, now: Ns, pass: &mut BioList) {
        let (mut bios, mut blocked) = (self.kept.take(), Vec::new());
        self.due = Ns::MAX;
        while let Some(bio) = bios.pop() {
            let answer = match blocked.contains(&kind(&bio)) {
                true => Err(Ns::MAX),
                false => self.gate.ask(env, &bio, Some(now)),
            };
            match answer {
                Ok(()) => pass.push(bio),
                Err(at) => {
                    self.due = self.due.min(at);
                    blocked.push(kind(&bio));
                    self.kept.push(bio);
                }
            }
        }
    }
}

impl<G: Gate> ThrottleChannel for Keeping<G> {
    #[inline]
    fn admit(&mut self, env: &mut Env, _: &mut impl Channel, bios: &mut BioList) {
        let mut pass = BioList::new();
        loop {
            let mut answer = Ok(());
            pass.append(&mut bios.take_while(|bio| {
                answer = self.answer(env, bio);
                answer.is_ok()
            }));
            let (Err(at), Some(bio)) = (answer, bios.pop()) else { break };
            self.keep(env, bio, at);
        }
        std::mem::swap(bios, &mut pass);
    }

    #[inline]
    fn message(&mut self, _: &mut Env, _: &Arc<Message>, _: &mut BioList) -> bool {
        false
    }

    #[inline]
    fn deadline(&self) -> Option<Ns> {
        (!self.kept.is_empty()).then_some(self.due)
    }

    fn tick(&mut self, env: &mut Env, now: Ns, pass: &mut BioList) {
        if self.deadline().is_some_and(|due| due <= now) {
            self.retry(env, now, pass);
        }
    }

    #[inline]
    fn waiting(&self) -> usize {
        self.kept.len()
    }

    fn withdraw(&mut self, env: &mut Env, range: &Range<u64>, _: &mut BioList) {
        let mut bios = self.kept.take();
        while let Some(bio) = bios.pop() {
            match range.contains(&bio.user_data) {
                true => env.end_with(bio, Status::Cancelled),
                false => self.kept.push(bio),
            }
        }
    }

    fn cancel(&mut self, env: &mut Env) {
        while let Some(bio) = self.kept.pop() {
            env.end_with(bio, Status::Cancelled);
        }
    }

    fn try_end(&mut self) -> bool {
        self.kept.is_empty()
    }
}
