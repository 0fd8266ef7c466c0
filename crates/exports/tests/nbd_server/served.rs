//! A served disk.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use drystone_core::clock::{ManualClock, SystemClock};
use drystone_core::range_lock::RangeLock;
use drystone_core::ring::Engine;
use drystone_core::sync::{LockCounters, LockRegistry};
use drystone_core::{ContextSet, Priority};
use drystone_exports::nbd::server::{Export, ExportTable, Incoming, ListenerTls, Settings};
use drystone_exports::server::{Budget, Clients, Inbox, Membership, Volume, Worker};
use drystone_testkit::nbd::{Connection, Negotiation};
use drystone_throttle::Groups;

use crate::disk::{Disk, Handle};

/// Against hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Data threads that serve one table.
pub struct Served {
    pub table: Arc<ExportTable>,
    inboxes: Vec<Arc<Inbox>>,
    threads: Vec<JoinHandle<()>>,
}

pub fn export(name: &str, disk: Arc<Disk>) -> Export {
    let clock = ManualClock::new(1);
    let groups = Groups::new(clock.clone(), &LockRegistry::new(clock));
    let volume = Volume {
        name: name.to_owned(),
        device: Arc::new(Handle(disk)),
        read_only: false,
        priority: Priority::default(),
        membership: Membership::new(groups, ""),
        clients: Clients::default(),
        write_lock: RangeLock::new(),
    };
    Export {
        volume,
        description: String::new(),
        multi_conn: true,
        zero_copy: true,
        tls_required: false,
        allow: None,
    }
}

impl Served {
    pub fn new(exports: Vec<Export>, threads: usize, settings: Settings) -> Self {
        Self::with_budget(exports, threads, settings, Budget::unlimited())
    }

    pub fn with_budget(
        exports: Vec<Export>,
        threads: usize,
        settings: Settings,
        budget: Arc<Budget>,
    ) -> Self {
        let set = ContextSet::new(SystemClock::new());
        let contexts: Vec<_> = (0..threads).map(|_| set.open(Engine::Auto).unwrap()).collect();
        let inboxes: Vec<_> = contexts.iter().map(|cx| Inbox::new(cx.handle().clone())).collect();
        let run = |(cx, inbox): (_, &Arc<Inbox>)| {
            let mut worker = Worker::new(cx, inbox.clone());
            worker.share_budget(budget.clone());
            std::thread::spawn(move || worker.run())
        };
        let threads = contexts.into_iter().zip(&inboxes).map(run).collect();
        let table = Arc::new(ExportTable::new(exports, 0, settings));
        Served { table, inboxes, threads }
    }

    pub fn disk(disk: Arc<Disk>, threads: usize) -> Self {
        Self::new(vec![export("vol", disk)], threads, Settings::default())
    }

    /// A connection to data thread `at`.
    pub fn connect(&self, at: usize) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        ours.set_write_timeout(Some(PATIENCE)).unwrap();
        let (tls, table) = (ListenerTls::off(), self.table.clone());
        let assigned = self.inboxes[at].enter();
        let user = LockCounters::new(ManualClock::new(1));
        self.inboxes[at].put(Incoming { socket: theirs.into(), tls, table, assigned }, &user);
        ours
    }

    pub fn negotiate(&self, at: usize) -> Negotiation<UnixStream> {
        Negotiation::new(self.connect(at)).unwrap()
    }

    /// A connection that has chosen the first export.
    pub fn client(&self, at: usize) -> Connection<UnixStream> {
        let mut negotiation = self.negotiate(at);
        negotiation.structured_replies().unwrap();
        negotiation.go("", &[]).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.inboxes.iter().for_each(|inbox| inbox.stop());
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a data thread panicked");
        }
    }
}

/// Wait until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("not within a minute: {what}");
}
