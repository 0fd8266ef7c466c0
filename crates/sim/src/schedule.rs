//! The scheduler of fibers: the seed decides which fiber goes on and how time passes.
//!
//! Invariants:
//! * Time stands still while a fiber runs, moves a little at each pause, and jumps to the next
//!   event when all fibers sleep. So a simulated second costs nothing, and no result depends on the
//!   speed of a fiber.
//! * A spinning fiber goes on only when no other fiber can, or by a rare chance.

#[cfg(drystone_sim)]
use crate::fiber;
use crate::fiber::{Fiber, Pause, Ran};
use crate::panics;
use crate::world::{FiberId, World};
use drystone_core::clock::Ns;
use fastrand::Rng;

/// How often fibers change, and how long they stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Points that a fiber passes on average before others go on; 0 is no limit.
    pub points: u64,
    /// Of a million pauses at a point, so many are long, as if the thread had lost its processor.
    pub stalls_ppm: u32,
    /// The longest such stall.
    pub stall_max_ns: Ns,
    /// The longest time that an ordinary pause takes.
    pub pause_max_ns: Ns,
}

impl Policy {
    /// A random policy: some change fibers at every point, some hardly ever.
    pub fn random(rng: &mut Rng) -> Self {
        let points = [1, 3, 10, 30, 100, 300, 1000, 0];
        Policy {
            points: points[rng.u64(0..8) as usize],
            stalls_ppm: [0, 0, 500, 5_000, 50_000][rng.u64(0..5) as usize],
            stall_max_ns: [20_000, 1_000_000, 20_000_000][rng.u64(0..3) as usize],
            pause_max_ns: [20, 200, 2_000][rng.u64(0..3) as usize],
        }
    }
}

/// Pauses for each fiber, without an event, before time jumps towards the next event. The number is
/// larger than the number of polls that any fiber makes before it sleeps. So a short wait never
/// lasts until an unrelated event.
const QUIET_MAX: usize = 500;
/// The first such jump at most; each further one doubles, up to a second. The bound is small
/// because some fibers may be about to take an event that happened before. After a jump of a minute
/// they would look as if they hung.
const LEAP_NS: Ns = 1_000_000;
const LEAP_MAX_NS: Ns = 1_000_000_000;
/// Pauses without an event before the scheduler reports a livelock. A disk that has an operation
/// prevents the report, because the operation will end. Its stall may last for so many pauses of
/// fibers that sleep for short times.
const PAUSES_MAX: u64 = 20_000_000;

struct Entry {
    name: String,
    fiber: Option<Fiber>,
    spins: bool,
}

/// Runs fibers.
pub struct Scheduler {
    world: World,
    rng: Rng,
    policy: Policy,
    fibers: Vec<Entry>,
    /// Fibers that have not ended.
    living: Vec<FiberId>,
    /// Fibers that can go on, as of the last choice.
    able: Vec<FiberId>,
    pauses: u64,
    pauses_max: u64,
    /// The count of events in the world at the last pause. `quiet` counts pauses since it changed,
    /// and `leap` is the next jump.
    happened: u64,
    quiet: usize,
    leap: Ns,
}

/// The failure that ended a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// A check found a fault.
    Found(String),
    /// A fiber panicked.
    Panicked {
        /// Its name.
        fiber: String,
        /// Its message.
        message: String,
    },
    /// All fibers wait, and no event is left.
    Deadlock {
        /// Their names.
        waiting: Vec<String>,
    },
    /// Fibers poll all the time, and no event happens.
    Livelock {
        /// Their names.
        spinning: Vec<String>,
    },
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stuck::Found(sentence) => write!(f, "{sentence}"),
            Stuck::Panicked { fiber, message } => write!(f, "{fiber} panicked: {message}"),
            Stuck::Deadlock { waiting } => {
                write!(f, "{} wait for ever: nothing is left to happen", waiting.join(", "))
            }
            Stuck::Livelock { spinning } => {
                write!(f, "{} go round in circles without any progress", spinning.join(", "))
            }
        }
    }
}

