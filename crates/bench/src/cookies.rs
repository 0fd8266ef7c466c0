//! Polling by cookies, as a program that submits to io_uring with IOPOLL has it done: what was
//! submitted first is looked for first.
//!
//! Invariant: every bio in flight stands in `order`, at the place of its submission, with its
//! number; what stands there for submissions that have ended, behind one that has not, stays until
//! that has.

use std::collections::VecDeque;

use drystone_core::context::{Cookie, PollPath};
use drystone_core::{BioList, ChannelId, Context};

/// Looks by the ways they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// At the one queue that a submission went to.
    pub queue: u64,
    /// At all queues on which the context has polled I/O.
    pub context: u64,
    /// Elsewhere, or nowhere because nothing was left to be polled.
    pub other: u64,
}

impl Paths {
    /// Those after `earlier`.
    pub fn since(self, earlier: Paths) -> Paths {
        Paths {
            queue: self.queue - earlier.queue,
            context: self.context - earlier.context,
            other: self.other - earlier.other,
        }
    }
}

/// The cookies of one lane's bios, which are told apart by their `user_data`, from 0.
pub struct Cookies {
    /// By bio, with the number of its submission; none while it is idle.
    of: Vec<Option<(Cookie, u64)>>,
    order: VecDeque<(usize, u64)>,
    submissions: u64,
    reaped: BioList,
    paths: Paths,
}

impl Cookies {
    /// For `depth` bios.
    pub fn new(depth: usize) -> Self {
        Cookies {
            of: vec![None; depth],
            order: VecDeque::with_capacity(4 * depth),
            submissions: 0,
            reaped: BioList::new(),
            paths: Paths::default(),
        }
    }

    /// The looks so far.
    pub fn paths(&self) -> Paths {
        self.paths
    }

    /// Submit `bios`, which are polled.
    pub fn submit(&mut self, cx: &mut Context, device: ChannelId, bios: &mut BioList) {
        self.submissions += 1;
        let (first, number) = (self.order.len(), self.submissions);
        self.order.extend(bios.iter().map(|bio| (bio.user_data as usize, number)));
        let cookie = cx.submit_polled(device, bios);
        for (bio, number) in self.order.range(first..) {
            self.of[*bio] = Some((cookie, *number));
        }
    }

    /// Look once, and move to `idle` what has ended. Returns how many.
    pub fn poll(&mut self, cx: &mut Context, idle: &mut BioList) -> usize {
        let oldest = self.order.front().and_then(|(bio, _)| self.of[*bio]);
        let got = match oldest {
            Some((cookie, _)) => {
                match cx.poll_path(&cookie) {
                    PollPath::Queue => self.paths.queue += 1,
                    PollPath::Context => self.paths.context += 1,
                    PollPath::None | PollPath::Other => self.paths.other += 1,
                }
                cx.poll_for(&cookie, &mut self.reaped)
            }
            None => cx.reap(&mut self.reaped),
        };
        self.reaped.iter().for_each(|bio| self.of[bio.user_data as usize] = None);
        idle.append(&mut self.reaped);
        while self.order.front().is_some_and(|entry| !self.is_in_flight(*entry)) {
            self.order.pop_front();
        }
        got
    }

    fn is_in_flight(&self, (bio, number): (usize, u64)) -> bool {
        self.of[bio].is_some_and(|(_, present)| present == number)
    }
}
