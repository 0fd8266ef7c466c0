//! Records the moments of one run, and restarts the stack on each image of each moment.
//!
//! Invariants:
//! * The observer changes nothing: it draws no random number that the run draws, so the run is the
//!   same with and without it.
//! * A moment's snapshots and its knowledge are of the same instant: no fiber runs between them.

use super::Subject;
use super::subsets::{Lucks, subsets};
use crate::counts::Counts;
use crate::disk::DiskSnapshot;
use crate::order::Order;
use crate::outcome::Outcome;
use crate::schedule::{Policy, Scheduler, Stuck};
use crate::world::{DiskId, World};
use drystone_core::clock::Ns;
use fastrand::Rng;
use std::cell::RefCell;
use std::rc::Rc;

/// The most images that are tried of one moment.
const IMAGES_MAX: usize = 256;
/// The most moments for each restart that a seed must make. If a run has more, only some of them
/// are tried.
const MOMENTS_PER_RESTART: usize = 2;
/// One restart in so many also uses the stack.
const USED_EVERY: u64 = 8;

type Line = (Ns, String, String);

/// A moment at which the power may go.
struct Moment<K> {
    at: Ns,
    /// Lines of the trace before it.
    lines: usize,
    disks: Vec<Rc<DiskSnapshot>>,
    known: K,
}

/// Takes the moments of a run.
struct Recorder<S: Subject> {
    world: World,
    subject: Rc<S>,
    /// The latest snapshot of each disk; none once the disk has changed since.
    latest: RefCell<Vec<Option<Rc<DiskSnapshot>>>>,
    moments: RefCell<Vec<Moment<S::Known>>>,
}

impl<S: Subject> Recorder<S> {
    fn new(world: &World, subject: &Rc<S>) -> Rc<Self> {
        let latest = RefCell::new(vec![None; world.disks()]);
        let (world, subject) = (world.clone(), subject.clone());
        Rc::new(Recorder { world, subject, latest, moments: RefCell::default() })
    }

    /// Record the present moment.
    fn take(&self) {
        let mut latest = self.latest.borrow_mut();
        let disks = latest.iter_mut().enumerate().map(|(disk, latest)| {
            let now = || Rc::new(self.world.disk(disk, |disk| disk.snapshot()));
            latest.get_or_insert_with(now).clone()
        });
        let disks = disks.collect();
        let (at, lines) = (self.world.now(), self.world.trace_len());
        let known = self.subject.known();
        self.moments.borrow_mut().push(Moment { at, lines, disks, known });
    }

    /// Record the present moment, just before a disk changes.
    fn before_change(&self, disk: DiskId) {
        self.take();
        self.latest.borrow_mut()[disk] = None;
    }
}

/// Run a seed: the workload, then a restart for each image of each moment, until one fails.
pub fn run<S: Subject>(order: &Order, subject: &Rc<S>, policy: Policy, seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    // The trace is always on: it is short here, and names the moment of a failure.
    let world = World::new(true);
    let begin = world.now();
    subject.disks().into_iter().for_each(|disk| _ = world.add_disk(disk));
    let recorder = Recorder::new(&world, subject);
    let observer = recorder.clone();
    world.observe(Some(Rc::new(move |disk| observer.before_change(disk))));
    let mut scheduler = Scheduler::new(world.clone(), policy, rng.u64(..));
    world.spawn("operator", subject.work(&world));
    let failure = scheduler.run(order.mistake).err();
    world.observe(None);
    recorder.take();
    if failure.is_some() && order.trace {
        scheduler.describe().into_iter().for_each(|line| world.note(|| line));
    }
    let mut restarts = Restarts {
        order,
        subject: &**subject,
        policy,
        lines: lines(&world, &scheduler),
        counts: Counts::default(),
        digest: world.sum().0,
        simulated_ns: world.now() - begin,
        trace: None,
    };
    let failure = failure.or_else(|| restarts.all(&recorder.moments.borrow(), &mut rng));
    restarts.outcome(failure)
}

fn lines(world: &World, scheduler: &Scheduler) -> Vec<Line> {
    let name = |fiber| scheduler.name(fiber).to_owned();
    world.trace().into_iter().map(|(at, fiber, line)| (at, name(fiber), line)).collect()
}

/// The restarts of one run, and their results so far.
struct Restarts<'a, S: Subject> {
    order: &'a Order,
    subject: &'a S,
    policy: Policy,
    /// The trace of the workload.
    lines: Vec<Line>,
    counts: Counts,
    digest: u64,
    simulated_ns: Ns,
    /// The trace of the restart that failed.
    trace: Option<Vec<Line>>,
}