impl Scheduler {
    /// A scheduler for the fibers of `world`.
    pub fn new(world: World, policy: Policy, seed: u64) -> Self {
        Scheduler {
            world,
            rng: Rng::with_seed(seed),
            policy,
            fibers: Vec::new(),
            living: Vec::new(),
            able: Vec::new(),
            pauses: 0,
            pauses_max: PAUSES_MAX,
            happened: 0,
            quiet: 0,
            leap: LEAP_NS,
        }
    }

    /// Run until all fibers have ended; with the mistake, if one is given.
    ///
    /// # Errors
    /// The reason why they do not end.
    pub fn run(&mut self, mistake: Option<&'static str>) -> Result<(), Stuck> {
        let _points = Points::begin(mistake);
        self.adopt();
        loop {
            let round = self.world.round(&self.living, &mut self.able);
            if round.spawned {
                self.adopt();
                continue;
            }
            if let Some(sentence) = round.failed.then(|| self.world.failure()).flatten() {
                return Err(Stuck::Found(sentence));
            }
            self.look_for_news(round.happened);
            match self.choose() {
                Some(fiber) => self.resume(fiber)?,
                None if self.living.is_empty() => return Ok(()),
                None => self.jump()?,
            }
        }
    }

    fn adopt(&mut self) {
        for (name, body) in self.world.take_spawned() {
            self.world.add_sleeper();
            self.living.push(self.fibers.len());
            self.fibers.push(Entry { name, fiber: Some(Fiber::new(body)), spins: false });
        }
    }

    /// The next fiber to run: one that can go on, preferably one that does not spin.
    fn choose(&mut self) -> Option<FiberId> {
        let spins = |id: &FiberId| self.fibers[*id].spins;
        if self.able.iter().all(spins) {
            self.world.pass(self.rng.u64(0..1000));
        } else if self.rng.u64(0..16) > 0 {
            self.able.retain(|id| !self.fibers[*id].spins);
        }
        let nth = self.rng.u64(0..self.able.len().max(1) as u64) as usize;
        self.able.get(nth).copied()
    }

    fn jump(&mut self) -> Result<(), Stuck> {
        let Some(at) = self.world.next_time() else {
            return Err(Stuck::Deadlock { waiting: self.names() });
        };
        self.world.pass(at.saturating_sub(self.world.now()));
        Ok(())
    }

    /// The place of each fiber that has not ended. None of them can go on after this.
    pub fn describe(&mut self) -> Vec<String> {
        let living = self.living.clone();
        let mut lines = Vec::new();
        for id in living {
            let entry = &mut self.fibers[id];
            let place = entry.fiber.as_mut().map(Fiber::where_it_is).unwrap_or_default();
            lines.push(format!("{} is in {place}", entry.name));
        }
        lines
    }

    fn names(&self) -> Vec<String> {
        self.living.iter().map(|id| self.fibers[*id].name.clone()).collect()
    }

    /// The name of a fiber.
    pub fn name(&self, fiber: FiberId) -> &str {
        self.fibers.get(fiber).map_or("", |entry| &entry.name)
    }

    fn resume(&mut self, id: FiberId) -> Result<(), Stuck> {
        self.world.set_running(id);
        Points::stop_after(self.steps());
        let entry = &mut self.fibers[id];
        match entry.fiber.as_mut().expect("it lives").resume() {
            Ran::Paused(pause) => {
                entry.spins = pause == Pause::Spin;
                self.paused(id, pause)
            }
            Ran::Ended => {
                self.end(id);
                Ok(())
            }
            Ran::Panicked(panic) => {
                let fiber = entry.name.clone();
                self.end(id);
                Err(Stuck::Panicked { fiber, message: message_of(&*panic) })
            }
        }
    }

    fn end(&mut self, id: FiberId) {
        self.fibers[id].fiber = None;
        self.living.retain(|living| *living != id);
    }

