//! The array's thread: takes stripes with work, reads missing pages, computes parity, writes, and
//! frees the stripes.
//!
//! Invariants:
//! * The thread has a reference to each stripe that it handles until that is `done`. From the
//!   stripe's first I/O to its last write no other thread has the stripe.
//! * `valid` are the pages with the same contents as on the members. A page is away while its I/O
//!   is in flight.

use std::sync::Arc;

use drystone_core::primitive::Ordering::*;
use drystone_core::{Bio, BioList, ChannelId, Context, IoBuf, Op, Sector};
use drystone_parity::Parity;

use super::array::Ticket;
use super::cache::STRIPES;
use super::shared::{PAGE, Page, Shared};

/// Stripes handled in a row (Linux `MAX_STRIPE_BATCH`).
const BATCH: usize = 8;
/// The I/O of a flush, which belongs to no stripe.
const FLUSH: u64 = u64::MAX;

/// The way in which parity is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// From the changes: the old data of the written pages and the old parity are needed.
    Modify,
    /// From all data: that of the pages that are not written is needed.
    Reconstruct,
}

/// Pages of a stripe by role, a bit each.
type Roles = u128;

/// A stripe's pages, and the state of their handling.
#[derive(Default)]
struct State {
    sector: Option<u64>,
    pages: Vec<Option<IoBuf>>,
    valid: Roles,
    writes: Vec<Page>,
    method: Option<Method>,
    in_flight: usize,
}

/// See the module's text.
pub(super) struct Raid5d {
    shared: Arc<Shared>,
    cx: Context,
    members: Vec<ChannelId>,
    parity: Parity,
    states: Vec<State>,
    /// Bios for each member, not submitted yet.
    out: Vec<BioList>,
    /// References to give back.
    done: Vec<u32>,
    work: Vec<u32>,
    flushing: Vec<Arc<Ticket>>,
    flushes_left: usize,
}

impl Raid5d {
    pub(super) fn new(shared: Arc<Shared>, cx: Context, members: Vec<ChannelId>) -> Self {
        let page = |_| Some(IoBuf::zeroed(PAGE));
        let state = |_| State { pages: (0..members.len()).map(page).collect(), ..State::default() };
        Raid5d {
            states: (0..STRIPES).map(state).collect(),
            out: members.iter().map(|_| BioList::new()).collect(),
            parity: Parity::detect(),
            done: Vec::new(),
            work: Vec::with_capacity(BATCH),
            flushing: Vec::new(),
            flushes_left: 0,
            shared,
            cx,
            members,
        }
    }

    pub(super) fn run(mut self) {
        loop {
            let moved = self.round();
            if !moved && self.shared.stop.load(Acquire) {
                return;
            }
            if !moved {
                self.cx.wait(None);
            }
        }
    }

    /// Does one round of all work. True if there was any.
    fn round(&mut self) -> bool {
        let shared = self.shared.clone();
        let locks = self.cx.locks().clone();
        shared.cache.take_released(&mut self.done);
        let mut moved = !self.done.is_empty();
        shared.cache.retire(&mut self.done, &locks);
        let mut work = std::mem::take(&mut self.work);
        shared.cache.take_work(BATCH, &mut work, &locks);
        moved |= !work.is_empty();
        work.drain(..).for_each(|number| self.handle(number));
        self.work = work;
        self.flush();
        for (member, bios) in self.members.iter().zip(&mut self.out) {
            if !bios.is_empty() {
                self.cx.submit(*member, bios);
            }
        }
        moved | self.reap()
    }

    fn reap(&mut self) -> bool {
        let mut ended = BioList::new();
        self.cx.reap(&mut ended);
        let any = !ended.is_empty();
        while let Some(bio) = ended.pop() {
            self.ended(bio);
        }
        any
    }

    /// Handles a stripe with work.
    fn handle(&mut self, number: u32) {
        let (shared, locks) = (self.shared.clone(), self.cx.locks().clone());
        let stripe = shared.cache.stripe(number);
        self.find_pages(number, stripe.sector());
        let wanted = stripe.look(&locks, roles_of);
        let (_, missing) = self.plan(number, wanted);
        if missing != 0 && !stripe.may_read() {
            self.done.push(number);
            return;
        }
        let writes = stripe.take(&locks);
        let (method, missing) = self.plan(number, roles_of(&writes));
        let state = &mut self.states[number as usize];
        (state.writes, state.method) = (writes, Some(method));
        match missing {
            0 => self.write(number),
            _ => self.start(number, Op::Read, missing),
        }
    }

    /// Finds the pages of a stripe. If the stripe has another sector now, no page is valid.
    fn find_pages(&mut self, number: u32, sector: u64) {
        let state = &mut self.states[number as usize];
        if state.sector != Some(sector) {
            (state.sector, state.valid) = (Some(sector), 0);
        }
    }

