//! The books of the budget: the part of each client, and the order of those that wait. The method
//! is dynamic thresholds, by which switches share the memory of their ports (A. K. Choudhury and E.
//! L. Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM
//! Transactions on Networking 6(2), 1998).
//!
//! A consumer is the set of all clients of one device and throttle group. It may hold [`ALPHA`]
//! times the free memory, and a client [`ALPHA`] times the memory that its consumer may still take.
//! So a consumer that fills memory with waiting requests leaves a part of it free, with which
//! others begin. As they take memory, all thresholds sink.
//!
//! Besides, a reserve serves short requests of clients that hold nothing: neither long requests of
//! others nor their unsent data delay a client's first request.
//!
//! Invariants:
//! * The sum of `free`, `set_aside` and the bytes that all clients hold is the whole. The sum of
//!   what is left of the reserve and what clients have of it is the reserve.
//! * A client waits for one request at most. In a consumer's line, the first client is served that
//!   is below its threshold or holds nothing. While there is one, no other client of the consumer
//!   takes memory.
//! * Consumers do not wait for one another, with one exception: the `head`, see below.
//! * A client has at most one short request of the reserve, which it gives back before anything
//!   else. A consumer has at most [`ALPHA`] times the rest of the reserve, or one request.
//! * A client that holds nothing waits for a short request only if the reserve is too small, or if
//!   its consumer has its part of it.
//!
//! Progress: a waiting client takes nothing else, and a busy one is told when its memory is wanted
//! ([`Ledger::is_revoked_from`]). So a waiting client holds nothing after some time, and from then
//! on nobody overtakes it in its consumer. No other client of its consumer takes memory before it.
//! So either it comes below the consumer's threshold, or the consumer holds nothing after some
//! time.
//!
//! The first of the waiting consumers that hold nothing is the head, which gets its request,
//! however long. A fair part is the whole divided by the number of consumers. If the head's request
//! is at most a fair part, others are served meanwhile: the memory that a consumer with more than a
//! fair part gives back is set aside for the head. When no consumer holds more than that, there is
//! enough. If the request is longer, no other client is served before the head.

use drystone_core::Slab;
use std::collections::VecDeque;

/// The part that one consumer may hold, as a multiple of the free memory. One consumer alone leaves
/// a third, two leave a fifth. Powers of two are usual; 1 leaves half of the memory unused, 8 a
/// ninth, which is less than one long request.
const ALPHA: u64 = 2;

/// A device and a throttle group on it; its requests wait for one another anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// A number of the device, unique among devices that have clients.
    pub(crate) device: usize,
    /// The number of the throttle group.
    pub(crate) group: u32,
}

/// A client; given by [`Ledger::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientId(u32);

struct Client {
    consumer: u32,
    held: u64,
    /// Bytes that it has of the reserve, in addition.
    reserved: u64,
}

impl Client {
    fn has_nothing(&self) -> bool {
        self.held + self.reserved == 0
    }
}

struct Waiting<W> {
    client: u32,
    bytes: u64,
    waiter: W,
}

struct Consumer<W> {
    key: Key,
    clients: u32,
    held: u64,
    /// Bytes of the reserve that its clients have.
    reserved: u64,
    line: VecDeque<Waiting<W>>,
}

impl<W> Consumer<W> {
    fn is_active(&self) -> bool {
        self.held > 0 || !self.line.is_empty()
    }
}

/// The books. `W` identifies a waiter: `serve` returns it when its request is served.
pub(super) struct Ledger<W> {
    total: u64,
    free: u64,
    /// Bytes that are set aside for the head.
    set_aside: u64,
    /// Bytes that are left of the reserve.
    reserve: u64,
    /// The longest request that is short.
    short: u64,
    /// Clients that wait for a short request.
    short_waiting: usize,
    clients: Slab<Client>,
    consumers: Slab<Consumer<W>>,
    /// Consumers with clients in line; a consumer that was served goes behind the others.
    hungry: VecDeque<u32>,
    /// Consumers that hold anything or wait.
    active: u64,
}

impl<W> Ledger<W> {
    /// Empty books: `total` bytes are free, and in addition a `reserve` for requests of at most
    /// `short` bytes.
    pub(super) fn new(total: u64, reserve: u64, short: u64) -> Self {
        Ledger {
            total,
            free: total,
            set_aside: 0,
            reserve,
            short,
            short_waiting: 0,
            clients: Slab::default(),
            consumers: Slab::default(),
            hungry: VecDeque::new(),
            active: 0,
        }
    }

