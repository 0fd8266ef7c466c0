//! Drystone: exports, the front ends that bring requests in.
//!
//! [`server`] has their shared parts: a data thread's worker, its inbox, the volumes. Each protocol
//! has a folder of its own: state machines that take bytes and give bytes, and a front end of the
//! worker that carries requests out on its context's ring. Threads and clocks belong to the caller.
//!
//! A device becomes an NBD export on a Unix socket; a client writes and reads; the server stops:
//!
//! ```
//! # use drystone_core::histogram::Snapshot;
//! # use drystone_core::mailbox::Message;
//! # use drystone_core::op::OpGroup;
//! # use drystone_core::stats::DiskStats;
//! # use drystone_core::{Bio, BioList, Channel, ChannelId, Device, DeviceInfo, Env, Extent};
//! # use drystone_core::{Limits, Op, Result, Status};
//! # use std::sync::Mutex;
//! # struct Ram(Arc<Mutex<Vec<u8>>>);
//! # impl Ram {
//! #     fn new(bytes: usize) -> Self { Ram(Arc::new(Mutex::new(vec![0; bytes]))) }
//! #     fn carry_out(&self, bio: &mut Bio) {
//! #         let start = bio.sector.bytes() as usize;
//! #         let place = &mut self.0.lock().unwrap()[start..start + bio.bytes as usize];
//! #         match bio.op {
//! #             Op::Read => bio.fill_data_from(place),
//! #             Op::Write => bio.copy_data_to(place),
//! #             _ => {}
//! #         }
//! #     }
//! # }
//! # impl Channel for Ram {
//! #     fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
//! #         while let Some(mut bio) = bios.pop() {
//! #             self.carry_out(&mut bio);
//! #             env.end_with(bio, Status::Ok);
//! #         }
//! #     }
//! #     fn message(&mut self, _env: &mut Env, _message: Arc<Message>) {}
//! #     fn members(&self) -> &[ChannelId] { &[] }
//! #     fn in_flight(&self) -> usize { 0 }
//! #     fn cancel_pending(&mut self, _env: &mut Env) {}
//! # }
//! # impl Device for Ram {
//! #     fn info(&self) -> DeviceInfo {
//! #         let (size_bytes, limits) = (self.0.lock().unwrap().len() as u64, Limits::default());
//! #         DeviceInfo { name: "ram".into(), kind: "ram", size_bytes, limits }
//! #     }
//! #     fn open_channel(&self, _env: &mut Env, _id: ChannelId) -> Result<Box<dyn Channel>> {
//! #         Ok(Box::new(Ram(self.0.clone())))
//! #     }
//! #     fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
//! #         Ok(vec![Extent::data(offset, length)])
//! #     }
//! #     fn stats(&self) -> DiskStats { DiskStats::default() }
//! #     fn latencies(&self, _group: OpGroup) -> Snapshot { Snapshot::default() }
//! #     fn attribute(&self, _name: &str) -> Option<String> { None }
//! #     fn set_attribute(&self, _name: &str, _value: &str) -> Result<()> { Ok(()) }
//! # }
//! use drystone_core::clock::SystemClock;
//! use drystone_core::range_lock::RangeLock;
//! use drystone_core::ring::Engine;
//! use drystone_core::sync::LockRegistry;
//! use drystone_core::{ContextSet, Priority};
//! use drystone_exports::nbd::CommandFlags;
//! use drystone_exports::nbd::server::{Export, ExportTable, Listener, ListenerTls};
//! use drystone_exports::nbd::server::{Settings, peers};
//! use drystone_exports::server::{Clients, Inbox, Membership, Volume, Worker};
//! use drystone_testkit::nbd::Negotiation;
//! use drystone_throttle::Groups;
//! use std::os::unix::net::{UnixListener, UnixStream};
//! use std::sync::Arc;
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let clock = SystemClock::new();
//! let context = ContextSet::new(clock.clone()).open(Engine::Auto)?;
//! let locks = context.locks().sibling();
//! let volume = Volume {
//!     name: "vol".to_owned(),
//!     device: Arc::new(Ram::new(1 << 20)),
//!     read_only: false,
//!     priority: Priority::default(),
//!     membership: Membership::new(Groups::new(clock.clone(), &LockRegistry::new(clock)), ""),
//!     clients: Clients::default(),
//!     write_lock: RangeLock::new(),
//! };
//! let (description, multi_conn, tls_required, allow) = ("a disk".to_owned(), true, false, None);
//! let zero_copy = true;
//! let export = Export { volume, description, multi_conn, zero_copy, tls_required, allow };
//!
//! let address = std::env::temp_dir().join(format!("drystone-exports-{}", std::process::id()));
//! let inbox = Inbox::new(context.handle().clone());
//! let listener = Listener {
//!     socket: UnixListener::bind(&address)?.into(),
//!     tls: ListenerTls::off(),
//!     table: Arc::new(ExportTable::new(vec![export], 0, Settings::default())),
//!     peers: peers(&[inbox.clone()]),
//!     descriptors_max: i32::MAX,
//! };
//! inbox.put(listener, &locks);
//! let mut worker = Worker::new(context, inbox.clone());
//! let server = std::thread::spawn(move || worker.run());
//!
//! let mut client = Negotiation::new(UnixStream::connect(&address)?)?.go("vol", &[])?;
//! client.write(4096, b"a sentence", CommandFlags::FUA)?;
//! assert_eq!(client.read(4096, 10, CommandFlags::empty())?, b"a sentence");
//! client.disconnect()?;
//!
//! inbox.stop();
//! server.join().expect("the data thread ends");
//! std::fs::remove_file(&address)?;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

pub mod fuse;
pub mod nbd;
pub mod server;
pub mod vhost;
