//! A volume that is served: its device, its geometry, its clients.

use super::Membership;
use drystone_core::failures::{Failure, Failures};
use drystone_core::range_lock::RangeLock;
use drystone_core::{Bio, Device, Limits, Priority};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A device under a name, with everything that a front end needs to serve it. Clones are the same
/// volume: each counts the same clients.
#[derive(Clone)]
pub struct Volume {
    /// The name of the export.
    pub name: String,
    /// The device.
    pub device: Arc<dyn Device>,
    /// Refuse writes, even if the device takes them.
    pub read_only: bool,
    /// Class and level of its clients' I/O.
    pub priority: Priority,
    /// The rules for the throttle group of each client's I/O.
    pub membership: Membership,
    /// Its clients of all front ends.
    pub clients: Clients,
    /// The range lock of its clients' writes. A device has one lock for all its exports. With two
    /// locks, two writes of parts of one block would lose each other's bytes.
    pub write_lock: Arc<RangeLock>,
}

/// The size of a volume, as clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes; whole blocks.
    pub size: u64,
    /// Bytes of a logical block, a power of two.
    pub block: u64,
    /// Writes are refused, by the export or by the device.
    pub read_only: bool,
}

/// The properties of a volume that clients see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its size.
    pub geometry: Geometry,
    /// The limits of the device; read-only as the geometry says.
    pub limits: Limits,
}

impl Volume {
    /// The present properties: a device may grow, and its abilities may change. Any thread may
    /// call, but not on the data path: it allocates.
    pub fn shape(&self) -> Shape {
        let info = self.device.info();
        let read_only = self.read_only || info.limits.read_only;
        let block = u64::from(info.limits.logical_block_size);
        // An incomplete block at the end of a device cannot be addressed.
        let geometry = Geometry { size: info.size_bytes / block * block, block, read_only };
        Shape { geometry, limits: Limits { read_only, ..info.limits } }
    }

    /// Its size at this moment, as [`Volume::shape`] says.
    pub fn geometry(&self) -> Geometry {
        self.shape().geometry
    }
}

/// Number of the volume that has this name.
pub(crate) fn find<'a>(
    volumes: impl IntoIterator<Item = &'a Volume>,
    name: &[u8],
) -> Option<usize> {
    volumes.into_iter().position(|volume| volume.name.as_bytes() == name)
}

/// The number of clients, and their failed I/O. Clones count the same clients. Any thread may call.
#[derive(Clone, Default)]
pub struct Clients(Arc<Inner>);

#[derive(Default)]
struct Inner {
    count: AtomicU32,
    failures: Failures,
}

impl Clients {
    /// The number of clients.
    pub fn count(&self) -> u32 {
        self.0.count.load(Relaxed)
    }

    /// Count one more, until it is dropped.
    pub fn enter(&self) -> Client {
        self.0.count.fetch_add(1, Relaxed);
        Client(self.0.clone())
    }

    /// The failures reported to clients, until one thread at a time takes them.
    pub fn failures(&self) -> &Failures {
        &self.0.failures
    }

    /// Notes that a request failed with this bio.
    #[cold]
    pub(crate) fn note_failure(&self, bio: &Bio) {
        let Bio { op, status, bytes, .. } = *bio;
        if status.is_failure() {
            self.failures().note(&Failure { op, status, offset: bio.sector.bytes(), bytes });
        }
    }
}

/// One client, counted while this lives.
pub struct Client(Arc<Inner>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_count_while_they_are_there() {
        let clients = Clients::default();
        let (first, second) = (clients.enter(), clients.clone().enter());
        assert_eq!(clients.count(), 2);
        drop(first);
        assert_eq!(clients.count(), 1);
        drop(second);
        assert_eq!(clients.count(), 0);
    }
}
