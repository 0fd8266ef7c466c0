//! The findings of the model of `mq-deadline`, as a page.

use serde_json::{Value, json};

use super::design::{Costs, Figures, Loser};
use super::figures::SEED;
use super::mail::{self, Fit};
use super::options::ModelOptions;
use super::outcome::{ModelOutcome, Part, modelled, ns, percent, table};
use super::studied::Studied;
use super::verdict::{LIMIT, lacks, mail_lacks, worst};
use crate::kernel::LOAD;
use crate::mq_deadline::NULL;
use crate::outcome::Machine;
use crate::table::{THOUSANDS, Table};

/// See the module's text.
pub struct Page {
    pub(super) name: &'static str,
    pub(super) date: String,
    pub(super) machine: Machine,
    pub(super) options: ModelOptions,
    pub(super) costs: Costs,
    pub(super) siblings: bool,
    pub(super) studied: Vec<Studied>,
    pub(super) mail: Fit,
}

impl Page {
    /// The page as every model's.
    pub fn outcome(&self) -> ModelOutcome {
        ModelOutcome {
            name: self.name,
            date: self.date.clone(),
            machine: self.machine.clone(),
            parameters: self.parameters(),
            parts: self.parts(),
            figures: self.figures(),
        }
    }

    fn parts(&self) -> Vec<Part> {
        vec![self.inputs(), self.variants(), self.checks(), self.mail(), self.cores()]
    }

    fn inputs(&self) -> Part {
        let Costs { line_ps, rest_ps, spin_ps, yield_ps, .. } = self.costs;
        let Costs { switch_ps, wake_ps, latency_ps, slice_ps, .. } = self.costs;
        let line = |what: &str, ps: u64| vec![what.to_owned(), "measured".to_owned(), ns(ps)];
        let lines = vec![
            line("a cache line from the other core", line_ps),
            line("rest between two tries of a spin lock", rest_ps),
            line("moment of spinning before a sleep", spin_ps),
            line("offering the core when nobody wants it", yield_ps),
            line("from one thread to the next on a core", switch_ps),
            line("waking a sleeper, for who wakes", wake_ps),
            line("from then until the sleeper runs", latency_ps),
            line("slice of a core while others want it", slice_ps),
        ];
        let mut remarks = vec!["Medians of many short stretches, on two cores.".to_owned()];
        if self.siblings {
            remarks.push(
                "These two cores are hardware threads of one: a line between them moves \
                 nowhere, and costs less than between cores."
                    .to_owned(),
            );
        }
        ("Inputs: the machine".to_owned(), table(&["Cost", "How", "ns"], lines), remarks)
    }

    fn variants(&self) -> Part {
        let line = |one: &Studied| {
            let measured = &one.measured;
            let hold = |held: &super::variants::Held| {
                if held.per_io > 0.0 { format!("{:.1}", held.mean_ns) } else { "-".to_owned() }
            };
            vec![
                measured.title(),
                loser_text(one.loser()).to_owned(),
                format!("{:.1}", measured.cpu_ns),
                format!("{:.2}", measured.main.per_io),
                hold(&measured.main),
                format!("{:.2}", measured.staging.per_io),
                hold(&measured.staging),
            ]
        };
        let head = [
            "Variant",
            "Who finds the lock taken",
            "CPU ns/IO",
            "taken/IO",
            "hold ns",
            "2nd lock taken/IO",
            "hold ns",
        ];
        let remarks = vec![
            "Measured with 1 thread on null; holds in runs of their own, less what measuring an \
             empty hold takes."
                .to_owned(),
            "Not measured but read from the code: lines that move with a lock (2 besides its \
             own in before and mailed, 1 in ours) and with an I/O that another core runs (2); \
             assumed: half of an I/O's time without a scheduler goes into running it."
                .to_owned(),
        ];
        ("Inputs: the variants".to_owned(), table(&head, self.lines(line)), remarks)
    }

    fn lines(&self, line: impl Fn(&Studied) -> Vec<String>) -> Vec<Vec<String>> {
        self.studied.iter().map(line).collect()
    }

