//! A driver of a split ring for tests: it does what it is told, right or wrong.
//!
//! Its memory is one region, whose guest addresses begin at [`GUEST`] and user addresses at
//! [`USER`]. The ring lies at the beginning, tables of indirect descriptors behind it.

use super::super::super::memory::{GuestMemory, HostMemory};
use super::super::super::proto::{Features, GuestAddress, Region, UserAddress, VringAddresses};
use super::super::notices::passes;
use super::super::{RingSetup, SplitRing};
use std::collections::VecDeque;
use std::sync::Arc;

/// Where memory begins for the guest, and for the front end.
pub(in crate::vhost) const GUEST: u64 = 0x10_0000;
pub(in crate::vhost) const USER: u64 = 0x7000_0000;
/// Bytes of memory.
pub(in crate::vhost) const BYTES: u64 = 1 << 20;
/// Guest addresses from here on are for data; before it lie the parts of the ring and tables.
pub(in crate::vhost) const DATA: u64 = GUEST + (BYTES / 2);

const AVAILABLE: u64 = 0x1_0000;
const USED: u64 = 0x2_0000;
const TABLES: u64 = 0x4_0000;
const TABLE_BYTES: u64 = 0x200;

pub(in crate::vhost) const NEXT: u16 = 1;
pub(in crate::vhost) const WRITE: u16 = 2;
pub(in crate::vhost) const INDIRECT: u16 = 4;

/// A buffer of a request: guest address, bytes, and whether the device writes it.
pub(in crate::vhost) type Buffer = (u64, u32, bool);

/// A driver and its memory.
pub(in crate::vhost) struct Driver {
    pub(in crate::vhost) memory: Arc<GuestMemory>,
    pub(in crate::vhost) size: u16,
    pub(in crate::vhost) features: Features,
    base: u16,
    available: u16,
    used: u16,
    free: VecDeque<u16>,
    /// The descriptors of the chain that begins with each head.
    chains: Vec<Vec<u16>>,
}

/// A region of memory of its own.
pub(in crate::vhost) fn region(guest: u64, user: u64, bytes: u64) -> (Region, Arc<HostMemory>) {
    let region = Region::new(GuestAddress(guest), UserAddress(user), bytes, 0).expect("a region");
    (region, HostMemory::zeroed(bytes as usize))
}

impl Driver {
    pub(in crate::vhost) fn new(size: u16, features: Features) -> Self {
        Self::from_base(size, features, 0)
    }

    /// A driver that has had so many requests before.
    pub(in crate::vhost) fn from_base(size: u16, features: Features, base: u16) -> Self {
        let memory = Arc::new(GuestMemory::new([region(GUEST, USER, BYTES)]));
        let (free, chains) = ((0..size).collect(), vec![Vec::new(); size.into()]);
        let driver =
            Self { memory, size, features, base, available: base, used: base, free, chains };
        driver.set_available(base);
        driver.put_u16(USED + 2, base);
        driver
    }

    pub(in crate::vhost) fn setup(&self) -> RingSetup {
        let [descriptors, available, used] =
            [0, AVAILABLE, USED].map(|offset| UserAddress(USER + offset));
        let addresses = VringAddresses { descriptors, available, used, log: None };
        RingSetup { size: self.size, base: self.base, addresses, features: self.features }
    }

    /// The driver, with another map.
    pub(in crate::vhost) fn with_memory(mut self, memory: GuestMemory) -> Self {
        self.memory = Arc::new(memory);
        self
    }

    /// The device's side.
    pub(in crate::vhost) fn ring(&self) -> SplitRing {
        SplitRing::new(self.setup(), self.memory.clone()).expect("a ring in memory")
    }

