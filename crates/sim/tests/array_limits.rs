//! Limits of a group on a member of an array bind what the group reads from it, and nothing that
//! the array does for itself: no superblock, no log, no parity waits for them.

use drystone_core::clock::Ns;
use drystone_core::{Bio, IoBuf, Sector, Status};
use drystone_sim::disk::{Disk, DiskOptions};
use drystone_sim::schedule::{Policy, Scheduler};
use drystone_sim::stack::{self, one};
use drystone_sim::world::World;
use drystone_stack::live::SleepFn;
use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;

const BYTES: u64 = 8 << 20;
const POLICY: Policy = Policy { points: 0, stalls_ppm: 0, stall_max_ns: 1, pause_max_ns: 100 };
const SECOND_NS: Ns = 1_000_000_000;
const WRITES: u64 = 20;

/// The time that writes and reads of a group took that may do one I/O a second on each member.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    writes: Ns,
    clean: Ns,
    reads: Ns,
}

fn text(policy: &str) -> String {
    let mut text = String::new();
    for n in 0..4 {
        let _ =
            writeln!(text, "[device.d{n}]\ntype = \"file\"\npath = \"/sim/{n}\"\nsize = {BYTES}");
    }
    let limits: Vec<_> = (0..4).map(|n| format!("\"d{n} riops=1 wiops=1\"")).collect();
    let _ = writeln!(
        text,
        "[device.a]\ntype = \"raid5\"\nmembers = [\"d0\", \"d1\", \"d2\", \"d3\"]\n\
         consistency_policy = \"{policy}\"\n[group.g]\nio.max = [{}]",
        limits.join(", ")
    );
    text
}

/// Write, let the array become clean, read.
fn work(world: &World, text: String) -> Took {
    let live = stack::open(world, text).expect("it is right");
    let mut cx = live.contexts().context(world.ring());
    let devices = live.devices();
    let array = devices.iter().find(|live| live.name == "a").expect("it is there");
    let index = cx.open(&array.device).expect("nothing fails");
    let group = live.groups().find("g").expect("it is there").id().as_u32();
    let mut begin = world.now();
    let mut lap = || std::mem::replace(&mut begin, world.now());
    let mut io = |mut bio: Box<Bio>| {
        bio.group = group;
        assert_eq!(one(&mut cx, index, bio).status, Status::Ok);
    };
    let write = |n: u64| Bio::write(Sector(n * 8), IoBuf::from_slice(&[n as u8; 4096]));
    (0..WRITES).for_each(|n| io(write(n)));
    let writes = world.now() - lap();
    let is_clean = || array.device.attribute("md/array_state").as_deref() == Some("clean");
    while !is_clean() {
        world.sleep(1_000_000);
    }
    let clean = world.now() - lap();
    (0..3).for_each(|n| io(Bio::read(Sector(n * 8), IoBuf::zeroed(4096))));
    let reads = world.now() - lap();
    drop(cx);
    live.stop();
    let sleeper = world.clone();
    live.stop_arrays(&(Box::new(move |ns| sleeper.sleep(ns)) as SleepFn)).expect("it stops");
    Took { writes, clean, reads }
}

fn took(policy: &'static str) -> Took {
    let world = World::new(false);
    for seed in 0..4 {
        world.add_disk(Disk::new(DiskOptions::new(BYTES), seed));
    }
    let took = Rc::new(RefCell::new(Took::default()));
    let (there, within) = (took.clone(), world.clone());
    world.spawn("user", move || *there.borrow_mut() = work(&within, text(policy)));
    Scheduler::new(world, POLICY, 1).run(None).expect("it ends");
    *took.borrow()
}

#[test]
fn limits_of_a_member_hold_up_no_superblock_bitmap_or_log() {
    for policy in ["resync", "bitmap", "ppl"] {
        let took = took(policy);
        assert!(took.writes < SECOND_NS, "{policy}: {took:?}");
        assert!(took.clean < SECOND_NS, "{policy}: {took:?}");
        // Reads pass to the member, in the group's name.
        assert!(took.reads > SECOND_NS, "{policy}: {took:?}");
    }
}
