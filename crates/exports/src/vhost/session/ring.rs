//! What a session knows of one queue.
//!
//! Invariants:
//! * A ring that runs has a size and addresses.
//! * A ring that runs changes neither size nor base nor the places of its parts.

use super::super::proto::{Features, UserAddress, VringAddresses};
use super::action::{QueueIndex, QueueStart};
use super::refusal::{Refusal, RingPart};
use super::region_table::RegionTable;
use std::sync::Arc;

/// What a session knows of one queue.
#[derive(Debug)]
pub(super) struct Ring<F> {
    size: Option<u16>,
    addresses: Option<VringAddresses>,
    base: u32,
    call: Option<Arc<F>>,
    err: Option<Arc<F>>,
    /// The last `SET_VRING_ENABLE`.
    enabled: bool,
    started: bool,
}

impl<F> Default for Ring<F> {
    fn default() -> Self {
        let (size, addresses, base) = (None, None, 0);
        Self { size, addresses, base, call: None, err: None, enabled: false, started: false }
    }
}

impl<F> Ring<F> {
    pub(super) fn is_started(&self) -> bool {
        self.started
    }

    pub(super) fn base(&self) -> u32 {
        self.base
    }

    pub(super) fn set_size(&mut self, size: u16) {
        assert!(!self.started, "a size for a queue that runs");
        self.size = Some(size);
    }

    pub(super) fn set_base(&mut self, base: u32) {
        assert!(!self.started, "a base for a queue that runs");
        self.base = base;
    }

    pub(super) fn set_addresses(&mut self, addresses: VringAddresses) {
        assert!(!self.started || self.has_same_places(&addresses), "places of a queue that runs");
        self.addresses = Some(addresses);
    }

    /// True if the addresses are the same but for the log.
    pub(super) fn has_same_places(&self, other: &VringAddresses) -> bool {
        self.addresses.is_some_and(|own| VringAddresses { log: other.log, ..own } == *other)
    }

    pub(super) fn set_call(&mut self, call: Option<Arc<F>>) {
        self.call = call;
    }

    pub(super) fn set_err(&mut self, err: Option<Arc<F>>) {
        self.err = err;
    }

    pub(super) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    pub(super) fn set_started(&mut self) {
        self.started = true;
    }

    pub(super) fn stop(&mut self, base: u32) {
        (self.started, self.base) = (false, base);
    }

    /// Forgets all but the descriptors, which belong to the connection.
    pub(super) fn reset(&mut self) {
        let (call, err) = (self.call.take(), self.err.take());
        *self = Self { call, err, ..Self::default() };
    }

    /// All that the queue needs to start.
    pub(super) fn start(
        &self,
        queue: QueueIndex,
        kick: F,
        features: Option<Features>,
        regions: &RegionTable,
    ) -> Result<QueueStart<F>, Refusal> {
        let missing = |missing| Refusal::KickTooEarly { queue, missing };
        let features = features.ok_or(missing("SET_FEATURES"))?;
        let size = self.size.ok_or(missing("SET_VRING_NUM"))?;
        let addresses = self.addresses.ok_or(missing("SET_VRING_ADDR"))?;
        self.check_split(queue, size, features)?;
        for part in parts(size, features, &addresses) {
            part.check(queue, regions)?;
        }
        // Without protocol features no message enables a queue.
        let enabled = self.enabled || !features.contains(Features::PROTOCOL_FEATURES);
        let (base, call, err) = (self.base, self.call.clone(), self.err.clone());
        Ok(QueueStart { queue, size, base, addresses, features, enabled, kick, call, err })
    }

    /// Fails if a split ring has a size or a base that only a packed ring may have.
    fn check_split(&self, queue: QueueIndex, size: u16, features: Features) -> Result<(), Refusal> {
        if features.contains(Features::RING_PACKED) {
            return Ok(());
        }
        if !size.is_power_of_two() {
            return Err(Refusal::SizeNoPowerOfTwo { queue, size });
        }
        if self.base > u32::from(u16::MAX) {
            return Err(Refusal::BaseTooLarge { queue, base: self.base });
        }
        Ok(())
    }
}

/// The place of a part of a ring, and what it needs.
struct Part {
    part: RingPart,
    start: UserAddress,
    bytes: u64,
    align: u64,
}

impl Part {
    fn check(&self, queue: QueueIndex, regions: &RegionTable) -> Result<(), Refusal> {
        let Part { part, start, bytes, align } = *self;
        if !start.0.is_multiple_of(align) {
            return Err(Refusal::Unaligned { queue, part, start, align });
        }
        if !regions.has(start, bytes) {
            return Err(Refusal::OutsideMemory { queue, part, start, bytes });
        }
        Ok(())
    }
}

/// The parts of a ring with their sizes and alignments (virtio 1.3, sections 2.7 and 2.8.10).
fn parts(size: u16, features: Features, addresses: &VringAddresses) -> [Part; 3] {
    let VringAddresses { descriptors, available, used, .. } = *addresses;
    let size = u64::from(size);
    let event = if features.contains(Features::RING_EVENT_IDX) { 2 } else { 0 };
    let (available_bytes, used_bytes, available_align) =
        match features.contains(Features::RING_PACKED) {
            true => (4, 4, 4),
            false => (4 + 2 * size + event, 4 + 8 * size + event, 2),
        };
    let part = |part, start, bytes, align| Part { part, start, bytes, align };
    [
        part(RingPart::Descriptors, descriptors, 16 * size, 16),
        part(RingPart::Available, available, available_bytes, available_align),
        part(RingPart::Used, used, used_bytes, 4),
    ]
}
