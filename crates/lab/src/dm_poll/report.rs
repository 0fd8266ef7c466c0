//! The measured figures, for people and programs.

use serde_json::{Value, json};

use super::cores::Cores;
use super::point::{Polls, Sample};
use super::scene::{DEPTH, MAIL_DEPTH, ONE, PINNED, SEVERAL, STRIPE, Scene};
use super::variants::{JUDGED_US, Measured, VARIANTS};
use super::wake::Cost;
use crate::outcome::threads_text;
use crate::row::{Row, spread};
use crate::table::{Columns, THOUSANDS, Table, Unit, WHOLE_PERCENT};

fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Option<f64> {
    let values: Vec<f64> = samples.iter().map(of).collect();
    spread(&values).map(|(_, median, _)| median)
}

impl Measured {
    fn iops(&self, variant: usize) -> Option<f64> {
        median(&self.samples[variant], |sample| sample.iops)
    }

    /// The relative gain in IOPS over interrupts.
    fn gain(&self, variant: usize) -> Option<f64> {
        Some(self.iops(variant)? / self.iops(0)? - 1.0)
    }

    /// The difference of the row from the judged row of its table.
    fn note(&self) -> Option<String> {
        let scene = &self.scene;
        let waits = (scene.skip_busy() == Some(false)).then(|| "busy queues waited for".to_owned());
        let latency = scene.latency_us().filter(|us| *us != JUDGED_US).map(|us| format!("{us} us"));
        let depth = (scene.depth != DEPTH).then(|| format!("depth {}", scene.depth));
        let notes: Vec<String> = [waits, latency, depth].into_iter().flatten().collect();
        (!notes.is_empty()).then(|| notes.join(", "))
    }

    /// True for a scene by which targets are judged, or its counterpart at the mail's depth.
    fn is_judged(&self, name: &str, skips: bool, depth: usize) -> bool {
        let scene = &self.scene;
        scene.name == name
            && scene.latency_us() == Some(JUDGED_US)
            && scene.skip_busy() == Some(skips)
            && scene.depth == depth
    }
}

/// A row for each variant.
pub(super) fn rows(measured: &Measured) -> Vec<Row> {
    let rows = VARIANTS.iter().zip(&measured.samples);
    rows.map(|((variant, mode), samples)| {
        let polls = |of: fn(Polls) -> u64| {
            move |sample: &Sample| {
                sample.polls.iter().map(|(_, polls)| of(*polls)).sum::<u64>() as f64
            }
        };
        Row {
            device: measured.scene.name,
            variant,
            note: measured.note(),
            threads: measured.scene.threads,
            labels: vec![
                ("mode", json!(mode.name())),
                ("skip_busy", json!(measured.scene.skip_busy())),
                ("path", json!(path(variant, samples))),
                ("device_latency_us", json!(measured.scene.latency_us())),
                ("depth", json!(measured.scene.depth)),
                ("hw_queues", queues(samples)),
            ],
            measured: crate::row::measured(
                samples,
                &[
                    ("iops", &|s| s.iops),
                    ("cpu_ns_per_io", &|s| s.cpu_ns_per_io),
                    ("device_cpu_ns_per_io", &|s| s.device_cpu_ns_per_io),
                    ("wakes_per_io", &|s| s.wakes_per_io),
                    ("polls_made", &polls(|p| p.invoked)),
                    ("polls_fruitful", &polls(|p| p.success)),
                    ("polls_skipped", &polls(Polls::skipped)),
                    ("lock_acquisitions_per_io", &|s| s.locks_per_io),
                    ("lock_contentions_per_io", &|s| s.contentions_per_io),
                    ("contention", &|s| s.contention),
                ],
            ),
            ..Row::default()
        }
    })
    .collect()
}

/// The path of polling: by cookies, or the context's own if it decides itself.
fn path(variant: &str, samples: &[Sample]) -> &'static str {
    let polled = samples.iter().any(|s| s.polls.iter().any(|(_, polls)| polls.invoked > 0));
    match (variant, samples.last()) {
        ("mailed", Some(last)) => last.path,
        ("ours", _) if polled => "context",
        _ => "none",
    }
}

