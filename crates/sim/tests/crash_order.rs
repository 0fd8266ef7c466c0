//! Another subject of crash enumeration than the volumes of `mixed`: a note on one disk and, on
//! another, a mark that the note is there. It shows what a subject has to do, and that a mark that
//! does not wait for its note is found.

use drystone_core::{Bio, ChannelId, Context, ContextSet, IoBuf, Sector, Status};
use drystone_sim::counts::Counts;
use drystone_sim::crash::{self, Subject};
use drystone_sim::disk::{Disk, DiskOptions};
use drystone_sim::fiber::Body;
use drystone_sim::runner::Order;
use drystone_sim::schedule::Policy;
use drystone_sim::stack;
use drystone_sim::world::World;
use drystone_stack::live::LiveStack;
use std::cell::Cell;
use std::rc::Rc;

const BYTES: u64 = 64 << 10;
const NOTES: u8 = 6;
const POLICY: Policy = Policy { points: 0, stalls_ppm: 0, stall_max_ns: 1, pause_max_ns: 100 };

/// Notes that are numbers, each marked when it is written.
struct Notes {
    /// True if the note is flushed before its mark is written.
    waits: bool,
    /// The last mark that was flushed.
    marked: Rc<Cell<u8>>,
}

/// A start of the stack: a disk for notes and one for marks.
struct Started {
    stack: LiveStack,
    cx: Context,
    devices: [ChannelId; 2],
}

impl Started {
    fn new(world: &World) -> Self {
        let file =
            |n| format!("[device.d{n}]\ntype = \"file\"\npath = \"/sim/{n}\"\nsize = {BYTES}\n");
        let stack = stack::open(world, format!("{}{}", file(0), file(1))).expect("it is right");
        let mut cx = ContextSet::counted_by(stack.locks().clone()).context(world.ring());
        let live = [&stack.devices()[0], &stack.devices()[1]];
        let devices = live.map(|live| cx.open(&live.device).expect("nothing fails"));
        Started { stack, cx, devices }
    }

    fn one(&mut self, disk: usize, bio: Box<Bio>) -> Box<Bio> {
        let bio = stack::one(&mut self.cx, self.devices[disk], bio);
        assert_eq!(bio.status, Status::Ok);
        bio
    }

    fn write(&mut self, disk: usize, number: u8) {
        let mut buf = IoBuf::zeroed(512);
        buf.fill(number);
        self.one(disk, Bio::write(Sector(8), buf));
    }

    fn flush(&mut self, disk: usize) {
        self.one(disk, Bio::flush());
    }

    fn read(&mut self, disk: usize) -> u8 {
        let bio = self.one(disk, Bio::read(Sector(8), IoBuf::zeroed(512)));
        bio.buf().expect("a read has a buffer")[511]
    }

    fn stop(self) {
        self.stack.stop();
    }
}

impl Subject for Notes {
    type Known = u8;

    fn disks(&self) -> Vec<Disk> {
        (0..2).map(|n| Disk::new(DiskOptions::new(BYTES), n)).collect()
    }

    fn work(&self, world: &World) -> Body {
        let (world, waits, marked) = (world.clone(), self.waits, self.marked.clone());
        Box::new(move || {
            let mut start = Started::new(&world);
            for number in 1..=NOTES {
                start.write(0, number);
                if waits {
                    start.flush(0);
                }
                start.write(1, number);
                start.flush(1);
                start.flush(0);
                marked.set(number);
            }
            start.stop();
        })
    }

    fn known(&self) -> u8 {
        self.marked.get()
    }

    fn judge(&self, world: &World, known: u8, then_use: bool) -> Body {
        let world = world.clone();
        Box::new(move || {
            let mut start = Started::new(&world);
            let (note, mark) = (start.read(0), start.read(1));
            if mark > note || mark < known {
                world.fail(format!("mark {mark} of {known} or more, and note {note}"));
            }
            if then_use {
                start.write(0, NOTES + 1);
                start.flush(0);
                assert_eq!(start.read(0), NOTES + 1);
            }
            start.stop();
        })
    }

    fn restarts(&self) -> (usize, usize) {
        (1_600, 6)
    }

    fn ios(&self) -> u64 {
        u64::from(NOTES)
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }
}

fn run(waits: bool) -> drystone_sim::mixed::Outcome {
    let notes = Rc::new(Notes { waits, marked: Rc::default() });
    crash::run(&Order { seed: 1, ..Order::default() }, &notes, POLICY, 1)
}

#[test]
fn a_mark_that_waits_for_its_note_is_well() {
    let outcome = run(true);
    assert_eq!(outcome.failure, None);
    let (moments, changes) = (outcome.counts.get("crash: moment"), u64::from(NOTES) * 5 * 2);
    assert_eq!(
        moments,
        changes + 1,
        "before each begin and end of a write or a flush, and the end"
    );
    assert_eq!(outcome.counts.get("crash: moment, all images"), moments);
}

#[test]
fn a_mark_that_does_not_wait_is_found() {
    let failure = run(false).failure.expect("it is found").to_string();
    assert!(failure.contains("mark 1 of 0 or more, and note 0"), "{failure}");
    assert!(
        failure.contains("disk 0: blocks keep 8: 0/1; disk 1: blocks keep 8: 1/1"),
        "{failure}"
    );
}

#[test]
fn looking_changes_nothing() {
    let sum = |observed: bool| {
        let (notes, world) = (Notes { waits: true, marked: Rc::default() }, World::new(false));
        notes.disks().into_iter().for_each(|disk| _ = world.add_disk(disk));
        let (seen, looked) = (Rc::new(Cell::new(0)), world.clone());
        let count = seen.clone();
        world.observe(observed.then(|| -> drystone_sim::world::Observer {
            Rc::new(move |disk| {
                looked.disk(disk, |disk| drop(disk.snapshot()));
                count.set(count.get() + 1);
            })
        }));
        world.spawn("operator", notes.work(&world));
        let ran = drystone_sim::schedule::Scheduler::new(world.clone(), POLICY, 7).run(None);
        assert_eq!(ran, Ok(()));
        world.observe(None);
        (world.sum(), world.now(), seen.get())
    };
    let (with, without) = (sum(true), sum(false));
    assert_eq!((with.0, with.1), (without.0, without.1));
    assert!(with.2 > 0 && without.2 == 0);
}