    /// Bytes that no client holds.
    pub(super) fn free(&self) -> u64 {
        self.free + self.set_aside + self.reserve
    }

    /// The number of clients that wait.
    pub(super) fn waiting(&self) -> usize {
        self.hungry.iter().map(|number| self.consumers[*number].line.len()).sum()
    }

    /// True if a client waits.
    pub(super) fn has_waiting(&self) -> bool {
        !self.hungry.is_empty()
    }

    /// Adds a client to this consumer; it holds nothing.
    pub(super) fn enter(&mut self, key: Key) -> ClientId {
        let known = self.consumers.iter().find(|(_, consumer)| consumer.key == key);
        let known = known.map(|(number, _)| number);
        let consumer = known.unwrap_or_else(|| {
            let line = VecDeque::new();
            self.consumers.insert(Consumer { key, clients: 0, held: 0, reserved: 0, line })
        });
        self.consumers[consumer].clients += 1;
        ClientId(self.clients.insert(Client { consumer, held: 0, reserved: 0 }))
    }

    /// Removes a client, which must hold nothing and not wait.
    pub(super) fn leave(&mut self, ClientId(client): ClientId) {
        let gone = self.clients.remove(client).expect("the client has entered");
        assert!(gone.has_nothing(), "a client that goes has given all back");
        let number = gone.consumer;
        let consumer = &mut self.consumers[number];
        consumer.clients -= 1;
        if consumer.clients == 0 {
            self.consumers.remove(number);
        }
    }

    /// Take so many bytes if no other client waits for them.
    pub(super) fn take(&mut self, ClientId(client): ClientId, bytes: u64) -> bool {
        let consumer = self.clients[client].consumer;
        let line = &self.consumers[consumer].line;
        let passes = !line.iter().any(|other| self.is_next(other.client, other.bytes));
        if passes && !self.is_frozen() && self.may_have(consumer, client, bytes) {
            self.hand_out(client, bytes);
            return true;
        }
        let is_first = !line.iter().any(|other| self.is_short(other.client, other.bytes));
        let taken = is_first && self.may_reserve(client, bytes);
        if taken {
            self.hand_out_reserve(client, bytes);
        }
        taken
    }

    /// Stand in line for so many bytes, no more than the whole; [`Ledger::serve`] follows.
    pub(super) fn wait(&mut self, ClientId(client): ClientId, bytes: u64, waiter: W) {
        let number = self.clients[client].consumer;
        self.short_waiting += usize::from(bytes <= self.short);
        self.change(number, |consumer| consumer.line.push_back(Waiting { client, bytes, waiter }));
        if self.consumers[number].line.len() == 1 {
            self.hungry.push_back(number);
        }
    }

    /// Leave the line; [`Ledger::serve`] follows.
    pub(super) fn wait_no_more(&mut self, ClientId(client): ClientId) {
        let number = self.clients[client].consumer;
        let line = &self.consumers[number].line;
        if let Some(place) = line.iter().position(|other| other.client == client) {
            self.leave_line(number, place);
        }
        if self.consumers[number].line.is_empty() {
            self.hungry.retain(|other| *other != number);
        }
    }

    /// Take back what the client held; [`Ledger::serve`] follows.
    pub(super) fn give_back(&mut self, ClientId(client): ClientId, bytes: u64) {
        let bytes = self.give_reserve_back(client, bytes);
        let number = self.clients[client].consumer;
        let wanted = match self.head_bytes() {
            Some(wanted) if self.consumers[number].held > self.fair_part() => wanted,
            _ => 0,
        };
        self.clients[client].held -= bytes;
        self.change(number, |consumer| consumer.held -= bytes);
        let kept = bytes.min(wanted.saturating_sub(self.set_aside));
        (self.set_aside, self.free) = (self.set_aside + kept, self.free + bytes - kept);
    }

    /// Serve the waiting clients, as far as memory suffices. Calls `served` for each.
    pub(super) fn serve(&mut self, mut served: impl FnMut(W)) {
        loop {
            self.serve_by_thresholds(&mut served);
            // The consumer that this serves from the reserve may become inactive. Then the fair
            // parts of the others grow, so the loop tries again.
            let Some(waiter) = self.serve_short() else { return };
            served(waiter);
        }
    }

