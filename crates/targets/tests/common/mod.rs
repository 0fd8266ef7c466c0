//! A disk in memory that completes at once or when told, and records what it was asked.
#![allow(dead_code, reason = "each file of tests uses some of it")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

use drystone_core::clock::{ManualClock, SystemClock};
use drystone_core::mailbox::Message;
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{
    Bio, BioFlags, BioList, Channel, ChannelId, Context, ContextSet, Device, DeviceInfo, Env,
    Extent, Holders, Limits, Op, Result, Status,
};
use std::sync::{Arc, Mutex};

/// An I/O that a disk was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub op: Op,
    pub sector: u64,
    pub bytes: u64,
    pub flags: BioFlags,
}

#[derive(Default)]
pub struct State {
    pub data: Vec<u8>,
    pub seen: Vec<Seen>,
    /// Bios wait for [`Disk::release`].
    pub hold: bool,
    /// The way I/O ends.
    pub status: Status,
    /// Wakes the channels that keep bios.
    words: Vec<Arc<Message>>,
    pub polls: bool,
    /// As files have it: no more bytes can be written.
    pub file_limit: Option<u64>,
    /// Done once, when the next bios come, inside the call of their context.
    pub meanwhile: Option<Box<dyn FnOnce() + Send>>,
}

pub struct Disk {
    name: String,
    pub limits: Limits,
    pub state: Arc<Mutex<State>>,
    holders: Holders,
    /// A device above: its `queue/io_poll` is noted after the holders were told that polling ends,
    /// and before it does.
    pub above: Mutex<Option<Arc<dyn Device>>>,
    pub noted: Mutex<Vec<String>>,
}

impl Disk {
    pub fn new(name: &str, sectors: u64) -> Arc<Self> {
        let limits = Limits {
            max_discard_bytes: 1 << 40,
            discard_granularity: 512,
            max_write_zeroes_bytes: 1 << 40,
            write_cache: true,
            fua: true,
            ..Limits::default()
        };
        Self::with_limits(name, sectors, limits)
    }

    pub fn with_limits(name: &str, sectors: u64, limits: Limits) -> Arc<Self> {
        let state = State { data: vec![0; sectors as usize * 512], ..State::default() };
        Arc::new(Disk {
            name: name.to_owned(),
            limits,
            state: Arc::new(Mutex::new(state)),
            holders: Holders::new(LockCounters::new(SystemClock::new())),
            above: Mutex::new(None),
            noted: Mutex::new(Vec::new()),
        })
    }

    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.lock().unwrap().seen)
    }

    pub fn hold(&self, on: bool) {
        self.state.lock().unwrap().hold = on;
    }

    /// End what is kept, from whatever thread: the contexts are visited if their owners are away.
    pub fn release(&self) {
        let words = {
            let mut state = self.state.lock().unwrap();
            state.hold = false;
            state.words.clone()
        };
        for word in words {
            if let Some(handle) = word.receiver() {
                handle.send(word);
                handle.kick();
            }
        }
    }
}

impl Device for Disk {
    drystone_testkit::no_statistics!();

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            kind: "test",
            size_bytes: self.state.lock().unwrap().data.len() as u64,
            limits: self.limits,
        }
    }

    fn open_channel(&self, env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        let word = Message::to(env.handle(), id, 0);
        self.state.lock().unwrap().words.push(word);
        Ok(Box::new(DiskChannel { state: self.state.clone(), kept: BioList::new() }))
    }

    fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
        let state = self.state.lock().unwrap();
        let bytes = &state.data[offset as usize..(offset + length) as usize];
        let mut list = drystone_core::extent::ExtentList::new();
        let mut at = offset;
        for part in bytes.chunks(512) {
            let zero = part.iter().all(|byte| *byte == 0);
            let len = part.len() as u64;
            list.push(if zero { Extent::hole(at, len) } else { Extent::data(at, len) });
            at += len;
        }
        Ok(list.as_slice().to_vec())
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let state = self.state.lock().unwrap();
        match name {
            "queue/io_poll" => Some(u8::from(state.polls).to_string()),
            "file_limit" => Some(state.file_limit?.to_string()),
            _ => None,
        }
    }

    fn holders(&self) -> Option<&Holders> {
        Some(&self.holders)
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<()> {
        assert_eq!(name, "queue/io_poll");
        if value == "0" {
            self.holders.polling_ends();
            let above = self.above.lock().unwrap().clone();
            let seen = above.and_then(|device| device.attribute(name));
            self.noted.lock().unwrap().extend(seen);
        }
        self.state.lock().unwrap().polls = value == "1";
        self.holders.changed();
        Ok(())
    }
}

