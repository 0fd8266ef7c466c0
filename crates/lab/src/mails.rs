//! All five tables on one page: for each mail that Drystone began with, the mail's own figures, and
//! our measurements of the design before it, the mailed one and Drystone's.

use crate::html;
use crate::outcome::Outcome;
use crate::table::Table;
use crate::{EXPERIMENTS, Experiment, Options, Progress};

/// A mail, and the experiment that repeats it.
struct Mail {
    experiment: &'static str,
    /// Subject, author, list and date.
    source: &'static str,
    /// Head and lines of its table.
    figures: &'static [&'static [&'static str]],
    /// The setting of its figures, as far as the mail gives it.
    context: &'static str,
    /// Effects that a machine like this one cannot show, and why.
    lacks: &'static str,
}

const MAILS: [Mail; 5] = [
    Mail {
        experiment: "mq-deadline",
        source: "\"block/mq-deadline: use separate insertion lists\", Bart Van Assche and Jens \
            Axboe, linux-block, January 2024",
        figures: &[
            &["Device", "Kernel", "IOPS", "sys", "contention", "diff"],
            &["null_blk", "before", "879K", "89%", "93.6%", ""],
            &["null_blk", "after", "2867K", "11.1%", "~6.0%", "+226%"],
            &["nvme0n1", "before", "901K", "86%", "94.5%", ""],
            &["nvme0n1", "after", "3162K", "9.9%", "~5.0%", "+250%"],
        ],
        context: "32 threads of fio, 512 B random reads of depth 4, in fours.",
        lacks: "The mail's threads spin at once on many cores; here they share few, and those that \
            wait give theirs away. So `before` loses less than in the mail. `drystone lab model \
            mq-deadline` models more cores.",
    },
    Mail {
        experiment: "dm-poll",
        source: "\"dm: support IO polling\", version 4, Jeffle Xu, dm-devel, February 2021",
        figures: &[
            &["Volume over 3 NVMe disks", "Processes", "IRQ", "polled", "diff"],
            &["linear, a queue a disk, 4k", "1", "212k", "284k", "~32%"],
            &["linear, a queue a disk, 4k", "3", "615k", "735k", "~16%"],
            &["linear, three queues a disk, 4k", "3", "631k", "833k", "~32%"],
            &["stripe, three queues a disk, 12k", "3", "307k", "412k", "~34%"],
            &["linear, a queue a disk, waiting for busy queues", "3", "318k", "256k", "~-20%"],
            &["linear, a queue a disk, skipping busy queues", "3", "314k", "354k", "~13%"],
        ],
        context: "io_uring, 128 random reads in flight for each process.",
        lacks: "No NVMe disk interrupts anybody here: the disks are null devices with a latency, \
            and one core is theirs. Pollers never meet on cores of their own: `drystone lab model \
            dm-poll` models that.",
    },
    Mail {
        experiment: "raid5-wait",
        source: "\"[PATCH 3/3] md/raid5: per hash value and exclusive wait_for_stripe\", Yuanhan \
            Liu, linux-raid, 2015",
        figures: &[
            &["Case", "", "before", "after", "change"],
            &[
                "64t-4BRD_12G-RAID5-btrfs-4M-30G-fsyncBeforeClose",
                "files a second",
                "25.600 ±0.0",
                "92.700 ±2.5",
                "262.1%",
            ],
            &[
                "64t-9BRD_6G-RAID5-btrfs-4M-30G-fsyncBeforeClose",
                "files a second",
                "25.600 ±0.0",
                "77.800 ±0.6",
                "203.9%",
            ],
            &[
                "64t-4BRD_12G-RAID5-ext4-4M-30G-fsyncBeforeClose",
                "files a second",
                "32.000 ±0.0",
                "93.800 ±1.7",
                "193.1%",
            ],
            &[
                "64t-9BRD_6G-RAID5-ext4-4M-30G-fsyncBeforeClose",
                "files a second",
                "32.000 ±0.0",
                "81.233 ±1.7",
                "153.9%",
            ],
            &[
                "64t-4BRD_12G-RAID5-xfs-4M-30G-fsyncBeforeClose",
                "files a second",
                "48.800 ±14.5",
                "99.667 ±2.0",
                "104.2%",
            ],
            &[
                "64t-3HDD-RAID5-btrfs-4M-40G-fsyncBeforeClose",
                "files a second",
                "6.400 ±0.0",
                "12.800 ±0.0",
                "100.0%",
            ],
            &[
                "64t-9BRD_6G-RAID5-xfs-4M-30G-fsyncBeforeClose",
                "files a second",
                "63.133 ±8.2",
                "82.800 ±0.7",
                "31.2%",
            ],
            &[
                "64t-4BRD_12G-RAID5-f2fs-4M-30G-fsyncBeforeClose",
                "files a second",
                "245.067 ±0.7",
                "306.567 ±7.9",
                "25.1%",
            ],
            &[
                "1t-3HDD-RAID5-xfs-4M-40G-fsyncBeforeClose",
                "files a second",
                "17.533 ±0.3",
                "21.000 ±0.8",
                "19.8%",
            ],
            &[
                "1t-4BRD_12G-RAID5-btrfs-4M-30G-NoSync",
                "files a second",
                "188.167 ±1.9",
                "215.033 ±3.1",
                "14.3%",
            ],
            &[
                "1t-9BRD_6G-RAID5-btrfs-4M-30G-NoSync",
                "files a second",
                "254.500 ±1.8",
                "290.733 ±2.4",
                "14.2%",
            ],
            &[
                "64t-4BRD_12G-RAID5-btrfs-4M-30G-fsyncBeforeClose",
                "system time, s",
                "7235.603 ±1.2",
                "185.163 ±1.9",
                "-97.4%",
            ],
            &[
                "64t-9BRD_6G-RAID5-btrfs-4M-30G-fsyncBeforeClose",
                "system time, s",
                "7666.883 ±2.9",
                "202.750 ±1.0",
                "-97.4%",
            ],
            &[
                "64t-3HDD-RAID5-btrfs-4M-40G-fsyncBeforeClose",
                "system time, s",
                "14567.893 ±0.7",
                "421.230 ±0.4",
                "-97.1%",
            ],
            &[
                "64t-4BRD_12G-RAID5-xfs-4M-30G-fsyncBeforeClose",
                "system time, s",
                "3697.667 ±14.0",
                "148.190 ±1.7",
                "-96.0%",
            ],
            &[
                "64t-9BRD_6G-RAID5-ext4-4M-30G-fsyncBeforeClose",
                "system time, s",
                "5572.867 ±3.8",
                "310.717 ±1.4",
                "-94.4%",
            ],
            &[
                "64t-4BRD_12G-RAID5-ext4-4M-30G-fsyncBeforeClose",
                "system time, s",
                "5565.050 ±0.5",
                "313.277 ±1.5",
                "-94.4%",
            ],
            &[
                "64t-9BRD_6G-RAID5-xfs-4M-30G-fsyncBeforeClose",
                "system time, s",
                "2420.707 ±17.1",
                "171.043 ±2.7",
                "-92.9%",
            ],
            &[
                "64t-3HDD-RAID5-ext4-4M-40G-fsyncBeforeClose",
                "system time, s",
                "3743.300 ±4.6",
                "379.827 ±3.5",
                "-89.9%",
            ],
            &[
                "64t-3HDD-RAID5-xfs-4M-40G-fsyncBeforeClose",
                "system time, s",
                "3308.687 ±6.3",
                "363.050 ±2.0",
                "-89.0%",
            ],
        ],
        context: "fs_mark on btrfs, ext4, xfs and f2fs over ram disks (BRD) and hard disks, files \
            of 4 MiB, each run three times (±: standard deviation).",
        lacks: "The threads that wait share few cores and sleep instead of spinning. The mail has \
            file systems above: `drystone lab run raid5-fsmark` repeats that. Linux took the \
            change back in 2016, because it could get stuck.",
    },
    Mail {
        experiment: "blk-throttle",
        source: "\"blk-throttle: lockless bio processing for no throttle rule group\", Vivek \
            Goyal, linux-kernel, May 2011",
        figures: &[
            &["Kernel", "", "acquisitions", "holdtime-total, us"],
            &["vanilla", "", "2360944", "1850183.07"],
            &["patched", "", "2098599", "1430478.79"],
        ],
        context: "dd of 1 GiB in 4 KiB reads, the request queue's lock, 4 processors and an SSD.",
        lacks: "The lock was the whole request layer's in the mail, and is the throttle's alone \
            here: more than 11 % of it goes away, all of it.",
    },
    Mail {
        experiment: "plug-time",
        source: "\"block: cache current nsec time in struct blk_plug\", Jens Axboe, linux-block, \
            January 2024",
        figures: &[
            &["Kernel", "", "IOPS", "read_tsc and ktime_get"],
            &["before", "", "108.3M to 108.4M", "11.86%"],
            &["after", "", "118.6M to 118.8M", "0.76%"],
        ],
        context: "t/io_uring, polled reads in batches of 32 of many fast disks, with statistics.",
        lacks: "A hundred million I/Os a second take tens of cores. A core that takes tens of \
            nanoseconds an I/O feels the clock all the same.",
    },
];

/// The measured tables of all mails, one after the other.
pub struct Pages {
    outcomes: Vec<(&'static Mail, Outcome)>,
}

/// True if [`run_all`] runs it.
pub fn is_of_a_mail(experiment: &Experiment) -> bool {
    MAILS.iter().any(|mail| mail.experiment == experiment.name)
}

fn experiment(mail: &Mail) -> &'static Experiment {
    let found = EXPERIMENTS.iter().find(|found| found.name == mail.experiment);
    found.expect("a test sees to it that there is one")
}

/// Runs the experiments of all mails, each with its `options`. Calls `keep` with each outcome as
/// soon as it exists.
///
/// # Errors
/// As of [`crate::run`].
pub fn run_all(
    options: &dyn Fn(&Experiment) -> Options,
    keep: &mut dyn FnMut(&Outcome) -> anyhow::Result<()>,
    say: Progress<'_>,
) -> anyhow::Result<Pages> {
    let mut outcomes = Vec::new();
    for mail in &MAILS {
        let options = options(experiment(mail));
        if options.stop.is_asked() && !outcomes.is_empty() {
            break;
        }
        say(mail.experiment);
        let outcome = (experiment(mail).run)(&options, say)?.ended_early(&options);
        keep(&outcome)?;
        outcomes.push((mail, outcome));
    }
    Ok(Pages { outcomes })
}

impl Mail {
    fn table(&self) -> Table {
        let line = |cells: &&[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let width = self.figures[0].len();
        let lines = self.figures.iter().map(line).map(|mut cells: Vec<String>| {
            cells.resize(width, String::new());
            cells
        });
        let mut lines = lines.collect::<Vec<_>>().into_iter();
        Table { head: lines.next().unwrap_or_default(), lines: lines.collect() }
    }

    /// Sentences below the mail's table.
    fn remarks(&self) -> Vec<String> {
        vec![format!("{}: {}", self.source, self.context)]
    }
}

impl Pages {
    /// The outcomes, in the order of the page.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().map(|(_, outcome)| outcome)
    }

