//! The buffers and pipes of one connection, which are reused: so the steady state allocates none,
//! and a buffer with one client's data never reaches another client.
//!
//! Invariant: a pool's share of the [`super::Budget`] covers the buffers that it has made, idle
//! ones too. A connection reserves room before it takes a buffer for a request's data
//! ([`Pool::reserve`]). The share does not cover replies without data, nor the buffers that a
//! worker lends, which have a bound of their own ([`super::reserve`]). Nor does it cover pages of a
//! device that a pipe refers to: a connection has at most [`PIPES`] pipes.

use super::budget::{MINIMUM, Share};
use super::ledger::Key;
use super::reserve::{CLASSES, DATA_AT, Reserve, class_bytes, class_of};
use drystone_core::{Bio, BioList, Device, IoBuf, Pipe, Priority};
use std::sync::Arc;

/// Bytes of idle buffers that a pool keeps while memory is not scarce.
const KEEP_BYTES: u64 = 8 << 20;
/// Idle bios that a connection keeps.
const KEEP_BIOS: usize = 256;
/// Pipes that a connection has, idle or in use. Further long reads are copied.
const PIPES: usize = 4;

/// A pool of buffers and bios.
pub(crate) struct Pool {
    reserve: Arc<Reserve>,
    share: Share,
    /// Bytes of the buffers that the pool has made, idle or in use.
    held: u64,
    idle: [Vec<IoBuf>; CLASSES],
    idle_bytes: u64,
    bios: BioList,
    /// Idle pipes for long reads.
    #[expect(clippy::vec_box, reason = "bios, and parts to send, have them in boxes")]
    pipes: Vec<Box<Pipe>>,
    /// Pipes that it has opened, idle or in use.
    pipes_held: usize,
    /// A pipe was taken since the last sweep.
    pipes_used: bool,
    /// The priority of every bio.
    pub(crate) priority: Priority,
    /// The throttle group of every bio.
    group: u32,
}

/// Bytes of memory that a buffer takes.
fn bytes_of(buf: &IoBuf) -> u64 {
    IoBuf::memory_of(buf.len()) as u64
}

impl Pool {
    pub(crate) fn new(reserve: Arc<Reserve>, share: Share) -> Self {
        Pool {
            reserve,
            share,
            held: 0,
            idle: Default::default(),
            idle_bytes: 0,
            bios: BioList::new(),
            pipes: Vec::new(),
            pipes_held: 0,
            pipes_used: false,
            priority: Priority::default(),
            group: 0,
        }
    }

    /// Sets the device and throttle group of its requests, which are one consumer of the budget.
    /// Called once, before anything is reserved.
    pub(crate) fn join(&mut self, device: &Arc<dyn Device>, group: u32) {
        // Clients keep their device alive, so its address is unique.
        let device = Arc::as_ptr(device).cast::<()>().addr();
        self.group = group;
        self.share.join(Key { device, group });
    }

    /// True if the caller may take a buffer with room for `data_bytes`; it does so at once. If not,
    /// the pool waits for memory ([`Pool::waits`]): call again with the same size then.
    #[inline]
    pub(crate) fn reserve(&mut self, data_bytes: usize) -> bool {
        if self.share.has_asked() {
            return self.share.take_granted();
        }
        let class = class_of(data_bytes);
        let bytes = IoBuf::memory_of(class.map_or(DATA_AT + data_bytes, class_bytes)) as u64;
        if self.share.is_revoked() {
            return self.reserve_afresh(bytes);
        }
        let is_idle = class.is_some_and(|class| !self.idle[class].is_empty());
        is_idle || self.held + bytes <= self.share.room() || self.reserve_more(bytes)
    }

    /// Gives the share back, because others need it, and then reserves anew.
    #[cold]
    fn reserve_afresh(&mut self, bytes: u64) -> bool {
        self.shrink_to(0);
        self.share.settle_all(self.held);
        if self.held + bytes <= MINIMUM {
            return true;
        }
        self.share.wait_for(bytes);
        self.share.take_granted()
    }