    pub(in crate::vhost) fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.copy_to_guest(GuestAddress(address), bytes).expect("in memory");
    }

    pub(in crate::vhost) fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.memory.copy_from_guest(GuestAddress(address), &mut found).expect("in memory");
        found
    }

    fn put_u16(&self, offset: u64, value: u16) {
        self.write(GUEST + offset, &value.to_le_bytes());
    }

    fn u16_at(&self, offset: u64) -> u16 {
        u16::from_le_bytes(self.read(GUEST + offset, 2).try_into().expect("two bytes"))
    }

    /// Writes a descriptor.
    pub(in crate::vhost) fn describe(
        &self,
        place: u64,
        (address, bytes, flags, next): (u64, u32, u16, u16),
    ) {
        self.write(place, &address.to_le_bytes());
        self.write(place + 8, &bytes.to_le_bytes());
        self.write(place + 12, &[flags.to_le_bytes(), next.to_le_bytes()].concat());
    }

    /// Writes a descriptor of the ring's table.
    pub(in crate::vhost) fn set_descriptor(&self, index: u16, fields: (u64, u32, u16, u16)) {
        self.describe(GUEST + 16 * u64::from(index), fields);
    }

    /// The guest address of the table for a head.
    pub(in crate::vhost) fn table_of(&self, head: u16) -> u64 {
        GUEST + TABLES + TABLE_BYTES * u64::from(head)
    }

    pub(in crate::vhost) fn set_available(&self, index: u16) {
        self.put_u16(AVAILABLE + 2, index);
    }

    /// Makes a head available, and says so.
    pub(in crate::vhost) fn offer(&mut self, head: u16) {
        let slot = u64::from(self.available & (self.size - 1));
        self.put_u16(AVAILABLE + 4 + 2 * slot, head);
        self.available = self.available.wrapping_add(1);
        self.set_available(self.available);
    }

    /// Adds a request, if there are descriptors for it; returns its head.
    pub(in crate::vhost) fn add(&mut self, buffers: &[Buffer], indirect: bool) -> Option<u16> {
        let needed = if indirect { 1 } else { buffers.len() };
        if self.free.len() < needed {
            return None;
        }
        let chain: Vec<u16> = self.free.drain(..needed).collect();
        let head = chain[0];
        if indirect {
            self.describe_table(head, buffers);
        }
        for (index, (address, bytes, write)) in buffers.iter().enumerate().filter(|_| !indirect) {
            let next = chain.get(index + 1).copied();
            let flags = next.map_or(0, |_| NEXT) | if *write { WRITE } else { 0 };
            self.set_descriptor(chain[index], (*address, *bytes, flags, next.unwrap_or(0xffff)));
        }
        self.chains[usize::from(head)] = chain;
        self.offer(head);
        Some(head)
    }

    fn describe_table(&self, head: u16, buffers: &[Buffer]) {
        let table = self.table_of(head);
        assert!(16 * buffers.len() as u64 <= TABLE_BYTES, "a table for tests");
        for (index, (address, bytes, write)) in buffers.iter().enumerate() {
            let has_next = index + 1 < buffers.len();
            let flags = if has_next { NEXT } else { 0 } | if *write { WRITE } else { 0 };
            let place = table + 16 * index as u64;
            self.describe(place, (*address, *bytes, flags, index as u16 + 1));
        }
        self.set_descriptor(head, (table, 16 * buffers.len() as u32, INDIRECT, 0xffff));
    }

    /// The used index as the device published it.
    pub(in crate::vhost) fn used_index(&self) -> u16 {
        self.u16_at(USED + 2)
    }

    /// Takes the next used element: its head and length.
    pub(in crate::vhost) fn take_used(&mut self) -> Option<(u16, u32)> {
        if self.used_index() == self.used {
            return None;
        }
        let slot = u64::from(self.used & (self.size - 1));
        let element = self.read(GUEST + USED + 4 + 8 * slot, 8);
        let word = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().expect("four"));
        self.used = self.used.wrapping_add(1);
        let head = u16::try_from(word(0)).expect("a head");
        let chain = std::mem::take(&mut self.chains[usize::from(head)]);
        self.free.extend(chain);
        Some((head, word(4)))
    }

    /// The index of the next request.
    pub(in crate::vhost) fn available(&self) -> u16 {
        self.available
    }

    /// Asks for a call when the used index leaves this value, or does with flags.
    pub(in crate::vhost) fn set_used_event(&self, index: u16) {
        self.put_u16(AVAILABLE + 4 + 2 * u64::from(self.size), index);
    }

    pub(in crate::vhost) fn set_available_flags(&self, flags: u16) {
        self.put_u16(AVAILABLE, flags);
    }

    /// The available index at which the device wants a kick.
    pub(in crate::vhost) fn available_event(&self) -> u16 {
        self.u16_at(USED + 4 + 8 * u64::from(self.size))
    }

    /// True if the device wants a kick, now that the available index has left `before`.
    pub(in crate::vhost) fn must_kick(&self, before: u16) -> bool {
        match self.features.contains(Features::RING_EVENT_IDX) {
            true => passes(before, self.available, self.available_event()),
            false => self.available != before && self.used_flags() & 1 == 0,
        }
    }

    pub(in crate::vhost) fn used_flags(&self) -> u16 {
        self.u16_at(USED)
    }
}
