//! A volume that is served: its device, its geometry, its clients.

use super::Membership;
use drystone_core::failures::{Failure, Failures};
use drystone_core::range_lock::RangeLock;
use drystone_core::{Bio, Device, Limits, Priority};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A device under a name, and what every front end needs to know to serve it. Clones are the same
/// volume: a client that comes in by any of them counts with all.
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
    /// Writes of its clients go through this: one for each device, whatever exports it has, or two
    /// that write parts of one block lose each other's bytes.
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

/// A volume as clients are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its size.
    pub geometry: Geometry,
    /// The limits of the device; read-only as the geometry says.
    pub limits: Limits,
}

impl Volume {
    /// The volume at this moment: a device may grow, and change what it can do. Any thread may ask,
    /// but not on the path of an I/O: it allocates.
    pub fn shape(&self) -> Shape {
        let info = self.device.info();
        let read_only = self.read_only || info.limits.read_only;
        let block = u64::from(info.limits.logical_block_size);
        // The rest of a block at the end of a device cannot be addressed.
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

/// The number of clients, and which of their I/O failed; its clones are the same
/// clients. Any thread may ask.
#[derive(Clone, Default)]
pub struct Clients(Arc<Inner>);

#[derive(Default)]
struct Inner {
    count: AtomicU32,
    failures: Failures,
}

impl Clients {
    /// The number.
    pub fn count(&self) -> u32 {
        self.0.count.load(Relaxed)
    }

    /// Count one more, until it is dropped.
    pub fn enter(&self) -> Client {
        self.0.count.fetch_add(1, Relaxed);
        Client(self.0.clone())
    }

    /// The failures that clients were told of, until they are taken: by one thread at a time.
    pub fn failures(&self) -> &Failures {
        &self.0.failures
    }

    /// A request failed because this bio of it did.
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