    #[cold]
    fn reserve_more(&mut self, bytes: u64) -> bool {
        if self.share.take(self.lacks(bytes)) {
            return true;
        }
        // Idle buffers here would not help others, so they are freed.
        self.shrink_to(0);
        self.share.settle_all(self.held);
        if self.lacks(bytes) == 0 || self.share.take(self.lacks(bytes)) {
            return true;
        }
        // The request needs so much once nothing else is held.
        self.share.wait_for(bytes);
        self.share.take_granted()
    }

    /// The bytes that the share lacks for `bytes` more.
    fn lacks(&self, bytes: u64) -> u64 {
        (self.held + bytes).saturating_sub(self.share.room())
    }

    /// True while it waits for memory; its thread is woken when there is some.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.share.waits()
    }

    /// Wait no more.
    pub(crate) fn wait_no_more(&mut self) {
        self.share.wait_no_more();
    }

    /// True if it has more than the minimum, or was granted more, even if its client does not take
    /// that; or pipes that lie idle.
    #[inline]
    pub(crate) fn has_share(&self) -> bool {
        !self.share.is_empty() || self.share.is_granted() || !self.pipes.is_empty()
    }

    /// True if a client without memory waits, and this pool's memory would let it go on.
    pub(crate) fn is_wanted_by_others(&self) -> bool {
        self.share.is_wanted_by_others()
    }

    /// A buffer with room for `data_bytes` from [`DATA_AT`] on. Its contents are whatever this
    /// connection last had in it. `None` when memory is short.
    pub(crate) fn take(&mut self, data_bytes: usize) -> Option<IoBuf> {
        let Some(class) = class_of(data_bytes) else { return self.make(DATA_AT + data_bytes) };
        match self.idle[class].pop() {
            Some(buf) => {
                self.idle_bytes -= bytes_of(&buf);
                Some(buf)
            }
            None => self.take_new(class),
        }
    }

    #[cold]
    fn take_new(&mut self, class: usize) -> Option<IoBuf> {
        let lent = self.reserve.take(class);
        lent.or_else(|| self.make(class_bytes(class)))
    }

    fn make(&mut self, bytes: usize) -> Option<IoBuf> {
        let made = IoBuf::try_zeroed(bytes)?;
        self.held += bytes_of(&made);
        Some(made)
    }

    /// Give a buffer back.
    pub(crate) fn give(&mut self, buf: IoBuf) {
        let class = buf.len().checked_sub(DATA_AT).and_then(class_of);
        let class = class.filter(|class| buf.len() == class_bytes(*class));
        let bytes = bytes_of(&buf);
        match class {
            Some(class) if self.idle_bytes + bytes <= self.keeps() => {
                self.idle_bytes += bytes;
                self.idle[class].push(buf);
            }
            _ => self.discard(buf),
        }
        self.share.settle(self.held);
    }

    /// Bytes of idle buffers that it keeps.
    #[inline]
    fn keeps(&self) -> u64 {
        let most = if self.share.is_wanted() { MINIMUM } else { KEEP_BYTES };
        most.min(self.share.room())
    }

    fn discard(&mut self, buf: IoBuf) {
        if !buf.is_in_arena() {
            self.held -= bytes_of(&buf);
            self.reserve.note_freed(bytes_of(&buf));
        } else if let Some(class) = class_of(buf.len() - DATA_AT) {
            self.reserve.give(class, buf);
        }
    }

    /// Close idle pipes, unless one was taken since the last call: others may want them.
    pub(crate) fn sweep_pipes(&mut self) {
        if !std::mem::take(&mut self.pipes_used) {
            self.pipes_held -= self.pipes.drain(..).count();
        }
    }

    /// Free idle buffers beyond the minimum.
    pub(crate) fn shrink(&mut self) {
        self.shrink_to(MINIMUM);
        self.share.settle_all(self.held);
    }

    fn shrink_to(&mut self, bytes: u64) {
        for class in (0..CLASSES).rev() {
            while self.idle_bytes > bytes
                && let Some(buf) = self.idle[class].pop()
            {
                self.idle_bytes -= bytes_of(&buf);
                self.discard(buf);
            }
        }
    }

    /// An idle bio.
    pub(crate) fn bio(&mut self) -> Box<Bio> {
        let mut bio = self.bios.pop().unwrap_or_else(Bio::flush);
        (bio.priority, bio.group) = (self.priority, self.group);
        bio
    }

    /// An idle pipe for a long read; `None` where the connection or the process has as many as it
    /// may have.
    pub(crate) fn take_pipe(&mut self) -> Option<Box<Pipe>> {
        self.pipes_used = true;
        if let Some(pipe) = self.pipes.pop() {
            return Some(pipe);
        }
        let pipe = if self.pipes_held < PIPES { Pipe::open() } else { None };
        self.pipes_held += usize::from(pipe.is_some());
        pipe
    }

    /// The pipe of `bio`, a read that has ended, if it has all of its data. Others come back.
    pub(crate) fn data_of(&mut self, pipe: Box<Pipe>, bio: &Bio) -> Option<Box<Pipe>> {
        if bio.status.is_ok() && !pipe.is_empty() {
            assert_eq!(pipe.len() as u64, bio.bytes, "a driver fills a pipe with all of a read");
            return Some(pipe);
        }
        self.give_pipe(pipe);
        None
    }

    /// Give a pipe back. One that still holds something is closed.
    pub(crate) fn give_pipe(&mut self, pipe: Box<Pipe>) {
        match pipe.is_idle() {
            true => self.pipes.push(pipe),
            false => self.pipes_held -= 1,
        }
    }

    /// Give a completed bio back; its buffer, if it has one, is returned.
    pub(crate) fn give_bio(&mut self, mut bio: Box<Bio>) -> Option<IoBuf> {
        let buf = bio.take_buf();
        if self.bios.len() < KEEP_BIOS {
            self.bios.push(bio);
        }
        buf
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.reserve.note_freed(self.held);
        for (class, idle) in self.idle.iter_mut().enumerate() {
            let lent = idle.drain(..).filter(IoBuf::is_in_arena);
            lent.for_each(|buf| self.reserve.give(class, buf));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Budget;
    use super::*;
    use drystone_core::clock::ManualClock;
    use drystone_core::ring::Engine;
    use drystone_core::sync::LockCounters;
    use drystone_core::{Arena, ContextSet};

    /// A pool of a client of the consumer `group`.
    fn pool_in(group: u32, reserve: Arc<Reserve>, budget: &Arc<Budget>) -> Pool {
        let cx = ContextSet::new(ManualClock::new(1)).open(Engine::Plain).unwrap();
        let mut share = Share::new(budget.clone(), cx.locks().sibling(), cx.handle().clone());
        share.join(Key { device: 1, group });
        Pool::new(reserve, share)
    }

    fn pool_of(reserve: Arc<Reserve>, budget: &Arc<Budget>) -> Pool {
        pool_in(0, reserve, budget)
    }

    fn pool(arena: Option<Arc<Arena>>, budget: &Arc<Budget>) -> Pool {
        pool_of(Reserve::new(arena, LockCounters::new(ManualClock::new(1))), budget)
    }

    #[cfg(not(miri))]
    #[test]
    fn a_connection_has_few_pipes_and_keeps_those_that_are_empty() {
        let budget = Budget::unlimited();
        let mut pool = pool(None, &budget);
        let mut taken: Vec<_> = std::iter::from_fn(|| pool.take_pipe()).collect();
        assert_eq!(taken.len(), PIPES);
        let mut spoiled = taken.pop().expect("a pipe");
        spoiled.begin();
        pool.give_pipe(spoiled);
        taken.push(pool.take_pipe().expect("one more, since that was closed"));
        taken.drain(..).for_each(|pipe| pool.give_pipe(pipe));
        assert!(pool.has_share(), "a sweep looks at it");
        pool.sweep_pipes();
        assert!(pool.has_share() && pool.pipes_held == PIPES, "they were used just now");
        pool.sweep_pipes();
        assert!(!pool.has_share() && pool.pipes_held == 0);
    }

    fn free(budget: &Budget) -> u64 {
        budget.free(&LockCounters::new(ManualClock::new(1)))
    }

    fn take(pool: &mut Pool, bytes: usize) -> IoBuf {
        assert!(pool.reserve(bytes), "{bytes} bytes are there");
        pool.take(bytes).unwrap()
    }

    #[test]
    fn lent_buffers_go_on_without_their_contents() {
        let budget = Budget::new(0);
        let mut first = pool(Arena::new(1 << 16), &budget);
        let mut second = pool_of(first.reserve.clone(), &budget);
        let mut buf = first.take(4096).unwrap();
        assert!(buf.is_in_arena());
        let address = buf.as_ptr();
        buf.fill(7);
        first.give(buf);
        drop(first);
        let buf = second.take(4096).unwrap();
        assert_eq!(buf.as_ptr(), address);
        assert!(buf.iter().all(|b| *b == 0), "another client's data");
        let more: Vec<_> = (0..9).map(|_| second.take(4096).unwrap()).collect();
        assert!(!more[8].is_in_arena(), "when the reserve is used up, memory is taken as ever");
        assert_eq!(second.held, 2 * 3 * 4096, "what is lent counts elsewhere");
    }

    #[test]
    fn what_was_freed_is_trimmed_once() {
        let mut pool = pool(None, &Budget::unlimited());
        let reserve = pool.reserve.clone();
        let kept = take(&mut pool, 1 << 20);
        let bufs: Vec<_> = (0..12).map(|_| take(&mut pool, 1 << 20)).collect();
        bufs.into_iter().for_each(|buf| pool.give(buf));
        assert!(reserve.wants_trim(), "five are not kept");
        reserve.trim();
        assert!(!reserve.wants_trim());
        drop((pool, kept));
        assert!(reserve.wants_trim(), "the client has gone");
    }

    #[test]
    fn buffers_come_back() {
        let mut pool = pool(None, &Budget::unlimited());
        for bytes in [1, 4096, 4097, 1 << 20, 65 << 20] {
            let buf = take(&mut pool, bytes);
            assert!(buf.len() >= DATA_AT + bytes);
            let kept = pool.idle_bytes;
            pool.give(buf);
            assert_eq!(pool.idle_bytes > kept, bytes <= 1 << 20, "{bytes} bytes");
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let budget = Budget::new(256 << 20);
        let mut pool = pool(None, &budget);
        let bufs: Vec<_> = (0..100).map(|_| take(&mut pool, 1 << 20)).collect();
        bufs.into_iter().for_each(|b| pool.give(b));
        assert!(pool.idle_bytes <= KEEP_BYTES && pool.idle_bytes > 7 << 20);
        assert_eq!(pool.idle_bytes, pool.held);
        assert_eq!(budget.total() - free(&budget), 8 << 20, "for what is kept, and a chunk");
        pool.shrink();
        assert!(pool.held <= MINIMUM && free(&budget) == budget.total());
    }

    #[test]
    fn what_pools_hold_is_bounded_by_the_budget() {
        let budget = Budget::new(64 << 20);
        let locks = LockCounters::new(ManualClock::new(1));
        let pool = |group| pool_in(group, Reserve::new(None, locks.clone()), &budget);
        let mut pools: Vec<_> = (0..10).map(pool).collect();
        let mut bufs = Vec::new();
        for bytes in [100, 4096, 20_000, 1 << 20, 3 << 20, 20 << 20] {
            for (number, pool) in pools.iter_mut().enumerate() {
                while bufs.len() < 100_000 && !pool.waits() && pool.reserve(bytes) {
                    bufs.push((number, pool.take(bytes).unwrap()));
                }
            }
        }
        let held: u64 = pools.iter().map(|pool| pool.held).sum();
        assert_eq!(held, bufs.iter().map(|(_, buf)| bytes_of(buf)).sum::<u64>());
        let most = budget.total() + 10 * MINIMUM;
        assert!(held <= most && held > most / 4 * 3, "{held} of {most} bytes");
        assert!(pools.iter().all(Pool::waits), "each that asks waits");
        bufs.into_iter().for_each(|(number, buf)| pools[number].give(buf));
        drop(pools);
        assert_eq!(free(&budget), budget.total(), "all of it goes back");
    }

    #[test]
    fn clients_that_wait_are_served_in_order() {
        let budget = Budget::new(4 << 20);
        let mut pools: Vec<_> = (0..4).map(|_| pool(None, &budget)).collect();
        let whole = take(&mut pools[0], 4 << 20);
        assert!(!pools[1].reserve(4 << 20) && pools[1].waits());
        assert!(!pools[2].reserve(3 << 20) && pools[2].waits());
        let small = take(&mut pools[3], 200 << 10);
        assert!(!pools[3].reserve(200 << 10), "each has its minimum, and waits for more");
        pools[0].give(whole);
        assert!(!pools[0].waits() && !pools[1].waits(), "the first in line has it all");
        assert!(pools[2].waits() && !pools[2].reserve(3 << 20) && pools[3].waits());
        drop(pools.remove(1));
        assert!(!pools[1].waits(), "the next in line");
        let next = take(&mut pools[1], 3 << 20);
        assert!(pools[2].waits(), "it has the class of 4 MiB");
        drop(pools.remove(2));
        assert!(!pools[0].reserve(4 << 20), "a client that has left the line is not waited for");
        pools[1].give(next);
        assert_eq!((pools[1].held, pools[1].has_share()), (0, false), "nothing idle is kept");
        let again = take(&mut pools[0], 4 << 20);
        drop((again, small));
    }

    /// A client that always has a request in flight gives its share back all the same.
    #[test]
    fn a_busy_client_gives_way_to_one_that_has_nothing() {
        let budget = Budget::new(4 << 20);
        let (mut busy, mut other) = (pool(None, &budget), pool(None, &budget));
        let mut under_way: Vec<_> = (0..80).map(|_| take(&mut busy, 4096)).collect();
        assert!(busy.has_share() && !other.reserve(4 << 20));
        let mut more = 0;
        while other.waits() {
            assert!(more < 80, "as one ends another begins");
            busy.give(under_way.remove(0));
            if busy.reserve(4096) {
                under_way.push(busy.take(4096).unwrap());
                more += 1;
            }
        }
        assert!(!busy.has_share() && other.reserve(4 << 20));
        let all = other.take(4 << 20).unwrap();
        // Each client's minimum stays usable.
        let mut third = pool(None, &budget);
        for _ in 0..100 {
            let buf = take(&mut third, 4096);
            third.give(buf);
        }
        other.give(all);
        assert!(!busy.waits());
    }

    /// Granted memory counts as the client's before it takes it: others may wait for it.
    #[test]
    fn what_was_granted_and_not_taken_is_seen() {
        let budget = Budget::new(4 << 20);
        let (mut one, mut other) = (pool(None, &budget), pool(None, &budget));
        let buf = take(&mut one, 2 << 20);
        assert!(!other.reserve(3 << 20) && !other.has_share());
        one.give(buf);
        one.shrink();
        assert!(!other.waits() && other.has_share() && !other.is_wanted_by_others());
        assert!(!one.reserve(4 << 20) && other.is_wanted_by_others());
        other.wait_no_more();
        assert!(!other.has_share() && !one.waits());
    }

    /// A client that is alone does not wait for its own idle buffers.
    #[test]
    fn a_client_that_is_alone_does_not_wait_for_itself() {
        let budget = Budget::new(4 << 20);
        let mut alone = pool(None, &budget);
        let buf = take(&mut alone, 1 << 20);
        alone.give(buf);
        assert!(alone.reserve(3 << 20), "nobody else has anything");
    }

    #[test]
    fn nobody_takes_what_another_waits_for() {
        let budget = Budget::new(4 << 20);
        let mut pools: Vec<_> = (0..3).map(|_| pool(None, &budget)).collect();
        let first = take(&mut pools[0], 1 << 20);
        assert!(!pools[1].reserve(4 << 20));
        assert!(free(&budget) == 3 << 20 && !pools[2].reserve(1 << 20));
        pools[0].give(first);
        assert!(!pools[1].waits() && pools[2].waits());
    }

    #[test]
    fn a_request_that_is_longer_than_the_budget_goes_alone() {
        let budget = Budget::new(1 << 20);
        let (mut one, mut other) = (pool(None, &budget), pool(None, &budget));
        let long = take(&mut one, 64 << 20);
        assert!(!other.reserve(64 << 20));
        one.give(long);
        assert!(!other.waits());
        drop(take(&mut other, 64 << 20));
    }
}
