//! Fixtures for the tests of a connection and its parts.

use crate::nbd::handshake::Negotiated;
use crate::nbd::proto::{Command, REQUEST_MAGIC, TransmissionFlags};
use crate::nbd::reply::ReplyStyle;
use crate::nbd::server::Export;
use crate::nbd::server::exports::ExportTable;
use crate::server::{Clients, Membership, Volume};
use drystone_core::clock::ManualClock;
use drystone_core::mailbox::Message;
use drystone_core::range_lock::RangeLock;
use drystone_core::sync::LockRegistry;
use drystone_core::{
    BioList, Channel, ChannelId, Device, DeviceInfo, Env, Error, Extent, Limits, Priority, Result,
};
use drystone_throttle::Groups;
use std::sync::Arc;

/// A device whose bios the test ends.
pub(super) struct Fake {
    /// True if it can be opened.
    pub(super) opens: bool,
}

impl Device for Fake {
    drystone_testkit::no_statistics!();
    drystone_testkit::no_attributes!();

    fn info(&self) -> DeviceInfo {
        let limits = Limits::default();
        DeviceInfo { name: "fake".into(), kind: "test", size_bytes: 1 << 20, limits }
    }

    fn open_channel(&self, _env: &mut Env, _id: ChannelId) -> Result<Box<dyn Channel>> {
        match self.opens {
            true => Ok(Box::new(FakeChannel)),
            false => Err(Error::invalid("it cannot be opened")),
        }
    }

    fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent::data(offset, length)])
    }
}

struct FakeChannel;

impl Channel for FakeChannel {
    fn submit(&mut self, _env: &mut Env, _bios: &mut BioList) {
        unreachable!("the test submits nothing");
    }

    fn message(&mut self, _env: &mut Env, _message: Arc<Message>) {}

    fn members(&self) -> &[ChannelId] {
        &[]
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn cancel_pending(&mut self, _env: &mut Env) {}
}

/// An export of such a device, whose clients belong to the group `path` of `groups`.
pub(super) fn export(groups: Arc<Groups>, path: &str, opens: bool) -> Export {
    let volume = Volume {
        name: "vol".to_owned(),
        device: Arc::new(Fake { opens }),
        read_only: false,
        priority: Priority::default(),
        membership: Membership::new(groups, path),
        clients: Clients::default(),
        write_lock: RangeLock::new(),
    };
    let (description, allow) = (String::new(), None);
    Export { volume, description, multi_conn: true, zero_copy: true, tls_required: false, allow }
}

/// Groups of which there is only the root.
pub(super) fn groups() -> Arc<Groups> {
    let clock = ManualClock::new(1);
    Groups::new(clock.clone(), &LockRegistry::new(clock))
}

/// The negotiated properties of a client that chose the first export.
pub(super) fn negotiated(table: &ExportTable) -> Negotiated {
    let export = table.exports()[0].info(table.settings());
    let flags = TransmissionFlags::HAS_FLAGS;
    let (style, contexts) = (ReplyStyle::Simple, Vec::new());
    Negotiated { export, flags, style, contexts, no_zeroes: true, tls: false }
}

/// A request as it is sent.
pub(super) fn message(command: Command, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&(command as u32).to_be_bytes());
    bytes.extend_from_slice(&7u64.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}