    fn checks(&self) -> Part {
        let mut lines = Vec::new();
        for one in &self.studied {
            for (check, samples, found) in &one.points {
                let waited = samples.iter().map(|sample| sample.contention).sum::<f64>();
                lines.push(vec![
                    one.measured.title(),
                    check.threads.to_string(),
                    THOUSANDS.text(check.measured),
                    modelled(check.modelled),
                    format!("{:+.0}%", check.error() * 100.0),
                    percent(waited / samples.len() as f64),
                    format!("~{}", percent(found.contention)),
                    percent(check.had),
                ]);
            }
        }
        let head = [
            "Variant",
            "Threads",
            "IOPS measured",
            "IOPS modelled",
            "error",
            "contention measured",
            "modelled",
            "cores had",
        ];
        let mut remarks = vec![
            "cores had: what none, which never waits, got of the cores that it could use in the \
             same turn of measurements; the model's cores are away for the rest of the time, a \
             slice had and then so much not."
                .to_owned(),
        ];
        remarks.extend(self.lacking());
        let title = format!("Check: threads on the {} cores at hand", self.machine.cores);
        (title, table(&head, lines), remarks)
    }

    fn lacking(&self) -> Vec<String> {
        let none = self.studied.iter().find(|one| one.measured.name == "none");
        let none = none.map(Studied::checks).unwrap_or_default();
        let cores = self.machine.cores as u32;
        let found = self
            .studied
            .iter()
            .flat_map(|one| lacks(&one.measured.title(), one.loser(), &one.checks(), &none, cores));
        let mut found: Vec<String> = found.collect();
        match found.is_empty() {
            true => found.push(format!("No point is missed by more than {:.0}%.", LIMIT * 100.0)),
            false => found.push(
                "Which effect is lacking is concluded from where and in which direction the \
                 model misses; it was not measured."
                    .to_owned(),
            ),
        }
        found
    }

    fn mail(&self) -> Part {
        let Fit { own_lines, hold_ns, outside_ns, before, after } = self.mail;
        let line = |name: &str, role: &str, row: &mail::MailRow, found: &Figures| {
            vec![
                name.to_owned(),
                role.to_owned(),
                THOUSANDS.text(row.iops),
                modelled(found.iops),
                format!("{:+.0}%", (found.iops / row.iops - 1.0) * 100.0),
                percent(row.contention),
                format!("~{}", percent(found.contention)),
            ]
        };
        let lines = vec![
            line("before", "fitted", &mail::BEFORE, &before),
            line("after", "not used", &mail::AFTER, &after),
        ];
        let head =
            ["Row", "Role", "IOPS, mail", "IOPS modelled", "error", "contention, mail", "modelled"];
        let mut remarks = vec![format!(
            "Fitted to the row before alone, from its IOPS and contention: a section holds the \
             lock for ~{hold_ns:.0} ns, and an I/O takes ~{outside_ns:.0} ns outside. The row \
             after was not used: it follows from these two and from costs measured here. Taken \
             as given: 32 hardware threads are {} cores, 9 sections a batch, waits for I/Os as \
             ours wait.",
            mail::THREADS
        )];
        if !own_lines {
            remarks.push(
                "Lines as dear as measured here would leave these holds no time, so their \
                 transfers are part of the hold."
                    .to_owned(),
            );
        }
        remarks.extend(mail_lacks(self.mail.error()));
        ("The mail's pair, null_blk, 32 threads".to_owned(), table(&head, lines), remarks)
    }

    /// The error bound of a variant's figure for so many cores. It is the error of the variant's
    /// worst check. For more cores than the machine has, the mail's row after counts too, because
    /// it is the only check on many cores.
    fn doubt(&self, one: &Studied, cores: u32) -> f64 {
        let own = worst(&one.checks()).map_or(0.0, |check| check.error().abs());
        if u64::from(cores) > self.machine.cores { own.max(self.mail.error().abs()) } else { own }
    }

    fn cores(&self) -> Part {
        let line = |one: &Studied| {
            let cell = |(cores, found): &(u32, Figures)| {
                let doubt = self.doubt(one, *cores) * 100.0;
                format!("{} ±{doubt:.0}%", modelled(found.iops))
            };
            [one.measured.title()].into_iter().chain(one.beyond.iter().map(cell)).collect()
        };
        let remarks = vec![format!(
            "Modelled, all of it: a thread on each core, all cores had. Each figure carries the \
             variant's worst error of the check; beyond the {} cores at hand that of the mail's \
             row after, if that is worse. An error is a share of what was measured: a figure \
             modelled too low by 50% stands for twice as much.",
            self.machine.cores,
        )];
        (
            "IOPS modelled".to_owned(),
            Table { head: self.cores_head(), lines: self.lines(line) },
            remarks,
        )
    }

    fn cores_head(&self) -> Vec<String> {
        let word = |cores: &u32| match cores {
            1 => "1 core".to_owned(),
            more => format!("{more} cores"),
        };
        ["Variant, modelled".to_owned()]
            .into_iter()
            .chain(self.options.cores.iter().map(word))
            .collect()
    }