struct DiskChannel {
    state: Arc<Mutex<State>>,
    kept: BioList,
}

impl DiskChannel {
    fn run(&mut self, env: &mut Env) {
        let mut bios = self.kept.take();
        while let Some(mut bio) = bios.pop() {
            let status = perform(&mut self.state.lock().unwrap(), &mut bio);
            env.end_with(bio, status);
        }
    }
}

fn perform(state: &mut State, bio: &mut Bio) -> Status {
    if !state.status.is_ok() {
        return state.status;
    }
    let at = bio.sector.0 as usize * 512;
    let Some(data) = state.data.get_mut(at..at + bio.bytes as usize) else {
        return Status::IoError;
    };
    match bio.op {
        Op::Read => bio.fill_data_from(data),
        Op::Write => bio.copy_data_to(data),
        Op::Discard | Op::WriteZeroes => data.fill(0),
        Op::Flush => {}
    }
    Status::Ok
}

impl Channel for DiskChannel {
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        let now = env.time.submit_time();
        bios.stamp(now);
        let meanwhile = self.state.lock().unwrap().meanwhile.take();
        meanwhile.into_iter().for_each(|act| act());
        let hold = {
            let mut state = self.state.lock().unwrap();
            let seen = |bio: &Bio| Seen {
                op: bio.op,
                sector: bio.sector.0,
                bytes: bio.bytes,
                flags: bio.flags,
            };
            state.seen.extend(bios.iter().map(seen));
            state.hold
        };
        self.kept.append(bios);
        if !hold {
            self.run(env);
        }
    }

    fn message(&mut self, env: &mut Env, _message: Arc<Message>) {
        if !self.state.lock().unwrap().hold {
            self.run(env);
        }
    }

    fn members(&self) -> &[ChannelId] {
        &[]
    }

    fn in_flight(&self) -> usize {
        self.kept.len()
    }

    /// Bios that the disk holds are as good as a driver's: they cannot be cancelled.
    fn cancel_pending(&mut self, env: &mut Env) {
        if self.state.lock().unwrap().hold {
            return;
        }
        let mut kept = self.kept.take();
        while let Some(bio) = kept.pop() {
            env.end_with(bio, Status::Cancelled);
        }
    }
}

/// A context with one device open.
pub struct User {
    pub cx: Context,
    pub device: ChannelId,
    ended: BioList,
}

impl User {
    pub fn new(set: &Arc<ContextSet>, device: &Arc<dyn Device>) -> Self {
        let mut cx = set.open(Engine::Plain).unwrap();
        let device = cx.open(device).unwrap();
        User { cx, device, ended: BioList::new() }
    }

    pub fn submit(&mut self, bio: Box<Bio>) {
        let mut list = BioList::new();
        list.push(bio);
        self.cx.submit(self.device, &mut list);
    }

    /// Submit one bio and wait for it.
    pub fn run(&mut self, bio: Box<Bio>) -> Box<Bio> {
        self.submit(bio);
        self.wait()
    }

    /// The next bio that ends.
    pub fn wait(&mut self) -> Box<Bio> {
        loop {
            if let Some(bio) = self.ended.pop() {
                return bio;
            }
            if self.cx.reap(&mut self.ended) == 0 {
                self.cx.wait(None);
            }
        }
    }

    /// Submit one bio and wait for it, moving the clock while there is nothing else to do.
    pub fn run_by(&mut self, clock: &ManualClock, bio: Box<Bio>) -> Box<Bio> {
        self.submit(bio);
        for _ in 0..1000 {
            if let Some(bio) = self.turn().pop() {
                return bio;
            }
            clock.advance(1_000_000);
        }
        panic!("in a second of its clock the bio has not ended");
    }

    /// The I/O that has ended by now, with that which is due by the clock.
    pub fn turn(&mut self) -> BioList {
        self.cx.wait(Some(0));
        self.reap()
    }

    /// The I/O that has ended by now.
    pub fn reap(&mut self) -> BioList {
        self.cx.reap(&mut self.ended);
        self.ended.take()
    }
}