impl<S: Subject> Restarts<'_, S> {
    fn all(&mut self, moments: &[Moment<S::Known>], rng: &mut Rng) -> Option<Stuck> {
        let (restarts, least) = self.subject.restarts();
        let bound = (restarts / moments.len()).clamp(least, IMAGES_MAX);
        // Of very many moments only some are tried, evenly spread.
        let step = moments.len().div_ceil(restarts * MOMENTS_PER_RESTART).max(1);
        let first = rng.u64(0..step as u64) as usize;
        moments.iter().enumerate().skip(first).step_by(step).find_map(|(number, moment)| {
            let what = format!("moment {number} of {}", moments.len() - 1);
            self.moment(moment, &what, bound, rng)
        })
    }

    fn moment(
        &mut self,
        moment: &Moment<S::Known>,
        what: &str,
        bound: usize,
        rng: &mut Rng,
    ) -> Option<Stuck> {
        let (all, subsets) = subsets(&moment.disks, bound, rng);
        let tried = if all { "moment, all images" } else { "moment, some images" };
        self.counts.add("crash: moment", 1);
        self.counts.add(&format!("crash: {tried}"), 1);
        let count = subsets.len();
        subsets.iter().enumerate().find_map(|(number, lucks)| {
            let what = format!("{what}, image {} of {count}", number + 1);
            self.restart(moment, &what, lucks, rng)
        })
    }

    /// Start on one image.
    fn restart(
        &mut self,
        moment: &Moment<S::Known>,
        what: &str,
        lucks: &Lucks,
        rng: &mut Rng,
    ) -> Option<Stuck> {
        let with_lucks = moment.disks.iter().zip(lucks);
        let kept: Vec<_> = with_lucks.map(|(disk, luck)| disk.kept(*luck, rng)).collect();
        let (world, seed) = (World::new(self.order.trace), rng.u64(..));
        for (disk, kept) in moment.disks.iter().zip(&kept) {
            world.add_disk(disk.image_of(kept, rng.u64(..)));
        }
        let used = self.counts.get("crash: restart").is_multiple_of(USED_EVERY);
        self.counts.add("crash: restart", 1);
        self.counts.add("crash: restart, then used", u64::from(used));
        let policy = if used { self.policy } else { CALM };
        let (begin, mut scheduler) = (world.now(), Scheduler::new(world.clone(), policy, seed));
        world.spawn("operator", self.subject.judge(&world, moment.known.clone(), used));
        let failed = scheduler.run(self.order.mistake).err();
        self.simulated_ns += world.now() - begin;
        self.digest = self.digest.rotate_left(7) ^ world.sum().0;
        let failed = failed?;
        Some(self.failed(moment, what, &kept, &failed, lines(&world, &scheduler)))
    }

    /// The report of a restart that failed.
    fn failed(
        &mut self,
        moment: &Moment<S::Known>,
        what: &str,
        kept: &[Vec<usize>],
        why: &Stuck,
        after: Vec<Line>,
    ) -> Stuck {
        let next = self.lines.get(moment.lines);
        let next = next.map_or("the end", |(_, _, line)| &**line);
        let disks = moment.disks.iter().zip(kept).enumerate();
        let disks: Vec<_> =
            disks.map(|(n, (disk, kept))| format!("disk {n}: {}", disk.describe(kept))).collect();
        let cut = format!("the power goes at {what}, before: {next}; {}", disks.join("; "));
        let mut trace = self.lines[..moment.lines].to_vec();
        trace.push((moment.at, String::new(), cut.clone()));
        trace.extend(after);
        self.trace = Some(trace);
        Stuck::Found(format!("{cut}\n{why}"))
    }

    fn outcome(mut self, failure: Option<Stuck>) -> Outcome {
        self.counts.add_all(&self.subject.counts());
        Outcome {
            culprit: None,
            counts: self.counts,
            digest: self.digest,
            ios: self.subject.ios(),
            contexts: 0,
            simulated_ns: self.simulated_ns,
            trace: self.trace.unwrap_or(self.lines),
            stack: String::new(),
            failure,
        }
    }
}

/// A policy for a restart that only reads: each fiber runs until it waits.
const CALM: Policy = Policy { points: 0, stalls_ppm: 0, stall_max_ns: 1, pause_max_ns: 200 };
