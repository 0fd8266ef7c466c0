//! *before* and *mailed* under several contexts: nothing is lost or stranded, and every read finds
//! what was written, whichever thread dispatches and however short tags are.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use drystone_core::clock::{Clock, SystemClock};
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioList, ChannelId, Context, ContextSet, Device, IoBuf, Sector};
use drystone_lab::scheduler::{Baseline, Patched};
use drystone_stack::live::{OpenDevice, OpenEnv, open_device, open_with};
use drystone_stack::spec::DeviceSpec;
use drystone_throttle::DeviceThrottle;

const THREADS: u64 = 6;
const BATCH: u64 = 4;
const SCHEDULED: &str = "queue.scheduler=mq-deadline,queue.straight=false";

static VARIANTS: [(&str, OpenDevice); 3] = [
    ("before", open_with::<Baseline<false>, DeviceThrottle>),
    ("before, spinning", open_with::<Baseline<true>, DeviceThrottle>),
    ("mailed", open_with::<Patched, DeviceThrottle>),
];

fn open(text: &str, open: OpenDevice) -> Arc<dyn Device> {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let at = OpenEnv { open, ..OpenEnv::new(THREADS as u32, clock) };
    let spec = DeviceSpec::parse(&format!("{text},{SCHEDULED}"), Path::new("/"))
        .unwrap_or_else(|report| panic!("{}", report.render(false)));
    open_device(&spec, &at).expect("a device")
}

/// One thread's context, which uses blocks of its own.
struct Submitter {
    cx: Context,
    device: ChannelId,
    number: u64,
}

impl Submitter {
    fn submit(&mut self, bios: impl IntoIterator<Item = Box<Bio>>) {
        let mut list = BioList::new();
        list.extend(bios);
        self.cx.submit(self.device, &mut list);
    }

    fn wait(&mut self, mut left: usize) -> BioList {
        let mut out = BioList::new();
        while left > 0 {
            match self.cx.reap(&mut out) {
                0 => self.cx.wait(None),
                n => left -= n,
            }
        }
        let failed: Vec<_> = out
            .iter()
            .filter(|bio| !bio.status.is_ok())
            .map(|bio| (bio.sector, bio.status))
            .collect();
        assert!(failed.is_empty(), "{failed:?} of thread {}", self.number);
        out
    }

    /// Blocks two apart, so that nothing merges, in another order each round.
    fn blocks(&self, round: u64) -> impl Iterator<Item = u64> + use<> {
        let first = self.number * 64;
        (0..BATCH).map(move |n| first + 2 * ((n * 5 + round * 7) % 32))
    }
}

/// Runs `body` for each of several threads with a context on `device`; a run that hangs is ended
/// after a minute.
fn run(device: &Arc<dyn Device>, body: impl Fn(&mut Submitter) + Sync) {
    let set = ContextSet::new(SystemClock::new());
    let submitter = |number| {
        let mut cx = set.open(Engine::Auto).expect("a ring");
        let device = cx.open(device).expect("a channel");
        Submitter { cx, device, number }
    };
    let submitters: Vec<Submitter> = (0..THREADS).map(submitter).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (body, done) = (&body, &done);
        let start = |mut submitter| scope.spawn(move || body(&mut submitter));
        let threads: Vec<_> = submitters.into_iter().map(start).collect();
        scope.spawn(move || {
            for _ in 0..600 {
                std::thread::sleep(Duration::from_millis(100));
                if done.load(Relaxed) {
                    return;
                }
            }
            eprintln!("a request is stranded");
            std::process::abort();
        });
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Relaxed);
        assert!(ended.iter().all(Result::is_ok), "no thread panicked");
    });
}

#[test]
fn nothing_is_stranded_whoever_completes_and_however_few_tags_there_are() {
    for (name, variant) in VARIANTS {
        for irqmode in ["none", "thread", "timer"] {
            for depth in [1, 3, 64] {
                let null = format!("null,submit_queues=1,hw_queue_depth={depth},irqmode={irqmode}");
                let device = open(&null, variant);
                let rounds = if irqmode == "none" { 1000 } else { 60 };
                run(&device, |submitter| {
                    for round in 0..rounds {
                        let read = |block| Bio::read(Sector(block), IoBuf::zeroed(512));
                        submitter.submit(submitter.blocks(round).map(read));
                        assert_eq!(submitter.wait(BATCH as usize).len() as u64, BATCH);
                    }
                });
                let stats = device.stats().fields();
                let expected = THREADS * rounds * BATCH;
                assert_eq!(stats[0] + stats[1], expected, "{name} {irqmode} {depth}");
                assert_eq!(stats[8], 0, "{name} {irqmode} {depth}: in flight");
            }
        }
    }
}

#[test]
fn reads_find_what_was_written() {
    let folder = tempfile::TempDir::new().expect("a folder");
    for (name, variant) in VARIANTS {
        let path = folder.path().join("disk.img").display().to_string();
        let file = format!("file,path={path},size=1MiB,queue.hw_queues=1");
        for text in ["ram,size=1MiB", &file] {
            let device = open(text, variant);
            run(&device, |submitter| {
                for round in 0..40 {
                    let bytes = |block: u64| (block * 1000 + round).to_le_bytes();
                    let write = |block: u64| {
                        let mut buf = IoBuf::zeroed(512);
                        buf[..8].copy_from_slice(&bytes(block));
                        Bio::write(Sector(block), buf)
                    };
                    submitter.submit(submitter.blocks(round).map(write));
                    submitter.wait(BATCH as usize);
                    let read = |block| Bio::read(Sector(block), IoBuf::zeroed(512));
                    submitter.submit(submitter.blocks(round).map(read));
                    for bio in submitter.wait(BATCH as usize).iter() {
                        let found = &bio.buf().expect("its buffer")[..8];
                        assert_eq!(found, bytes(bio.sector.0), "{name} {text}");
                    }
                }
            });
        }
    }
}

/// A context that is dropped with bios in the scheduler leaves the others what they wait for.
#[test]
fn who_goes_away_takes_nothing_with_it() {
    for (name, variant) in VARIANTS {
        let null = "null,submit_queues=1,hw_queue_depth=2,irqmode=timer,completion_nsec=200000";
        let device = open(null, variant);
        let submit = |submitter: &mut Submitter| {
            let read = |block| Bio::read(Sector(block), IoBuf::zeroed(512));
            submitter.submit(submitter.blocks(0).map(read));
        };
        // Every second thread leaves with its bios outstanding.
        run(&device, |submitter| {
            for _ in 0..20 {
                submit(submitter);
                if submitter.number.is_multiple_of(2) {
                    return;
                }
                submitter.wait(BATCH as usize);
            }
        });
        run(&device, |submitter| {
            submit(submitter);
            assert_eq!(submitter.wait(BATCH as usize).len() as u64, BATCH, "{name}");
        });
    }
}