    fn serve_by_thresholds(&mut self, served: &mut impl FnMut(W)) {
        while let Some(waiter) = self.serve_head() {
            served(waiter);
        }
        // The consumers take turns, one client each.
        let (mut idle, frozen) = (0, self.is_frozen());
        while idle < self.hungry.len() && !frozen {
            let number = self.hungry[0];
            match self.serve_one_of(number) {
                Some(waiter) => {
                    served(waiter);
                    idle = 0;
                }
                None => {
                    self.hungry.rotate_left(1);
                    idle += 1;
                }
            }
        }
    }

    /// True if a waiter that holds nothing wants the memory of `client`: another consumer, or
    /// another client of the same consumer.
    pub(super) fn is_wanted_from(&self, client: ClientId) -> bool {
        self.head().is_some() || self.is_wanted_by_alike(client)
    }

    /// The same, and the waiting client goes on only when `client` gives back all that it holds:
    /// then `client` must begin nothing new with its memory, but wait for its turn.
    pub(super) fn is_revoked_from(&self, client: ClientId) -> bool {
        let consumer = &self.consumers[self.clients[client.0].consumer];
        let is_large = consumer.held > self.fair_part();
        self.head().is_some() && (is_large || self.is_frozen()) || self.is_wanted_by_alike(client)
    }

    /// True if a client that has nothing waits.
    pub(super) fn is_starving(&self) -> bool {
        let has_nothing = |number: &u32| {
            let line = &self.consumers[*number].line;
            line.iter().any(|other| self.clients[other.client].has_nothing())
        };
        self.head().is_some() || self.hungry.iter().any(has_nothing)
    }

    /// True if another client of the same consumer waits and holds nothing, or waits for the
    /// reserve, of which `client` has a part.
    fn is_wanted_by_alike(&self, ClientId(client): ClientId) -> bool {
        let Client { consumer, reserved, .. } = self.clients[client];
        let of_own = self.consumers[consumer].line.iter();
        let starves = |other: &Waiting<W>| self.clients[other.client].has_nothing();
        of_own.clone().any(starves) || reserved > 0 && self.first_short(|_| true).is_some()
    }

    // --- the head

    /// The head: the first of the waiting consumers that hold nothing.
    fn head(&self) -> Option<u32> {
        self.hungry.iter().copied().find(|number| self.consumers[*number].held == 0)
    }

    fn head_bytes(&self) -> Option<u64> {
        Some(self.consumers[self.head()?].line.front()?.bytes)
    }

    /// A fair part: the bytes of each consumer if all had the same.
    fn fair_part(&self) -> u64 {
        self.total / self.active.max(1)
    }

    /// True if the head waits for more than a fair part, so that no other client is served.
    fn is_frozen(&self) -> bool {
        self.head_bytes().is_some_and(|bytes| bytes > self.fair_part())
    }

    fn serve_head(&mut self) -> Option<W> {
        let Some((head, bytes)) = self.head().zip(self.head_bytes()) else {
            self.free += std::mem::take(&mut self.set_aside);
            return None;
        };
        if self.free + self.set_aside < bytes {
            return None;
        }
        self.free += std::mem::take(&mut self.set_aside);
        self.serve_at(head, 0)
    }

    // --- the reserve

    /// True for a short request of a client that holds nothing.
    fn is_short(&self, client: u32, bytes: u64) -> bool {
        bytes <= self.short && self.clients[client].has_nothing()
    }

    /// True if the reserve has so many bytes and the client's consumer does not exceed its part
    /// with them.
    fn may_reserve(&self, client: u32, bytes: u64) -> bool {
        let of_consumer = self.consumers[self.clients[client].consumer].reserved;
        let has_room = self.reserve.checked_sub(bytes).is_some_and(|left| {
            of_consumer == 0 || of_consumer + bytes <= left.saturating_mul(ALPHA)
        });
        has_room && self.is_short(client, bytes)
    }

    /// The first client that waits for a short request, holds nothing and is `wanted`: its
    /// consumer, and its place in line.
    fn first_short(&self, wanted: impl Fn(&Waiting<W>) -> bool) -> Option<(u32, usize)> {
        let is_it = |other: &Waiting<W>| self.is_short(other.client, other.bytes) && wanted(other);
        self.hungry.iter().find_map(|number| {
            let place = self.consumers[*number].line.iter().position(is_it)?;
            Some((*number, place))
        })
    }