/// Each poll queue's counts, run by run.
fn queues(samples: &[Sample]) -> Value {
    let Some(first) = samples.first() else { return json!([]) };
    let queue = |(at, (name, _)): (usize, &(String, Polls))| {
        let all = |of: fn(Polls) -> u64| -> Vec<u64> {
            samples.iter().map(|sample| of(sample.polls[at].1)).collect()
        };
        json!({
            "queue": name,
            "polls_made": all(|p| p.invoked),
            "polls_fruitful": all(|p| p.success),
            "polls_skipped": all(Polls::skipped),
        })
    };
    first.polls.iter().enumerate().map(queue).collect()
}

/// A line for each scene, with the mail's columns and ours.
pub(super) fn table(all: &[Measured]) -> Table {
    let iops =
        |variant: usize| move |it: &&Measured| it.iops(variant).map(|iops| THOUSANDS.text(iops));
    let gain =
        |variant: usize| move |it: &&Measured| it.gain(variant).map(|p| WHOLE_PERCENT.change(p));
    let cpu = |variant: usize| {
        let of = |sample: &Sample| sample.cpu_ns_per_io;
        move |it: &&Measured| Some(Unit::number(0).text(median(&it.samples[variant], of)?))
    };
    let wakes = |variant: usize| {
        let of = |sample: &Sample| sample.wakes_per_io;
        move |it: &&Measured| Some(Unit::number(3).text(median(&it.samples[variant], of)?))
    };
    Columns::of(all)
        .text("Volume", |it| volume(&it.scene))
        .figure("Latency", |it| it.scene.latency_us().map(|us| format!("{us} us")))
        .text("Depth", |it| it.scene.depth.to_string())
        .text("Threads", |it| it.scene.threads.to_string())
        .figure("IRQ IOPS", iops(0))
        .figure("poll IOPS", iops(1))
        .figure("diff", gain(1))
        .figure("mail", |it| it.scene.mail.map(|part| WHOLE_PERCENT.change(part)))
        .figure("adaptive IOPS", iops(2))
        .figure("diff", gain(2))
        .figure("CPU ns/IO: IRQ", cpu(0))
        .figure("poll", cpu(1))
        .figure("adaptive", cpu(2))
        .figure("wakes/IO: IRQ", wakes(0))
        .figure("poll", wakes(1))
        .figure("adaptive", wakes(2))
        .table()
}

fn volume(scene: &Scene) -> String {
    let waits = if scene.skip_busy() == Some(false) { ", busy queues waited for" } else { "" };
    format!("{}{waits}", scene.name)
}

/// Sentences below the table.
pub(super) fn remarks(all: &[Measured], cores: &Cores, wake: Cost) -> Vec<String> {
    let mut remarks = vec![
        "IRQ: before, threads sleep until the device's thread wakes them. poll: as mailed, by \
         the cookies' ways, all the while. adaptive: ours. diff: IOPS more than IRQ's. CPU: of \
         the threads that submit. Medians of the runs, which took turns."
            .to_owned(),
        format!(
            "The device's interrupt is one wake-up of a thread that sleeps: {:.1} us until it \
             goes on, {:.1} us of its processor time with falling asleep, {:.1} us of the \
             device's. A thread that is awake is told by a message and no wake-up.",
            wake.latency_ns / 1e3,
            wake.sleeper_ns / 1e3,
            wake.waker_ns / 1e3
        ),
        format!(
            "Latency: half of the requests take that long, 1 % three times as long or more. \
             Targets are judged at {JUDGED_US} us. The mail's disks and processors were others: \
             its figures stand beside as context."
        ),
        format!(
            "The device's thread keeps time on core {}; threads that submit have core{} {:?}{}.",
            cores.device,
            if cores.submit.len() == 1 { "" } else { "s" },
            cores.submit,
            sharing(all, cores)
        ),
    ];
    remarks.extend(all.iter().filter_map(ways));
    remarks.extend(busy(all));
    remarks.extend(deep(all));
    remarks
}

fn sharing(all: &[Measured], cores: &Cores) -> String {
    let most = all.iter().map(|measured| measured.scene.threads).max().unwrap_or(1);
    if most as usize <= cores.submit.len() {
        return String::new();
    }
    format!(
        ", so up to {} share one: they take turns on it, never poll at the same moment, and \
         meet at a queue's lock only where one is pre-empted with it in hand",
        threads_text(most)
    )
}

