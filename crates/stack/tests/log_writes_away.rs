//! A volume whose writes are logged, while the thread of a context that writes the log stays away.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drystone_core::clock::SystemClock;
use drystone_core::ring::Engine;
use drystone_core::{
    Bio, BioFlags, BioList, ChannelId, Context, ContextSet, Device, IoBuf, Sector, Status,
};
use drystone_stack::live::{LiveStack, OpenEnv};
use drystone_stack::{Source, check};

/// A write to the log is there 2 ms later.
const STACK: &str = r#"
[device.data]
type = "ram"
size = "1MiB"
[device.log]
type = "null"
size = "4MiB"
memory_backed = true
irqmode = "timer"
completion_nsec = "2ms"
[device.v]
table = "0 2048 log-writes data log"
"#;

const PATIENCE: Duration = Duration::from_secs(60);

fn open(stack: &LiveStack, contexts: &Arc<ContextSet>) -> (Context, ChannelId) {
    let devices = stack.devices();
    let device: &Arc<dyn Device> = &devices.iter().find(|live| live.name == "v").unwrap().device;
    let mut cx = contexts.open(Engine::Plain).unwrap();
    let index = cx.open(device).unwrap();
    (cx, index)
}

fn submit(cx: &mut Context, device: ChannelId, bio: Box<Bio>) {
    let mut bios = BioList::new();
    bios.push(bio);
    cx.submit(device, &mut bios);
}

/// The super block that the first one has begun to write must be seen to be there, or the flush of
/// the second one waits for it for ever.
#[test]
fn a_flush_does_not_wait_for_a_thread_that_is_away() {
    let source = Source { name: "s.toml".to_owned(), text: STACK.to_owned() };
    let spec = check("s", source, Path::new("/")).unwrap_or_else(|report| panic!("{report}"));
    let at = OpenEnv::new(2, SystemClock::new());
    let stack = LiveStack::open(&spec, &at).unwrap();
    let contexts = ContextSet::counted_by(stack.locks().clone());
    let ((mut away, to), (mut cx, v)) = (open(&stack, &contexts), open(&stack, &contexts));
    let mut write = Bio::write(Sector(0), IoBuf::zeroed(4096));
    write.flags = BioFlags::FUA;
    submit(&mut away, to, write);
    submit(&mut cx, v, Bio::flush());
    let (begun, mut done) = (Instant::now(), BioList::new());
    while cx.reap(&mut done) == 0 {
        assert!(begun.elapsed() < PATIENCE, "the flush waits for the thread that is away");
        let soon = cx.now() + 100_000_000;
        cx.wait(Some(soon));
    }
    assert_eq!(done.pop().unwrap().status, Status::Ok);
    while away.reap(&mut done) == 0 {
        away.wait(None);
    }
    assert_eq!(done.pop().unwrap().status, Status::Ok);
}
