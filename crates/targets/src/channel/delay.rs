//! `delay` as one context uses it: the waiting bios, and their times.
//!
//! Invariants:
//! * The waiting bios are parts that the volume made. The bio that they belong to has passed, is in
//!   flight and keeps its submission time.
//! * A class keeps its bios in their order of arrival. All of them wait equally long, so the first
//!   one is due first.
//! * `due` is the time at which the next bio is due.
//! * No bio waits in a channel that has seen the suspension of its volume, nor in a context without
//!   an owner: no thread would send it on.

use super::view::VolumeView;
use crate::delay::{CLASSES, Class, Delay};
use crate::table::Table;
use drystone_core::clock::Ns;
use drystone_core::{Bio, BioFlags, Env, Status};
use std::collections::VecDeque;

struct Waiting {
    due: Ns,
    /// Numbers the bios of the segment in their order of arrival.
    number: u64,
    bio: Box<Bio>,
}

/// The bios that wait for one segment.
#[derive(Default)]
struct Queue {
    classes: [VecDeque<Waiting>; CLASSES],
    arrived: u64,
}

impl Queue {
    /// Keep a bio. Returns the time at which it is due.
    fn keep(&mut self, delay: &Delay, class: Class, now: Ns, bio: Box<Bio>) -> Ns {
        let due = now.saturating_add(delay.delay_ns(class));
        self.classes[class as usize].push_back(Waiting { due, number: self.arrived, bio });
        self.arrived += 1;
        delay.begin(class);
        due
    }

    /// Take the due bio that came first.
    fn take(&mut self, delay: &Delay, now: Ns) -> Option<(Class, Box<Bio>)> {
        let first = |class: &Class| {
            let first = self.classes[*class as usize].front();
            first.filter(|waiting| waiting.due <= now).map(|waiting| waiting.number)
        };
        let class = Class::EACH.into_iter().filter(|c| first(c).is_some()).min_by_key(first)?;
        let waiting = self.classes[class as usize].pop_front()?;
        delay.end(class);
        Some((class, waiting.bio))
    }

    fn due(&self) -> Option<Ns> {
        self.classes.iter().filter_map(|class| class.front().map(|first| first.due)).min()
    }
}

/// The bios that wait for the `delay` segments of a table, by their numbers.
#[derive(Default)]
pub(super) struct Delays {
    queues: Vec<Queue>,
    due: Option<Ns>,
}

impl Delays {
    /// The queues of a table that the context has not used yet.
    pub(super) fn new(table: &Table) -> Self {
        Delays { queues: table.delays().iter().map(|_| Queue::default()).collect(), due: None }
    }

    /// The number of waiting bios.
    pub(super) fn len(&self) -> usize {
        self.queues.iter().flat_map(|queue| &queue.classes).map(VecDeque::len).sum()
    }

    /// The time at which the next bio is due.
    pub(super) fn due(&self) -> Option<Ns> {
        self.due
    }

    fn keep(&mut self, number: u32, delay: &Delay, class: Class, now: Ns, bio: Box<Bio>) {
        let due = self.queues[number as usize].keep(delay, class, now, bio);
        self.due = Some(self.due.map_or(due, |other| other.min(due)));
    }

    /// Take all due bios, those of each segment in their order of arrival.
    fn take(&mut self, table: &Table, now: Ns, mut taken: impl FnMut((u32, u64), Box<Bio>)) {
        for (queue, delay) in self.queues.iter_mut().zip(table.delays()) {
            while let Some((class, bio)) = queue.take(delay, now) {
                taken(delay.place(class), bio);
            }
        }
        self.due = self.queues.iter().filter_map(Queue::due).min();
    }

    /// Send on or keep a part of `delay` segment `number`.
    #[inline(never)]
    pub(super) fn submit(&mut self, view: &VolumeView, env: &mut Env, number: u32, bio: Box<Bio>) {
        let Some(table) = view.table() else {
            return env.end_with(bio, Status::IoError);
        };
        let (delay, class) = (table.delay(number), Class::of(&bio));
        if view.is_suspended() || delay.delay_ns(class) == 0 {
            return view.send_moved(env, delay.place(class), bio);
        }
        if env.is_draining() {
            return env.end_with(bio, Status::Cancelled);
        }
        if bio.flags.contains(BioFlags::NOWAIT) {
            return env.end_with(bio, Status::Again);
        }
        let now = env.time.recent();
        self.keep(number, delay, class, now, bio);
    }

    /// Send on the bios that are due at `now`.
    pub(super) fn send_due(&mut self, view: &VolumeView, env: &mut Env, now: Ns) {
        if let Some(table) = view.table() {
            self.take(table, now, |place, bio| view.send_moved(env, place, bio));
        }
    }

    /// End all waiting bios.
    pub(super) fn cancel(&mut self, view: &VolumeView, env: &mut Env) {
        if let Some(table) = view.table() {
            self.take(table, Ns::MAX, |_, bio| env.end_with(bio, Status::Cancelled));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the due bios, the one that came first goes first, even if one of another class was due
    /// earlier.
    #[test]
    fn due_bios_go_in_the_order_in_which_they_came() {
        let (delay, mut queue) = (Delay::of_ns([50, 10, 30]), Queue::default());
        let classes = [Class::Read, Class::Write, Class::Flush, Class::Write, Class::Read];
        let due: Vec<Ns> = (0..)
            .zip(classes)
            .map(|(n, class)| {
                let mut bio = Bio::flush();
                bio.user_data = n;
                queue.keep(&delay, class, n, bio)
            })
            .collect();
        assert_eq!(due, [50, 11, 32, 13, 54]);
        assert_eq!((queue.due(), delay.status().as_str()), (Some(11), " 2 2 1"));
        let mut take = |now| {
            let taken = std::iter::from_fn(|| queue.take(&delay, now));
            taken.map(|(_, bio)| bio.user_data).collect::<Vec<_>>()
        };
        assert_eq!(take(10), [0; 0]);
        assert_eq!(take(12), [1]);
        assert_eq!(take(53), [0, 2, 3]);
        assert_eq!(take(54), [4]);
        assert_eq!((queue.due(), delay.status().as_str()), (None, " 0 0 0"));
    }
}
