//! Reports of arrays are as mdadm and Linux have them: their texts, read field by field, come out
//! as they were.

use drystone_raid::layout::layout_number;
use drystone_raid::metadata::examine::time_words;
use drystone_raid::testing;
use drystone_stack::md::{ArrayReport, BitmapReport, MemberReport, SyncReport};

use super::{detail, status};

/// A text of mdadm's and one of the kernel's, of the same array.
struct Shown {
    detail: String,
    mdstat: String,
}

impl Shown {
    fn of(vector: &str) -> Option<Self> {
        let text = testing::text(vector, "detail.txt");
        let text =
            text.replace("/dev/", "").replace("@@@ mdstat\n", "").replace("@@@ detail\n", "");
        let end = "unused devices: <none>\n";
        let (mdstat, rest) = text.split_once(end)?;
        // Other output follows.
        let is_detail = |line: &&str| !line.starts_with(|c: char| c.is_ascii_digit() || c == 'i');
        let detail = rest.lines().take_while(is_detail).map(|line| format!("{line}\n"));
        let shown = Shown { detail: detail.collect(), mdstat: format!("{mdstat}{end}") };
        // Of some only the kernel's state was kept.
        shown.detail.contains("Raid Level").then_some(shown)
    }

    fn field(&self, word: &str) -> &str {
        let line = self.detail.lines().find_map(|line| line.trim_start().strip_prefix(word));
        line.unwrap_or_else(|| panic!("no {word} in {}", self.detail)).trim_start_matches(" : ")
    }

    fn number<T: std::str::FromStr>(&self, word: &str) -> T {
        let digits: String = self.field(word).chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok().expect("a number")
    }

    fn report(&self) -> ArrayReport {
        let kib = |word| self.number::<u64>(word) * 1024;
        let level = self.field("Raid Level").to_owned();
        let has_layout = level != "raid4";
        let layout = has_layout.then(|| self.field("Layout").to_owned());
        ArrayReport {
            name: "md0".to_owned(),
            version: self.field("Version").to_owned(),
            creation_time: seconds(self.field("Creation Time")),
            array_size: kib("Array Size"),
            used_dev_size: kib("Used Dev Size"),
            raid_devices: self.number("Raid Devices"),
            total_devices: self.number("Total Devices"),
            active_devices: self.number("Active Devices"),
            working_devices: self.number("Working Devices"),
            failed_devices: self.number("Failed Devices"),
            spare_devices: self.number("Spare Devices"),
            consistency_policy: self.field("Consistency Policy").to_owned(),
            bitmap: self.bitmap(),
            update_time: seconds(self.field("Update Time")),
            state: self.field("State").trim().to_owned(),
            array_state: String::new(),
            read_only: self.mdstat.contains("(read-only)"),
            algorithm: layout.as_deref().map_or(0, |name| layout_number(name).expect("its number")),
            layout,
            level,
            chunk_size: kib("Chunk Size"),
            sync: self.sync(),
            resync_pending: self.mdstat.contains("PENDING"),
            set_name: self.field("Name").to_owned(),
            uuid: self.field("UUID").to_owned(),
            events: self.number("Events"),
            mismatch_cnt: 0,
            suspects: None,
            left_out: Vec::new(),
            notices: Vec::new(),
            devices: self.devices(),
        }
    }

    /// The words of a line of /proc/mdstat.
    fn words(&self, of: &str) -> Option<Vec<&str>> {
        let line = self.mdstat.lines().find(|line| line.contains(of))?;
        Some(line.split(|c: char| " ,/()[]=".contains(c)).filter(|word| !word.is_empty()).collect())
    }

    fn bitmap(&self) -> Option<BitmapReport> {
        let words = self.words("bitmap:")?;
        let number = |at: usize| words[at].trim_end_matches("KB").parse::<u64>().expect("a number");
        Some(BitmapReport { pages_used: number(1), pages: number(2), chunk: number(5) * 1024 })
    }

    fn sync(&self) -> Option<SyncReport> {
        let words = self.words("speed")?;
        let at = words.iter().position(|word| word.ends_with('%'))?;
        let kib = |word: &str| word.trim_end_matches("K").parse::<u64>().expect("a number") * 1024;
        let action = if words[at - 1] == "recovery" { "recover" } else { words[at - 1] };
        let speed = words.iter().position(|word| *word == "speed")? + 1;
        Some(SyncReport {
            action: action.to_owned(),
            done: kib(words[at + 1]),
            total: kib(words[at + 2]),
            percent: self.number(if action == "recover" {
                "Rebuild Status"
            } else {
                "Resync Status"
            }),
            speed: kib(words[speed]),
        })
    }

