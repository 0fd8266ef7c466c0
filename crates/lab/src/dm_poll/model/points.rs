//! The measured points: they give the model the costs of an I/O, and check it.

use anyhow::Context as _;
use drystone_core::context::PollMode;

use super::super::cores::Cores;
use super::super::point::{self, Sample};
use super::super::scene::{self, MAIL_DEPTH, Members, Scene};
use super::super::variants::{JUDGED_US, POLLERS};
use super::super::wake::Cost;
use super::inputs::Inputs;
use super::load::{Figures, IoCosts, Way};
use crate::Progress;
use crate::model::ModelOptions;
use crate::model::costs::ps;
use crate::outcome::threads_text;
use crate::row::spread;

/// A scene in one mode on some cores, with its runs and the model's figures.
pub struct Point {
    pub scene: Scene,
    mode: PollMode,
    on: Cores,
    pub samples: Vec<Sample>,
    pub modelled: Option<Figures>,
}

/// One poller of each kind of volume, several on the cores that submit, and, polled, two with a
/// core each, where there are only two; with one I/O in flight, and at the mail's depth.
pub fn all(most: u32, cores: &Cores) -> Vec<Point> {
    let (irq, poll) = (PollMode::Interrupt, PollMode::Poll);
    let mut points = Vec::new();
    let mut add = |scene: &Scene, modes: &[PollMode], on: &Cores| {
        let point = |mode: &PollMode| Point {
            scene: scene.clone(),
            mode: *mode,
            on: on.clone(),
            samples: Vec::new(),
            modelled: None,
        };
        points.extend(modes.iter().map(point));
    };
    let several = POLLERS.min(most);
    let both = cores.with_the_device().filter(|_| several > 1);
    for deep in [false, true] {
        let mut add = |scene: &Scene, modes: &[PollMode], on: &Cores| {
            add(&if deep { scene.deep() } else { scene.clone() }, modes, on);
        };
        let [one, _, _, stripe] = scene::tables(JUDGED_US, 1, 1);
        [&one, &stripe].into_iter().for_each(|scene| add(scene, &[irq, poll], cores));
        if several > 1 {
            let [_, shared, pinned, stripe] = scene::tables(JUDGED_US, several, several);
            add(&shared, &[irq, poll], cores);
            add(&scene::waiting(JUDGED_US, several), &[poll], cores);
            add(&pinned, &[irq, poll], cores);
            add(&stripe, &[irq, poll], cores);
        }
        if let Some(both) = &both {
            let [_, shared, pinned, stripe] = scene::tables(JUDGED_US, 2, 2);
            let waiting = scene::waiting(JUDGED_US, 2);
            [shared, waiting, pinned, stripe].iter().for_each(|scene| add(scene, &[poll], both));
        }
    }
    points
}

/// Make the runs of all, in turns. No scene has files.
///
/// # Errors
/// When a run cannot be made.
pub fn measure(
    points: &mut [Point],
    options: &ModelOptions,
    say: Progress<'_>,
) -> anyhow::Result<()> {
    for run in 1..=options.runs {
        say(&format!("points, run {run} of {}", options.runs));
        for point in &mut *points {
            let Point { scene, mode, on, samples, .. } = point;
            let sample = point::measure(scene, *mode, on, &[], options.runtime_ns);
            samples.push(sample.with_context(|| {
                let threads = threads_text(scene.threads);
                format!("{}, {}, {threads}", scene.name, mode.name())
            })?);
        }
    }
    Ok(())
}

impl Point {
    pub fn way(&self) -> Way {
        match self.mode {
            PollMode::Interrupt => Way::Interrupt,
            _ => Way::Poll { skips: self.scene.skip_busy() != Some(false) },
        }
    }

    /// Cores that its threads could use.
    pub fn cores(&self) -> u32 {
        self.scene.threads.min(self.on.submit.len() as u32)
    }

    /// Poll queues of each member.
    pub fn queues(&self) -> usize {
        match self.scene.members {
            Members::Null { poll_queues, .. } => poll_queues as usize,
            Members::Files => 1,
        }
    }