    /// The method to write these pages, and the pages to read for it: the method with fewer reads,
    /// and on a tie reconstruct-write (Linux `rmw_level` 1).
    fn plan(&self, number: u32, written: Roles) -> (Method, Roles) {
        let state = &self.states[number as usize];
        let (data, parity) = self.roles(number);
        let modify = (written | parity) & !state.valid;
        let reconstruct = data & !written & !state.valid;
        match modify.count_ones() < reconstruct.count_ones() {
            true => (Method::Modify, modify),
            false => (Method::Reconstruct, reconstruct),
        }
    }

    /// The roles of data and of parity.
    fn roles(&self, number: u32) -> (Roles, Roles) {
        let sector = self.states[number as usize].sector.unwrap_or_default();
        let parity = 1 << self.shared.layout.row_at(sector).p.0;
        let all = Roles::MAX >> (Roles::BITS as usize - self.members.len());
        (all & !parity, parity)
    }

    /// Puts the new data into the pages, computes parity, and writes; all needed pages are there.
    fn write(&mut self, number: u32) {
        let (data, parity) = self.roles(number);
        let state = &mut self.states[number as usize];
        let written = roles_of(&state.writes);
        let (role, sums) = (parity.trailing_zeros() as usize, &self.parity);
        let Some(mut p) = state.pages[role].take() else { unreachable!("no I/O is in flight") };
        match state.method {
            Some(Method::Modify) => {
                sums.xor_into(&mut p, &state.slices(written));
                state.fill();
                sums.xor_into(&mut p, &state.slices(written));
            }
            _ => {
                state.fill();
                sums.xor_of(&mut p, &state.slices(data));
            }
        }
        state.pages[role] = Some(p);
        state.method = None;
        state.valid |= written | parity;
        self.start(number, Op::Write, written | parity);
    }

    /// I/O of these pages.
    fn start(&mut self, number: u32, op: Op, roles: Roles) {
        let state = &mut self.states[number as usize];
        let sector = Sector(state.sector.unwrap_or_default());
        for role in each(roles) {
            let Some(page) = state.pages[role].take() else { unreachable!("a page is away") };
            let mut bio =
                if op == Op::Read { Bio::read(sector, page) } else { Bio::write(sector, page) };
            bio.user_data = u64::from(number) << 8 | role as u64;
            state.in_flight += 1;
            self.out[role].push(bio);
        }
    }

    fn ended(&mut self, mut bio: Box<Bio>) {
        if !bio.status.is_ok() {
            self.shared.failed.store(true, Relaxed);
        }
        if bio.user_data == FLUSH {
            return self.flushed();
        }
        let (number, role) = ((bio.user_data >> 8) as u32, bio.user_data as usize & 0xff);
        let state = &mut self.states[number as usize];
        state.pages[role] = bio.take_buf();
        state.valid |= 1 << role;
        state.in_flight -= 1;
        match (state.in_flight, state.method) {
            (0, Some(_)) => self.write(number),
            (0, None) => self.finish(number),
            _ => {}
        }
    }

    /// Finishes a stripe whose writes have ended.
    fn finish(&mut self, number: u32) {
        let locks = self.cx.locks().clone();
        let writes = std::mem::take(&mut self.states[number as usize].writes);
        self.shared.written.fetch_add(writes.len() as u64, Relaxed);
        for Page { data, ticket, .. } in writes {
            // The owner reuses the memory as soon as the last bio has ended.
            drop(data);
            ticket.end(&locks);
        }
        self.shared.cache.end_preread(number);
        self.done.push(number);
    }

    /// Flushes all members for all tickets that asked for it, unless a flush is in flight.
    fn flush(&mut self) {
        if self.flushes_left > 0 {
            return;
        }
        self.flushing.append(&mut self.shared.flushes.lock(self.cx.locks()));
        if self.flushing.is_empty() {
            return;
        }
        for bios in &mut self.out {
            let mut bio = Bio::flush();
            bio.user_data = FLUSH;
            bios.push(bio);
            self.flushes_left += 1;
        }
    }

    fn flushed(&mut self) {
        self.flushes_left -= 1;
        if self.flushes_left == 0 {
            let locks = self.cx.locks().clone();
            self.flushing.drain(..).for_each(|ticket| ticket.end(&locks));
        }
    }
}

impl State {
    /// The pages of some roles.
    fn slices(&self, roles: Roles) -> Vec<&[u8]> {
        each(roles).filter_map(|role| self.pages[role].as_deref()).collect()
    }

    /// Copies the written data into the pages, in order.
    fn fill(&mut self) {
        for write in &self.writes {
            let Some(page) = &mut self.pages[write.role as usize] else { continue };
            page.copy_from_slice(write.bytes());
        }
    }
}

fn roles_of(pages: &[Page]) -> Roles {
    pages.iter().fold(0, |roles, page| roles | 1 << page.role)
}

fn each(roles: Roles) -> impl Iterator<Item = usize> {
    (0..Roles::BITS as usize).filter(move |role| roles >> role & 1 != 0)
}
