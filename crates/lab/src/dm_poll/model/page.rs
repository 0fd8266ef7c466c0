//! The findings of the model, as a page.

use serde_json::{Value, json};

use super::beyond::Beyond;
use super::inputs::Inputs;
use super::load::{Figures, Way};
use super::points::{IoCostsOf, Point, had};
use super::seeds::{SEED, SEEDS};
use super::verdict::{carried, lacks, way_text};
use crate::dm_poll::cores::Cores;
use crate::dm_poll::point::{BATCH, Polls, Sample};
use crate::dm_poll::scene::{DEPTH, MAIL_DEPTH, PINNED, SEVERAL, STRIPE};
use crate::dm_poll::variants::{JUDGED_US, POLLERS};
use crate::dm_poll::wake::Cost;
use crate::model::ModelOptions;
use crate::model::design::Costs;
use crate::model::outcome::{ModelOutcome, Part, modelled, ns, percent, table};
use crate::outcome::Machine;
use crate::table::THOUSANDS;

const SKIP: Way = Way::Poll { skips: true };
const WAIT: Way = Way::Poll { skips: false };

/// The mail's gains of a table's three pollers: with skipping, and waiting.
fn mailed(table: &str) -> &'static str {
    match table {
        SEVERAL => "+16% (+13%) / -20%",
        PINNED => "+32%",
        STRIPE => "+34%",
        _ => "-",
    }
}

/// Everything that was measured and modelled.
pub struct Page {
    pub date: String,
    pub machine: Machine,
    pub options: ModelOptions,
    pub(super) cores: Cores,
    pub costs: Costs,
    pub siblings: bool,
    pub inputs: Inputs,
    pub(super) wake: Cost,
    pub io: IoCostsOf,
    pub points: Vec<Point>,
    pub(super) beyond: Vec<Beyond>,
}

impl Page {
    /// The page as every model's.
    pub fn outcome(self, name: &'static str) -> ModelOutcome {
        ModelOutcome {
            name,
            parts: vec![
                self.machine_part(),
                self.io_part(),
                self.checks(),
                self.cores_part(),
                self.lacks(),
            ],
            parameters: self.parameters(),
            figures: self.figures(),
            date: self.date,
            machine: self.machine,
        }
    }

    fn machine_part(&self) -> Part {
        let line = |what: &str, value: String| vec![what.to_owned(), "measured".to_owned(), value];
        let of_ns = |value: f64| format!("{value:.1}");
        let Inputs { look_ns, hold_ns, found_ns, found_hold_ns, take_in_ns, tell_ns, send_ns } =
            self.inputs;
        let lines = vec![
            line("a cache line from the other core", ns(self.costs.line_ps)),
            line("a look at a poll queue that finds nothing", of_ns(look_ns)),
            line("of that, the queue's lock held", of_ns(hold_ns)),
            line("what each I/O that is found adds", of_ns(found_ns)),
            line("of that, with the lock", of_ns(found_hold_ns)),
            line("taking in a request, for the device's core", of_ns(take_in_ns)),
            line("telling a thread on another core that is awake", of_ns(tell_ns)),
            line("the same without any transfer", of_ns(send_ns)),
            line("from waking a context until it goes on", of_ns(self.wake.latency_ns)),
            line("falling asleep and waking, for the sleeper", of_ns(self.wake.sleeper_ns)),
            line("waking, for who wakes", of_ns(self.wake.waker_ns)),
            line("spinning before who waits for a lock sleeps", ns(self.costs.spin_ps)),
            line("offering the core when nobody wants it", ns(self.costs.yield_ps)),
            line("from one thread to the next on a core", ns(self.costs.switch_ps)),
            line("slice of a core while others want it", ns(self.costs.slice_ps)),
        ];
        let mut remarks = vec!["Medians of many short stretches.".to_owned()];
        if self.siblings {
            remarks.push(
                "The two cores are hardware threads of one: a line between them moves nowhere, \
                 and costs less than between cores."
                    .to_owned(),
            );
        }
        ("Inputs: the machine".to_owned(), table(&["Cost", "How", "ns"], lines), remarks)
    }