/// The sentence on the poll queues of a judged table.
fn ways(measured: &Measured) -> Option<String> {
    let tables = [ONE, SEVERAL, PINNED, STRIPE];
    let skips = measured.scene.skip_busy()?;
    if !tables.iter().any(|name| measured.is_judged(name, skips, DEPTH)) {
        return None;
    }
    let samples = &measured.samples[1];
    let sum = |of: fn(Polls) -> u64| -> u64 {
        samples.iter().flat_map(|s| s.polls.iter().map(|(_, polls)| of(*polls))).sum()
    };
    let (made, fruitful, skipped) = (sum(|p| p.invoked), sum(|p| p.success), sum(Polls::skipped));
    let contentions = median(samples, |s| s.contentions_per_io)?;
    let waits = if skips { "" } else { " (waited for)" };
    Some(format!(
        "{}{waits}: most looks by cookies went to {}; {made} polls, {:.0} % fruitful, {skipped} \
         skipped, {contentions:.6} busy locks an I/O.",
        measured.scene.name,
        match path("mailed", samples) {
            "queue" => "the one queue of the submission",
            "context" => "the queues of the submitter",
            _ => "no queue in particular",
        },
        100.0 * fruitful as f64 / made.max(1) as f64
    ))
}

/// The sentence on the mail's depth, where no gain is possible.
fn deep(all: &[Measured]) -> Option<String> {
    let deep = all.iter().find(|measured| measured.is_judged(ONE, true, MAIL_DEPTH))?;
    let wakes = median(&deep.samples[0], |sample| sample.wakes_per_io)?;
    Some(format!(
        "Depth {MAIL_DEPTH}, the mail's: with interrupts a thread sleeps {wakes:.3} times an \
         I/O, because the next completion is there when it has submitted. A thread that sleeps \
         that seldom has no wake-ups to save: polled {:+.0} %, adaptive {:+.0} %. In the mail \
         each I/O's interrupt and system call took its processor some 4.7 us.",
        deep.gain(1)? * 100.0,
        deep.gain(2)? * 100.0
    ))
}

/// The sentence on skipping busy queues.
fn busy(all: &[Measured]) -> Option<String> {
    let judged =
        |skips: bool| all.iter().find(|measured| measured.is_judged(SEVERAL, skips, DEPTH));
    let (skipping, waiting) = (judged(true)?.gain(1)?, judged(false)?.gain(1)?);
    Some(format!(
        "Several pollers of one queue, polled to interrupts: {:+.0} % where a busy queue is \
         skipped, {:+.0} % where it is waited for (in the mail +13 % and -20 %).",
        skipping * 100.0,
        waiting * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::super::scene;
    use super::*;

    fn sample(iops: f64, considered: u64) -> Sample {
        Sample {
            iops,
            cpu_ns_per_io: 100.0,
            device_cpu_ns_per_io: 5.0,
            wakes_per_io: 0.5,
            locks_per_io: 1.0,
            contentions_per_io: 0.0,
            contention: 0.0,
            polls: vec![("d0/hctx0".to_owned(), Polls { considered, invoked: 8, success: 4 })],
            path: "queue",
        }
    }

    fn measured(skips: bool, polled: f64) -> Measured {
        let [_, skipping, ..] = scene::tables(JUDGED_US, 3, 2);
        let scene = if skips { skipping } else { scene::waiting(JUDGED_US, 3) };
        let samples = [sample(100.0, 8), sample(polled, 10), sample(150.0, 8)].map(|s| vec![s]);
        Measured { scene, samples }
    }

    #[test]
    fn gains_are_those_over_interrupts() {
        let all = [measured(true, 113.0), measured(false, 80.0)];
        assert_eq!(all[0].gain(1).map(|gain| (gain * 100.0).round()), Some(13.0));
        assert_eq!(table(&all).lines[0][6..10], ["+13%", "+16%", "0K", "+50%"]);
        assert!(busy(&all).unwrap().contains("+13 % where a busy queue is skipped, -20 %"));
    }

    #[test]
    fn rows_say_how_they_came_about() {
        let rows = rows(&measured(false, 80.0));
        let modes: Vec<_> = rows.iter().map(|row| row.labels[0].1.clone()).collect();
        assert_eq!(modes, ["interrupt", "poll", "adaptive"]);
        assert_eq!(rows[1].labels[1], ("skip_busy", json!(false)));
        assert_eq!(rows[1].labels[2], ("path", json!("queue")));
        assert_eq!(rows[1].values("polls_skipped"), Some(&[2.0][..]));
        assert_eq!(rows[1].labels[5].1[0]["polls_skipped"], json!([2]));
        assert_eq!(rows[0].note.as_deref(), Some("busy queues waited for"));
    }
}