    fn serve_short(&mut self) -> Option<W> {
        if self.short_waiting == 0 {
            return None;
        }
        let (number, place) =
            self.first_short(|other| self.may_reserve(other.client, other.bytes))?;
        let is_head = self.head() == Some(number);
        let served = self.serve_with(number, place, Self::hand_out_reserve);
        // The bytes that were set aside are for this head, so its consumer keeps its place.
        if is_head && !self.consumers[number].line.is_empty() {
            self.hungry.pop_back();
            self.hungry.push_front(number);
        }
        served
    }

    fn hand_out_reserve(&mut self, client: u32, bytes: u64) {
        self.reserve -= bytes;
        self.clients[client].reserved += bytes;
        self.consumers[self.clients[client].consumer].reserved += bytes;
    }

    /// Gives the client's part of the reserve back first. Returns the rest.
    fn give_reserve_back(&mut self, client: u32, bytes: u64) -> u64 {
        let client = &mut self.clients[client];
        let reserved = bytes.min(client.reserved);
        client.reserved -= reserved;
        self.consumers[client.consumer].reserved -= reserved;
        self.reserve += reserved;
        bytes - reserved
    }

    // --- thresholds

    /// True if the client is the next of its consumer: it is below its threshold, or holds nothing.
    fn is_next(&self, client: u32, bytes: u64) -> bool {
        let Client { consumer, held, reserved } = self.clients[client];
        let held = held + reserved;
        let taken = self.consumers[consumer].held.saturating_add(bytes);
        let room = self.threshold(bytes).saturating_sub(taken).saturating_mul(ALPHA);
        held == 0 || held.saturating_add(bytes) <= room
    }

    /// Bytes that a consumer may hold once `bytes` more are taken.
    fn threshold(&self, bytes: u64) -> u64 {
        self.free.saturating_sub(bytes).saturating_mul(ALPHA)
    }

    /// True if so many bytes are free, and neither the consumer nor the client exceeds its
    /// threshold with them.
    fn may_have(&self, consumer: u32, client: u32, bytes: u64) -> bool {
        let held = self.consumers[consumer].held;
        let below = held == 0 || held.saturating_add(bytes) <= self.threshold(bytes);
        bytes <= self.free && below && self.is_next(client, bytes)
    }

    fn serve_one_of(&mut self, number: u32) -> Option<W> {
        let Consumer { held, line, .. } = &self.consumers[number];
        if *held > 0 && *held >= self.threshold(0) {
            // This usual case avoids a search of the line, which may be long.
            return None;
        }
        let next = line.iter().position(|other| self.is_next(other.client, other.bytes))?;
        let Waiting { client, bytes, .. } = line[next];
        if self.may_have(number, client, bytes) { self.serve_at(number, next) } else { None }
    }

    // --- books

    fn serve_at(&mut self, number: u32, place: usize) -> Option<W> {
        self.serve_with(number, place, Self::hand_out)
    }

    fn serve_with(
        &mut self,
        number: u32,
        place: usize,
        hand_out: impl Fn(&mut Self, u32, u64),
    ) -> Option<W> {
        let waiting = self.leave_line(number, place)?;
        hand_out(self, waiting.client, waiting.bytes);
        self.hungry.retain(|other| *other != number);
        if !self.consumers[number].line.is_empty() {
            self.hungry.push_back(number);
        }
        Some(waiting.waiter)
    }

    fn leave_line(&mut self, number: u32, place: usize) -> Option<Waiting<W>> {
        let waiting = self.change(number, |consumer| consumer.line.remove(place))?;
        self.short_waiting -= usize::from(waiting.bytes <= self.short);
        Some(waiting)
    }

    fn hand_out(&mut self, client: u32, bytes: u64) {
        self.free -= bytes;
        self.clients[client].held += bytes;
        let number = self.clients[client].consumer;
        self.change(number, |consumer| consumer.held += bytes);
    }

    fn change<T>(&mut self, number: u32, act: impl FnOnce(&mut Consumer<W>) -> T) -> T {
        let consumer = &mut self.consumers[number];
        let before = u64::from(consumer.is_active());
        let told = act(consumer);
        self.active = self.active - before + u64::from(consumer.is_active());
        told
    }
}

#[cfg(test)]
mod tests;