    fn paused(&mut self, id: FiberId, pause: Pause) -> Result<(), Stuck> {
        self.pauses += 1;
        if self.pauses > self.pauses_max && !self.world.has_disk_operations() {
            return Err(Stuck::Livelock { spinning: self.names() });
        }
        // A spinning fiber would poll for long: its pauses count more.
        self.quiet += if pause == Pause::Spin { 8 } else { 1 };
        let took = 1 + self.rng.u64(0..self.policy.pause_max_ns);
        self.world.pass(took);
        if pause == Pause::Step && self.rng.u32(0..1_000_000) < self.policy.stalls_ppm {
            let ns = 1 + self.rng.u64(0..self.policy.stall_max_ns);
            self.world.stall(id, self.world.now() + ns);
        }
        Ok(())
    }

    /// Moves time towards the next event if fibers have polled for long without one.
    fn look_for_news(&mut self, happened: u64) {
        if std::mem::replace(&mut self.happened, happened) != happened {
            (self.quiet, self.pauses, self.leap) = (0, 0, LEAP_NS);
        }
        if self.quiet > QUIET_MAX * self.living.len()
            && let Some(at) = self.world.next_time()
        {
            self.quiet = 0;
            self.world.pass(at.saturating_sub(self.world.now()).min(self.leap));
            self.leap = (2 * self.leap).min(LEAP_MAX_NS);
        }
    }

    /// The number of points that the next fiber passes before it stops.
    fn steps(&mut self) -> u64 {
        match self.policy.points {
            0 => u64::MAX,
            points => self.rng.u64(0..2 * points),
        }
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let place = panics::panic_place().unwrap_or_default();
    format!("{} ({place})", text.unwrap_or_else(|| "without a word".to_owned()))
}

/// While this value lives, the points of this thread call the scheduler.
struct Points;

#[cfg(drystone_sim)]
impl Points {
    fn begin(mistake: Option<&'static str>) -> Self {
        drystone_core::sim::set_hook(Some(stop));
        drystone_core::sim::set_broken(mistake);
        Points
    }

    fn stop_after(steps: u64) {
        drystone_core::sim::stop_after(steps);
    }
}

#[cfg(drystone_sim)]
impl Drop for Points {
    fn drop(&mut self) {
        drystone_core::sim::set_hook(None);
        drystone_core::sim::set_broken(None);
    }
}

/// The point at which the running fiber stops. A fiber that a panic unwinds does not stop: no other
/// fiber runs before it has ended.
#[cfg(drystone_sim)]
fn stop(point: drystone_core::sim::Point) {
    use drystone_core::sim::Point;
    if !fiber::is_inside() {
        return drystone_core::sim::stop_after(u64::MAX);
    }
    if std::thread::panicking() {
        assert!(point == Point::Step, "a fiber that is at its end waits for another");
        return drystone_core::sim::stop_after(u64::MAX);
    }
    fiber::pause(match point {
        Point::Step => Pause::Step,
        Point::Spin => Pause::Spin,
    });
}

/// In a build without points, fibers change only where they sleep.
#[cfg(not(drystone_sim))]
impl Points {
    fn begin(_: Option<&'static str>) -> Self {
        Points
    }

    fn stop_after(_: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, DiskOptions, Latency};

    /// Runs a fiber that sleeps for short times until an event has happened.
    fn look(is_disk_busy: bool) -> Result<(), Stuck> {
        let world = World::new(false);
        let latency = Latency::constant(1_000_000);
        let options = DiskOptions { latency, early_ppm: 0, ..DiskOptions::new(1 << 20) };
        let disk = world.add_disk(Disk::new(options, 1));
        let _ring = is_disk_busy.then(|| world.begin_read(disk));
        let inside = world.clone();
        world.spawn("looker", move || {
            while inside.sum().1 == 0 {
                inside.sleep(1);
            }
        });
        let policy = Policy { points: 0, stalls_ppm: 0, stall_max_ns: 1, pause_max_ns: 20 };
        let mut scheduler = Scheduler::new(world, policy, 1);
        scheduler.pauses_max = 1000;
        scheduler.run(None)
    }

    #[test]
    fn a_busy_disk_is_awaited_however_often_a_fiber_looks_meanwhile() {
        assert_eq!(look(true), Ok(()));
    }

    #[test]
    fn a_fiber_that_looks_without_end_is_found() {
        let spinning = vec!["looker".to_owned()];
        assert_eq!(look(false), Err(Stuck::Livelock { spinning }));
    }
}