    fn io_part(&self) -> Part {
        let line = |name: &str, striped: bool| {
            let io = self.io.of_table(striped);
            vec![name.to_owned(), "from 1 poller".to_owned(), ns(io.interrupt_ps), ns(io.submit_ps)]
        };
        let lines = vec![line("linear, 4 KiB", false), line("stripe, 12 KiB", true)];
        let remarks = vec![
            "Processor time of an I/O with one thread, 128 in flight: by interrupt without \
             sleeps; polled without the looks, as often as it looked. So the checks of these \
             two say how the model waits, and not what an I/O costs."
                .to_owned(),
            "Not measured but read from the code: which lines move. Assumed: half of a \
             sleeper's processor time is falling asleep; the time of a submission strays evenly \
             by half."
                .to_owned(),
        ];
        let head = ["Volume", "How", "interrupt ns/IO", "polled ns/IO without looks"];
        ("Inputs: an I/O".to_owned(), table(&head, lines), remarks)
    }

    fn checks(&self) -> Part {
        let line = |(number, point): (usize, &Point)| {
            let found = point.modelled.unwrap_or_default();
            let per_io = |value: f64| format!("{value:.3}");
            vec![
                point.scene.name.to_owned(),
                way_text(point.way()).to_owned(),
                point.scene.depth.to_string(),
                point.scene.threads.to_string(),
                point.cores().to_string(),
                THOUSANDS.text(point.iops()),
                modelled(found.iops),
                format!("{:+.0}%", point.error() * 100.0),
                per_io(looks_per_io(point)),
                format!("~{:.3}", found.polls_per_io),
                format!("{:.4}", point.median(|sample| sample.contentions_per_io)),
                format!("~{:.4}", found.busy_per_io()),
                percent(had(&self.points, number)),
            ]
        };
        let head = [
            "Table",
            "Way",
            "depth",
            "threads",
            "cores",
            "IOPS measured",
            "IOPS modelled",
            "error",
            "looks/IO",
            "modelled",
            "busy/IO",
            "modelled",
            "cores had",
        ];
        let lines = self.points.iter().enumerate().map(line).collect();
        let mut remarks = vec![
            "cores had: what pollers, who never sleep, used of their cores; the model's cores \
             are away for the rest. busy/IO: looks at a queue that another held, skipped or \
             waited for. By interrupt one core is the device's."
                .to_owned(),
        ];
        if self.both().is_some() {
            remarks.push(format!(
                "Polled, two threads on two cores also have the device's core {}, which polled \
                 requests do not need: what pollers on cores of their own do to one another is \
                 checked there, and only there.",
                self.cores.device
            ));
        }
        ("Check: threads on the cores at hand".to_owned(), table(&head, lines), remarks)
    }

    fn both(&self) -> Option<&Point> {
        self.points.iter().find(|point| point.cores() > 1)
    }

    fn cores_part(&self) -> Part {
        let lines = self.beyond.iter().map(|beyond| self.line(beyond)).collect();
        let head = [
            "Table, modelled",
            "depth",
            "pollers",
            "interrupt IOPS",
            "poll, skipping",
            "diff",
            "even at",
            "poll, waiting",
            "diff",
            "even at",
            "mail",
            "skipped/IO",
            "waited/IO",
            "others'/IO",
        ];
        let mut remarks = vec![
            "Modelled, all of it but the mail's figures: a poller on each core, all cores had; \
             by interrupt each thread also has a device's core that tells it, and they share \
             nothing. diff: IOPS more than by interrupt. skipped/IO, waited/IO: looks at a \
             queue that another held. others'/IO: ends found by another poller than the I/O's \
             own, skipping."
                .to_owned(),
            "Each figure carries the worst error of what was checked of its table in the same \
             way; diffs carry both. More than two pollers on cores of their own were checked \
             nowhere."
                .to_owned(),
        ];
        remarks.push(
            "even at: what an interrupt would have to take of its submitter's core, for each \
             I/O, for polling to be as fast where it is slower. With 128 in flight it takes \
             nothing of it here but the message, which is in the cost of an I/O. In the mail's \
             first table an I/O took 1.2 us of its core less polled than by interrupt (1 s / \
             212K - 1 s / 284K)."
                .to_owned(),
        );
        remarks.extend([DEPTH, MAIL_DEPTH].into_iter().filter_map(|depth| self.mails(depth)));
        ("IOPS modelled".to_owned(), table(&head, lines), remarks)
    }