    /// Titles, tables and sentences, in the order of the page.
    fn parts(&self) -> Vec<(String, Table, Vec<String>)> {
        let mut parts = Vec::new();
        for (mail, outcome) in &self.outcomes {
            let name = mail.experiment;
            parts.push((format!("{name}: the mail"), mail.table(), mail.remarks()));
            let mut remarks = vec![outcome.setting()];
            remarks.extend(outcome.remarks.iter().cloned());
            remarks.push(format!("What this machine cannot show: {}", mail.lacks));
            parts.push((format!("{name}: here"), outcome.table.clone(), remarks));
            let more = outcome.more.iter();
            parts.extend(
                more.map(|(title, table)| (format!("{name}: {title}"), table.clone(), Vec::new())),
            );
        }
        parts
    }

    /// Machine and date of the first, since all ran one after the other.
    fn facts(&self) -> String {
        self.outcomes().next().map(Outcome::facts).unwrap_or_default()
    }

    /// One page without external files.
    pub fn html(&self) -> String {
        let heads = [TITLE.to_owned(), ABOUT.to_owned(), self.facts(), SETTING.to_owned()];
        html::parts(&heads, &self.parts())
    }

    /// The same in Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {TITLE}\n\n{ABOUT}\n\n{}. {SETTING}\n", self.facts());
        for (title, table, remarks) in self.parts() {
            text.push_str(&format!("\n## {title}\n\n{}\n", table.markdown()));
            remarks.iter().for_each(|remark| text.push_str(&format!("* {remark}\n")));
        }
        text
    }
}

const TITLE: &str = "Five mails, repeated";
const ABOUT: &str = "Each mail's own figures first, as context: another machine, another year. \
    Then what was measured here: `before`, as `mailed`, and `ours`; `none` is without what the \
    mail is about.";
const SETTING: &str =
    "Written by `drystone lab run all`; every figure below \"here\" was measured in that run.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mail_has_an_experiment_and_an_even_table() {
        for mail in &MAILS {
            assert!(EXPERIMENTS.iter().any(|found| found.name == mail.experiment));
            let table = mail.table();
            assert!(table.lines.iter().all(|line| line.len() == table.head.len()));
        }
    }
}
