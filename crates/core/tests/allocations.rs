//! No heap allocation for an I/O in the steady state, counted by an allocator that counts; and
//! the public interface as a device's author sees it.

use drystone_core::buf::IoBuf;
use drystone_core::clock::{Ns, SystemClock};
use drystone_core::device::{Channel, Device, DeviceInfo};
use drystone_core::mailbox::Message;
use drystone_core::ring::Engine;
use drystone_core::{
    Bio, BioList, ChannelId, Context, ContextSet, Env, Extent, Limits, Result, Sector, Status,
};
use drystone_testkit::alloc::CountingAllocator;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// When bios end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    InTheCall,
    /// When a message comes back, which the channel has sent itself.
    ByMessage,
    /// When a moment has passed, in which the channel waits for what others have.
    Starving,
}

/// Splits every bio into pieces of one sector, which end as it says.
struct Splitter {
    ends: Ends,
}

struct SplitterChannel {
    ends: Ends,
    message: Arc<Message>,
    held: BioList,
}

impl Device for Splitter {
    drystone_testkit::no_statistics!();
    drystone_testkit::no_attributes!();

    fn info(&self) -> DeviceInfo {
        let limits = Limits::default();
        DeviceInfo { name: "splitter".into(), kind: "test", size_bytes: 1 << 20, limits }
    }

    fn open_channel(&self, _env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        let (message, held) = (Message::new(id, 0), BioList::new());
        Ok(Box::new(SplitterChannel { ends: self.ends, message, held }))
    }

    fn extents(&self, _offset: u64, _length: u64, _max: usize) -> Result<Vec<Extent>> {
        Ok(Vec::new())
    }
}

impl Channel for SplitterChannel {
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(mut bio) = bios.pop() {
            while bio.bytes > 512 {
                let (front, rest) = env.split(bio, 512);
                self.held.push(front);
                bio = rest;
            }
            self.held.push(bio);
        }
        match self.ends {
            Ends::InTheCall => self.end_all(env),
            Ends::ByMessage => env.handle().upgrade().unwrap().send(self.message.clone()),
            Ends::Starving => {}
        }
    }

    fn waits_on_peer(&self) -> bool {
        self.ends == Ends::Starving && !self.held.is_empty()
    }

    fn deadline(&self) -> Option<Ns> {
        self.waits_on_peer().then_some(0)
    }

    fn tick(&mut self, env: &mut Env, _now: Ns) {
        self.end_all(env);
    }

    fn message(&mut self, env: &mut Env, _message: Arc<Message>) {
        self.end_all(env);
    }

    fn members(&self) -> &[ChannelId] {
        &[]
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn cancel_pending(&mut self, _env: &mut Env) {}
}

impl SplitterChannel {
    fn end_all(&mut self, env: &mut Env) {
        while let Some(bio) = self.held.pop() {
            env.end_with(bio, Status::Ok);
        }
    }
}

fn round(context: &mut Context, device: ChannelId, bios: &mut BioList, out: &mut BioList) {
    let count = bios.len();
    context.submit(device, bios);
    while out.len() < count {
        context.wait(Some(0));
        context.reap(out);
    }
    bios.append(out);
}

/// One test, because the count is the process's.
#[test]
fn submitting_splitting_and_reaping_allocate_nothing() {
    let set = ContextSet::new(SystemClock::new());
    for engine in [Engine::Uring, Engine::Plain] {
        // Contexts that another one watches and waits for: their owners are away, so they are
        // kicked.
        let _others: Vec<_> = (0..3).map(|_| set.open(engine).unwrap()).collect();
        for ends in [Ends::InTheCall, Ends::ByMessage, Ends::Starving] {
            let device: Arc<dyn Device> = Arc::new(Splitter { ends });
            let mut context = set.open(engine).unwrap();
            let index = context.open(&device).unwrap();
            let (mut bios, mut out) = (BioList::new(), BioList::new());
            (0..32).for_each(|i| bios.push(Bio::read(Sector(i * 8), IoBuf::zeroed(4096))));
            (0..4).for_each(|_| round(&mut context, index, &mut bios, &mut out));
            let before = ALLOCATOR.allocations();
            (0..100).for_each(|_| round(&mut context, index, &mut bios, &mut out));
            let allocations = ALLOCATOR.allocations() - before;
            assert_eq!(allocations, 0, "{} {ends:?}", context.engine());
            assert_eq!(bios.len(), 32);
            if ends != Ends::Starving {
                assert_eq!(context.locks().total().acquisitions, 0, "and no lock is taken");
            }
        }
    }
}