    fn line(&self, beyond: &Beyond) -> Vec<String> {
        let none = || "-".to_owned();
        let iops = |way: Way| {
            let doubt = carried(&self.points, beyond.table, beyond.depth, way) * 100.0;
            let shown = |found: &Figures| format!("{} ±{doubt:.0}%", modelled(found.iops));
            beyond.of(way).map_or_else(none, shown)
        };
        let diff = |way: Way| {
            let gain = beyond.gain(way);
            gain.map_or_else(none, |gain| format!("~{:+.0}%", gain * 100.0))
        };
        let break_even = |way: Way| {
            let found = beyond.break_even_ns(way).filter(|found| *found > 0.0);
            found.map_or_else(none, |found| format!("~{found:.0} ns"))
        };
        let count = |way: Way, of: fn(&Figures) -> f64| {
            beyond.of(way).map_or_else(none, |found| format!("~{:.3}", of(found)))
        };
        vec![
            beyond.table.to_owned(),
            beyond.depth.to_string(),
            beyond.cores.to_string(),
            iops(Way::Interrupt),
            iops(SKIP),
            diff(SKIP),
            break_even(SKIP),
            iops(WAIT),
            diff(WAIT),
            break_even(WAIT),
            if beyond.cores == POLLERS { mailed(beyond.table).to_owned() } else { none() },
            count(SKIP, |found| found.skipped_per_io),
            count(WAIT, |found| found.waits_per_io),
            count(SKIP, |found| found.foreign_per_io),
        ]
    }

    /// The sentence on three pollers of a queue, as the mail has them.
    fn mails(&self, depth: usize) -> Option<String> {
        let mails = (SEVERAL, depth, POLLERS);
        let is_mails = |beyond: &&Beyond| (beyond.table, beyond.depth, beyond.cores) == mails;
        let beyond = self.beyond.iter().find(is_mails)?;
        let (skips, waits) = (beyond.of(SKIP)?, beyond.of(WAIT)?);
        Some(format!(
            "Three pollers of one queue a device, depth {depth}: ~{:+.0}% against interrupts \
             where a busy queue is skipped, ~{:+.0}% where it is waited for, so skipping gives \
             ~{:+.0}% over waiting (in the mail +38%: +13% and -20%). Skipping skips ~{:.3} \
             looks an I/O; waiting waits ~{:.3} times an I/O, ~{} of all time.",
            beyond.gain(SKIP)? * 100.0,
            beyond.gain(WAIT)? * 100.0,
            (skips.iops / waits.iops - 1.0) * 100.0,
            skips.skipped_per_io,
            waits.waits_per_io,
            percent(waits.contention),
        ))
    }

    fn lacks(&self) -> Part {
        let worst = |way: fn(Way) -> bool| {
            let all = self.points.iter().filter(|point| way(point.way()));
            all.map(|point| point.error().abs()).fold(0.0, f64::max)
        };
        let lines = vec![
            vec![
                "by interrupt".to_owned(),
                "worst error".to_owned(),
                percent(worst(|way| way == Way::Interrupt)),
            ],
            vec![
                "polled".to_owned(),
                "worst error".to_owned(),
                percent(worst(|way| way != Way::Interrupt)),
            ],
        ];
        (
            "What it lacks".to_owned(),
            table(&["Points", "What", "of measured"], lines),
            lacks(&self.points),
        )
    }