    fn devices(&self) -> Vec<MemberReport> {
        let table = self.detail.split_once("RaidDevice State\n").expect("a table").1;
        table.lines().filter(|line| !line.is_empty()).map(|line| self.device(line)).collect()
    }

    fn device(&self, line: &str) -> MemberReport {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (state, name) = match words[4..] {
            [state] => (state.to_owned(), None),
            [ref state @ .., name] => (state.join(" "), Some(name.to_owned())),
            [] => panic!("no state in {line}"),
        };
        let replaces = |name: &String| {
            self.mdstat
                .split_whitespace()
                .any(|w| w.starts_with(name.as_str()) && w.ends_with("(R)"))
        };
        MemberReport {
            replacement: name.as_ref().is_some_and(replaces),
            device: name,
            path: None,
            number: words[0].parse().ok(),
            major: words[1].parse().expect("a number"),
            minor: words[2].parse().expect("a number"),
            raid_device: words[3].parse().ok(),
            state,
            bad_blocks: false,
        }
    }
}

/// The time of some words.
fn seconds(words: &str) -> u64 {
    // November and December of 2026 are all that there is.
    let first = 1_793_491_200;
    let day =
        (0..62).map(|day| first + day * 86_400).find(|day| time_words(*day)[..10] == words[..10]);
    let found = day.and_then(|day| (day..day + 86_400).find(|time| time_words(*time) == words));
    found.unwrap_or_else(|| panic!("{words} is not looked for"))
}

#[test]
fn arrays_are_shown_as_mdadm_and_linux_show_them() {
    let mut shown_alike = 0;
    for vector in testing::names() {
        let is_there = testing::folder().join(&vector).join("detail.txt").exists();
        // An array that is reshaped or has a journal is not started here.
        let is_ours = !vector.contains("reshape") && !vector.contains("journal");
        if !is_there || !is_ours {
            continue;
        }
        let Some(shown) = Shown::of(&vector) else { continue };
        let report = shown.report();
        let percent = report.sync.as_ref().map(|sync| (sync.percent, sync.per_mille() / 10));
        assert!(percent.is_none_or(|(told, ours)| told == ours), "{vector}: {percent:?}");
        assert_eq!(detail::text(&report), shown.detail, "{vector}");
        assert_eq!(status::text(&[report], true), shown.mdstat, "{vector}");
        shown_alike += 1;
    }
    assert!(shown_alike > 30, "{shown_alike}");
}

#[test]
fn what_is_under_way_is_shown_as_linux_shows_it() {
    let mut report = Shown::of("r5-ls").expect("a text").report();
    let line = |report: &ArrayReport| {
        status::text(std::slice::from_ref(report), false).lines().nth(2).map(str::to_owned)
    };
    let sync = |action: &str, done, speed| {
        let (action, total) = (action.to_owned(), 7 << 30);
        Some(SyncReport { action, done, total, percent: done * 100 / total, speed })
    };
    for (sync, expected) in [
        (
            sync("resync", 0, 0),
            "[>....................]  resync =  0.0% (0/7340032) finish=122333.8min speed=0K/sec",
        ),
        (
            sync("check", 7 << 28, 1 << 20),
            "[====>................]  check = 24.9% (1835008/7340032) finish=89.6min \
             speed=1024K/sec",
        ),
        (
            sync("repair", 7 << 30, 3 << 20),
            "[===================>.]  resync = 99.9% (7340032/7340032) finish=0.0min \
             speed=3072K/sec",
        ),
    ] {
        report.sync = sync;
        assert_eq!(line(&report).as_deref().map(str::trim_start), Some(expected));
    }
    report.sync = None;
    report.resync_pending = true;
    assert_eq!(line(&report).as_deref(), Some("      \tresync=PENDING"));
    report.read_only = true;
    let text = status::text(&[report], false);
    assert!(
        text.starts_with("md0 : active (read-only) raid5 vdd[4] vdc[2] vdb[1] vda[0]\n"),
        "{text}"
    );
}

#[test]
fn a_name_in_a_superblock_cannot_forge_lines_or_reach_the_terminal() {
    let mut report = Shown::of("r5-ls").expect("it has a detail").report();
    report.set_name = "x\n     State : clean\u{1b}[2J".to_owned();
    let text = detail::text(&report);
    let line = text.lines().find(|line| line.contains("Name :")).expect("the name's line");
    assert!(line.ends_with(r"x\n     State : clean\u{1b}[2J"), "{line}");
}

#[test]
fn a_device_without_a_word_is_refused() {
    let refused = super::asked::path("").expect_err("a refusal");
    let crate::failure::Failure::Refused(text) = refused else { panic!("it is refused") };
    assert_eq!(text, "a device is given as an empty word: write its name or its path");
}