    fn parameters(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("rw", json!("randread")),
            ("bs", json!(LOAD.bytes)),
            ("depth", json!(LOAD.depth)),
            ("batch", json!(LOAD.batch)),
            ("threads", json!(self.options.threads)),
            ("runs", json!(self.options.runs)),
            ("runtime_ns", json!(self.options.runtime_ns)),
            ("cores", json!(self.options.cores)),
            ("seed", json!(SEED)),
            ("debug", json!(cfg!(debug_assertions))),
        ]
    }

    fn figures(&self) -> Vec<(&'static str, Value)> {
        let lacks = self.lacking().into_iter().chain(mail_lacks(self.mail.error()));
        vec![
            ("inputs", self.costs_json()),
            ("rows", self.studied.iter().flat_map(|one| self.rows(one)).collect()),
            ("mail", self.mail_json()),
            ("lacks", json!(lacks.collect::<Vec<String>>())),
        ]
    }

    fn costs_json(&self) -> Value {
        let ns = |ps: u64| ps as f64 / 1000.0;
        let costs = &self.costs;
        json!({
            "modelled": false, "line_ns": ns(costs.line_ps), "spin_rest_ns": ns(costs.rest_ps),
            "spin_ns": ns(costs.spin_ps), "yield_ns": ns(costs.yield_ps),
            "switch_ns": ns(costs.switch_ps), "wake_ns": ns(costs.wake_ps),
            "wake_latency_ns": ns(costs.latency_ps), "slice_ns": ns(costs.slice_ps),
            "cores_are_siblings": self.siblings,
        })
    }

    fn mail_json(&self) -> Value {
        let Fit { own_lines, hold_ns, outside_ns, before, after } = &self.mail;
        let row = |name: &str, fitted: bool, found: &Figures| {
            json!({ "variant": name, "modelled": true, "fitted": fitted, "threads": mail::THREADS,
                "cores": mail::THREADS, "iops": [found.iops], "contention": [found.contention] })
        };
        json!({
            "fitted_to": "before", "lines_as_measured": own_lines, "hold_ns": hold_ns,
            "outside_ns_per_io": outside_ns,
            "rows": [row("before", true, before), row("after", false, after)],
            "mailed": [
                { "variant": "before", "iops": mail::BEFORE.iops,
                    "contention": mail::BEFORE.contention },
                { "variant": "after", "iops": mail::AFTER.iops,
                    "contention": mail::AFTER.contention },
            ],
            "error": self.mail.error(),
        })
    }

    fn rows(&self, one: &Studied) -> Vec<Value> {
        let row = |modelled: bool, threads: u32, cores: u64, more: Value| {
            let mut row = json!({ "device": NULL, "variant": one.measured.name, "threads": threads,
                "cores": cores, "modelled": modelled });
            if let Some(note) = one.measured.note {
                row["note"] = json!(note);
            }
            for (key, value) in more.as_object().into_iter().flatten() {
                row[key] = value.clone();
            }
            row
        };
        let mut rows = Vec::new();
        for (check, samples, found) in &one.points {
            let all = |of: fn(&crate::measure::Sample) -> f64| {
                samples.iter().map(of).collect::<Vec<f64>>()
            };
            let (threads, cores) = (check.threads, self.machine.cores);
            let measured = json!({ "iops": all(|s| s.iops), "contention": all(|s| s.contention),
                "cpu_ns_per_io": all(|s| s.cpu_ns_per_io), "cores_used": all(|s| s.cores_used) });
            rows.push(row(false, threads, cores, measured));
            let model = json!({ "iops": [check.modelled], "contention": [found.contention],
                "error": check.error(), "cores_had": check.had });
            rows.push(row(true, threads, cores, model));
        }
        for (cores, found) in &one.beyond {
            let doubt = self.doubt(one, *cores);
            let model = json!({ "iops": [found.iops], "contention": [found.contention],
                "error_carried": doubt });
            rows.push(row(true, *cores, u64::from(*cores), model));
        }
        rows
    }
}

fn loser_text(loser: Option<Loser>) -> &'static str {
    match loser {
        None => "(no lock)",
        Some(Loser::Spin) => "spins",
        Some(Loser::Queue) => "spins in a queue",
        Some(Loser::Sleep) => "spins a moment, sleeps",
        Some(Loser::GoOn) => "goes on",
        Some(Loser::HandOver) => "hands over",
    }
}