    fn parameters(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("rw", json!("randread")),
            ("depths", json!([DEPTH, MAIL_DEPTH])),
            ("batch", json!(BATCH)),
            ("latency_us", json!(JUDGED_US)),
            ("submit_cores", json!(self.cores.submit)),
            ("device_core", json!(self.cores.device)),
            ("threads", json!(self.options.threads)),
            ("runs", json!(self.options.runs)),
            ("runtime_ns", json!(self.options.runtime_ns)),
            ("cores", json!(self.options.cores)),
            ("seed", json!(SEED)),
            ("seeds", json!(SEEDS)),
            ("debug", json!(cfg!(debug_assertions))),
        ]
    }

    fn figures(&self) -> Vec<(&'static str, Value)> {
        let points = (0..self.points.len()).flat_map(|number| self.point_rows(number));
        let beyond = self.beyond.iter().flat_map(|beyond| self.beyond_rows(beyond));
        vec![
            ("inputs", self.inputs_json()),
            ("rows", points.chain(beyond).collect()),
            ("lacks", json!(lacks(&self.points))),
        ]
    }

    fn inputs_json(&self) -> Value {
        let ns = |ps: u64| ps as f64 / 1000.0;
        let (linear, striped) = (self.io.of_table(false), self.io.of_table(true));
        let Inputs { look_ns, hold_ns, found_ns, found_hold_ns, take_in_ns, tell_ns, send_ns } =
            self.inputs;
        json!({
            "modelled": false, "line_ns": ns(self.costs.line_ps), "look_ns": look_ns,
            "hold_ns": hold_ns, "found_ns": found_ns, "found_hold_ns": found_hold_ns,
            "take_in_ns": take_in_ns, "tell_ns": tell_ns, "send_ns": send_ns,
            "wake_latency_ns": self.wake.latency_ns, "wake_sleeper_cpu_ns": self.wake.sleeper_ns,
            "wake_waker_ns": self.wake.waker_ns, "spin_ns": ns(self.costs.spin_ps),
            "yield_ns": ns(self.costs.yield_ps), "switch_ns": ns(self.costs.switch_ps),
            "slice_ns": ns(self.costs.slice_ps), "cores_are_siblings": self.siblings,
            "linear_interrupt_ns": ns(linear.interrupt_ps),
            "linear_submit_ns": ns(linear.submit_ps),
            "stripe_interrupt_ns": ns(striped.interrupt_ps),
            "stripe_submit_ns": ns(striped.submit_ps),
        })
    }

    /// A point as it was measured, and as it was modelled.
    fn point_rows(&self, number: usize) -> [Value; 2] {
        let point = &self.points[number];
        let on = (point.scene.threads, u64::from(point.cores()));
        let (name, depth) = (point.scene.name, point.scene.depth);
        let all = |of: fn(&Sample) -> f64| point.samples.iter().map(of).collect::<Vec<f64>>();
        let mut measured = row(name, depth, point.way(), on, false);
        measured["iops"] = json!(all(|s| s.iops));
        measured["cpu_ns_per_io"] = json!(all(|s| s.cpu_ns_per_io));
        measured["device_cpu_ns_per_io"] = json!(all(|s| s.device_cpu_ns_per_io));
        measured["wakes_per_io"] = json!(all(|s| s.wakes_per_io));
        measured["lock_acquisitions_per_io"] = json!(all(|s| s.locks_per_io));
        measured["lock_contentions_per_io"] = json!(all(|s| s.contentions_per_io));
        measured["contention"] = json!(all(|s| s.contention));
        measured["fruitful"] = json!(point.samples.iter().map(fruitful).collect::<Vec<f64>>());
        let mut model = row(name, depth, point.way(), on, true);
        add(&mut model, &point.modelled.unwrap_or_default());
        model["error"] = json!(point.error());
        model["cores_had"] = json!(had(&self.points, number));
        [measured, model]
    }

    fn beyond_rows(&self, beyond: &Beyond) -> Vec<Value> {
        let one = |(way, found): &(Way, Figures)| {
            let on = (beyond.cores, u64::from(beyond.cores));
            let mut row = row(beyond.table, beyond.depth, *way, on, true);
            add(&mut row, found);
            row["error_carried"] = json!(carried(&self.points, beyond.table, beyond.depth, *way));
            if *way != Way::Interrupt {
                row["gain"] = json!(beyond.gain(*way));
                row["break_even_ns"] = json!(beyond.break_even_ns(*way));
            }
            row
        };
        beyond.ways.iter().map(one).collect()
    }
}

impl Figures {
    fn busy_per_io(&self) -> f64 {
        self.skipped_per_io + self.waits_per_io
    }
}

fn looks_per_io(point: &Point) -> f64 {
    point.median(|sample| sample.locks_per_io)
}

/// The share of successful polls.
fn fruitful(sample: &Sample) -> f64 {
    let sum = |of: fn(&Polls) -> u64| sample.polls.iter().map(|(_, polls)| of(polls)).sum::<u64>();
    sum(|polls| polls.success) as f64 / sum(|polls| polls.invoked).max(1) as f64
}

fn row(table: &str, depth: usize, way: Way, on: (u32, u64), modelled: bool) -> Value {
    let (threads, cores) = on;
    let mut row = json!({
        "device": table, "variant": if way == Way::Interrupt { "before" } else { "mailed" },
        "mode": if way == Way::Interrupt { "interrupt" } else { "poll" },
        "depth": depth, "threads": threads, "cores": cores, "modelled": modelled,
    });
    if let Way::Poll { skips } = way {
        row["skip_busy"] = json!(skips);
    }
    if way == WAIT {
        row["note"] = json!("busy queues waited for");
    }
    row
}

fn add(row: &mut Value, found: &Figures) {
    row["iops"] = json!([found.iops]);
    row["contention"] = json!([found.contention]);
    row["looks_per_io"] = json!([found.polls_per_io]);
    row["fruitful"] = json!([found.fruitful_per_io / found.polls_per_io.max(f64::MIN_POSITIVE)]);
    row["skipped_per_io"] = json!([found.skipped_per_io]);
    row["waited_per_io"] = json!([found.waits_per_io]);
    row["others_per_io"] = json!([found.foreign_per_io]);
    row["wakes_per_io"] = json!([found.sleeps_per_io]);
    row["device_busy"] = json!([found.device_busy]);
}