    pub fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        let values: Vec<f64> = self.samples.iter().map(of).collect();
        spread(&values).map_or(f64::NAN, |(_, median, _)| median)
    }

    pub fn iops(&self) -> f64 {
        self.median(|sample| sample.iops)
    }

    /// Modelled over measured, less 1.
    pub fn error(&self) -> f64 {
        self.modelled.map_or(f64::NAN, |found| found.iops / self.iops() - 1.0)
    }

    /// The share of the device's core that its thread got: the thread polls the clock all the time.
    pub fn device_had(&self) -> f64 {
        let used = self.median(|sample| sample.device_cpu_ns_per_io * sample.iops / 1e9);
        if used > 0.01 { used.min(1.0) } else { 1.0 }
    }

    fn is_like(&self, other: &Point) -> bool {
        let key = |point: &Point| {
            let scene = &point.scene;
            (scene.name, scene.depth, scene.threads, point.on.clone())
        };
        key(self) == key(other)
    }
}

/// The share of its cores that a point was given. For a polled point it is the share that its
/// threads used, since pollers never sleep. For a point by interrupt it is that of the polled point
/// of the same scene in the same turns.
pub fn had(points: &[Point], number: usize) -> f64 {
    let own = &points[number];
    let polled = points.iter().find(|point| point.mode == PollMode::Poll && point.is_like(own));
    let point = if own.mode == PollMode::Poll { own } else { polled.unwrap_or(own) };
    let used = point.median(|sample| sample.cpu_ns_per_io * sample.iops / 1e9);
    (used / f64::from(point.cores())).clamp(0.05, 1.0)
}

/// An I/O's costs on a linear and on a striped volume.
pub struct IoCostsOf {
    linear: IoCosts,
    striped: IoCosts,
}

impl IoCostsOf {
    /// Computes the costs from the points with one poller at the mail's depth: their processor
    /// time, less that of polls. With one I/O in flight, polls and wake-ups take nearly all of it.
    ///
    /// # Errors
    /// When a point with one poller is missing.
    pub fn of(points: &[Point], inputs: &Inputs, wake: &Cost) -> anyhow::Result<Self> {
        let costs = |striped: bool| -> anyhow::Result<IoCosts> {
            let one = |mode: PollMode| {
                let alone =
                    |p: &&Point| (p.mode, p.scene.threads, p.scene.depth) == (mode, 1, MAIL_DEPTH);
                let mut all = points.iter().filter(alone);
                all.find(|point| point.scene.striped == striped).context("no point with 1 poller")
            };
            Ok(io_costs(one(PollMode::Interrupt)?, one(PollMode::Poll)?, inputs, wake))
        };
        Ok(IoCostsOf { linear: costs(false)?, striped: costs(true)? })
    }

    pub fn of_table(&self, striped: bool) -> &IoCosts {
        if striped { &self.striped } else { &self.linear }
    }
}

fn io_costs(told: &Point, polled: &Point, inputs: &Inputs, wake: &Cost) -> IoCosts {
    let parts = if polled.scene.striped { scene::MEMBERS as f64 } else { 1.0 };
    let looks_ns = |sample: &Sample| sample.locks_per_io * inputs.look_ns + parts * inputs.found_ns;
    let slept_ns = |sample: &Sample| sample.wakes_per_io * wake.sleeper_ns;
    IoCosts {
        submit_ps: ps(polled.median(|sample| sample.cpu_ns_per_io - looks_ns(sample))).max(1000),
        interrupt_ps: ps(told.median(|sample| sample.cpu_ns_per_io - slept_ns(sample))).max(1000),
        look_ps: ps(inputs.look_ns - inputs.hold_ns).max(1000),
        hold_ps: ps(inputs.hold_ns),
        found_ps: ps(inputs.found_ns - inputs.found_hold_ns),
        found_hold_ps: ps(inputs.found_hold_ns),
        tell_ps: ps(inputs.take_in_ns + inputs.tell_ns),
        send_ps: ps(inputs.send_ns),
        // The other half lies between the call that wakes the thread and its next step.
        sleep_ps: ps(wake.sleeper_ns / 2.0),
        waker_ps: ps(wake.waker_ns),
    }
}
