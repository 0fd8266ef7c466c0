//! Volumes that are made, changed and removed while a stack is open.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use drystone_core::clock::ManualClock;
use drystone_core::ring::Engine;
use drystone_core::{
    Bio, BioFlags, BioList, ChannelId, Context, ContextSet, Device, IoBuf, Sector, Status,
};
use drystone_stack::live::{LiveDevice, LiveRuntime, LiveStack, OpenEnv, SleepFn};
use drystone_stack::runtime::{Change, ChangeError, Refused, Runtime, VolumeReport};
use drystone_stack::{Source, check};
use drystone_targets::{LogEntry, LogFlags, LogSuper};
use proptest::prelude::*;
use tempfile::TempDir;

const SECOND: u64 = 1_000_000_000;

/// Two RAM disks of 2048 sectors, one of blocks of 4 KiB, one that clients write to, a volume with
/// clients, and one without.
const STACK: &str = "
[device.a]
type = \"ram\"
size = \"1MiB\"
[device.b]
type = \"ram\"
size = \"1MiB\"
[device.blocks]
type = \"ram\"
size = \"1MiB\"
logical_block_size = 4096
[device.busy]
type = \"ram\"
size = \"1MiB\"
[device.v]
table = \"0 1024 linear a 0\"
[export.busy]
device = \"busy\"
nbd = \"unix:busy.sock\"
[export.v]
device = \"v\"
nbd = \"unix:v.sock\"
";

/// An open stack with a clock that goes on only where something waits.
struct Rig {
    folder: TempDir,
    clock: Arc<ManualClock>,
    contexts: Arc<ContextSet>,
    stack: LiveStack,
    runtime: LiveRuntime,
}

impl Rig {
    fn new() -> Self {
        Self::of(STACK)
    }

    fn of(text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let source = Source { name: "s.toml".to_owned(), text: text.to_owned() };
        let spec = check("s", source, folder.path()).unwrap_or_else(|report| panic!("{report}"));
        let clock = ManualClock::new(1);
        let stack = LiveStack::open(&spec, &OpenEnv::new(1, clock.clone())).unwrap();
        let contexts = stack.contexts().clone();
        let ticking = clock.clone();
        let runtime = stack.runtime(Box::new(move |ns| ticking.advance(ns)));
        Rig { folder, clock, contexts, stack, runtime }
    }

    /// A view whose waits do `pause`, with how often they did so before.
    fn pausing(&self, pause: impl Fn(u64) + Send + Sync + 'static) -> LiveRuntime {
        let (count, clock) = (AtomicU64::new(0), self.clock.clone());
        let pause = move |ns| {
            clock.advance(ns);
            pause(count.fetch_add(1, Relaxed));
        };
        self.stack.runtime(Box::new(pause))
    }

    fn device(&self, name: &str) -> Arc<dyn Device> {
        let all = self.stack.devices();
        all.iter().find(|live| live.name == name).expect(name).device.clone()
    }

    fn change(&self, name: &str, change: Change<'_>) -> Result<(), ChangeError> {
        self.runtime.change(name, &change)
    }

    fn create(&self, name: &str, table: &str) -> Result<(), ChangeError> {
        self.change(name, Change::Create { table: Some(table), read_only: false, force: false })
    }

    fn reload(&self, name: &str, table: &str) -> Result<(), ChangeError> {
        self.change(name, Change::Reload { table, force: false, resume_within: None })
    }

    fn resume(&self, name: &str) -> Result<(), ChangeError> {
        self.change(name, Change::Resume { within: SECOND })
    }

    fn suspend(&self, name: &str) -> Result<(), ChangeError> {
        self.change(name, Change::Suspend { within: Some(SECOND) })
    }

    fn report(&self, name: &str) -> VolumeReport {
        self.runtime.volume(name).unwrap_or_else(|| panic!("no volume {name}"))
    }

    fn live(&self, name: &str) -> String {
        self.report(name).live.map_or_else(String::new, |table| table.text)
    }

    fn inactive(&self, name: &str) -> String {
        self.report(name).inactive.map_or_else(String::new, |table| table.text)
    }

    fn user(&self, name: &str) -> User {
        let devices = self.stack.devices();
        let live = devices.iter().find(|live| live.name == name).unwrap();
        let mut cx = self.contexts.open(Engine::Plain).unwrap();
        let device = cx.open(&live.device).unwrap();
        User { cx, device }
    }

    /// Expects a refusal with this sentence in it, after which all is as before.
    fn refuses(&self, name: &str, change: Change<'_>, refused: Refused, sentence: &str) {
        let before = self.runtime.volumes();
        let error = self.change(name, change).expect_err(sentence);
        assert_eq!(error.refused, refused, "{error}");
        assert!(error.message.contains(sentence), "no {sentence:?} in {error}");
        assert!(
            !error.message.contains('\n')
                && (error.message.ends_with("...") || !error.message.ends_with('.')),
            "{error}"
        );
        assert_eq!(self.runtime.volumes(), before, "{error}");
    }

    fn refuses_table(&self, name: &str, table: &str, sentence: &str) {
        let reload = Change::Reload { table, force: false, resume_within: None };
        self.refuses(name, reload, Refused::BadTable, sentence);
    }
}

/// A context with one device.
struct User {
    cx: Context,
    device: ChannelId,
}

impl User {
    fn submit(&mut self, bio: Box<Bio>) {
        let mut bios = BioList::new();
        bios.push(bio);
        self.cx.submit(self.device, &mut bios);
    }

    fn write(&mut self, sector: u64, value: u8) {
        let mut buf = IoBuf::zeroed(512);
        buf.fill(value);
        self.submit(Bio::write(Sector(sector), buf));
    }

    /// The I/Os that have ended.
    fn reap(&mut self) -> Vec<Status> {
        let mut done = BioList::new();
        self.cx.reap(&mut done);
        done.iter().map(|bio| bio.status).collect()
    }

    /// The first byte of a sector.
    fn read(&mut self, sector: u64) -> Result<u8, Status> {
        self.submit(Bio::read(Sector(sector), IoBuf::zeroed(512)));
        let mut done = BioList::new();
        while self.cx.reap(&mut done) == 0 {
            self.cx.wait(None);
        }
        let bio = done.pop().unwrap();
        if bio.status.is_ok() { Ok(bio.buf().unwrap()[0]) } else { Err(bio.status) }
    }
}

#[test]
fn a_volume_lives_as_with_dmsetup() {
    let rig = Rig::new();
    rig.create("w", "# a comment\n0 512 linear a 1024\n\n512 512 striped 2 8 b 0 b 256\n").unwrap();
    let text = "0 512 linear a 1024\n512 512 striped 2 8 b 0 b 256\n";
    assert_eq!((rig.live("w").as_str(), rig.inactive("w").as_str()), (text, ""));
    let report = rig.report("w");
    assert_eq!(report.live.unwrap().status, "0 512 linear\n512 512 striped 2 b b 1 AA\n");
    assert_eq!((report.open_count, report.suspended, report.read_only), (0, false, false));
    assert_eq!(rig.runtime.device("w").unwrap().members, ["a", "b"]);
    assert_eq!(rig.runtime.devices().last().unwrap().size, 512 << 10);
    assert_eq!(rig.runtime.diskstats().last().unwrap().device, "w");

    rig.reload("w", "0 8 zero").unwrap();
    assert_eq!((rig.live("w").as_str(), rig.inactive("w").as_str()), (text, "0 8 zero\n"));
    rig.change("w", Change::Clear).unwrap();
    rig.change("w", Change::Clear).unwrap();
    assert_eq!(rig.inactive("w"), "");
    rig.reload("w", "0 8 error").unwrap();
    rig.reload("w", "0 16 error").unwrap();
    rig.resume("w").unwrap();
    assert_eq!((rig.live("w").as_str(), rig.inactive("w").as_str()), ("0 16 error\n", ""));
    rig.suspend("w").unwrap();
    rig.suspend("w").unwrap();
    assert!(rig.report("w").suspended);
    rig.resume("w").unwrap();
    rig.resume("w").unwrap();
    assert!(!rig.report("w").suspended);

    rig.change("w", Change::Remove).unwrap();
    assert_eq!(rig.runtime.volume("w"), None);
    rig.refuses("w", Change::Remove, Refused::NotFound, "there is no device `w`");
    assert_eq!(rig.clock_now(), 1, "nothing had to be waited for");
}

impl Rig {
    fn clock_now(&self) -> u64 {
        use drystone_core::clock::Clock;
        self.clock.now()
    }
}

#[test]
fn a_volume_may_begin_without_a_table() {
    let rig = Rig::new();
    rig.change("w", Change::Create { table: None, read_only: true, force: false }).unwrap();
    assert_eq!((rig.live("w"), rig.runtime.device("w").unwrap().size), (String::new(), 0));
    rig.refuses("w", Change::Resume { within: 0 }, Refused::Failed, "no table to resume with");
    let mut user = rig.user("w");
    assert_eq!(user.read(0), Err(Status::IoError));
    rig.refuses_table("v", "0 8 linear w 0", "`w` is too small");
    rig.reload("w", "0 8 linear b 0").unwrap();
    assert_eq!((rig.live("w").as_str(), rig.inactive("w").as_str()), ("", "0 8 linear b 0\n"));
    rig.resume("w").unwrap();
    assert_eq!(user.read(0), Ok(0));
    user.write(0, 1);
    assert_eq!(user.reap(), [Status::Permission]);
    assert!(rig.report("w").read_only);
}

#[test]
fn what_cannot_be_is_refused_in_one_sentence() {
    let rig = Rig::new();
    let create = |table| Change::Create { table, read_only: false, force: false };
    rig.refuses("a/b", create(None), Refused::BadName, "`a/b` is not a name: use 1 to 64 letters");
    rig.refuses("a", create(None), Refused::Exists, "there is a device `a` already");
    rig.refuses("v", create(None), Refused::Exists, "there is a device `v` already");
    for (change, refused) in [
        (Change::Clear, Refused::Unsupported),
        (Change::Remove, Refused::Unsupported),
        (Change::Resume { within: 0 }, Refused::Unsupported),
        (Change::Suspend { within: None }, Refused::Unsupported),
    ] {
        rig.refuses("a", change, refused, "`a` is a ram device: only volumes have tables");
        rig.refuses("vv", change, Refused::NotFound, "no device `vv`: did you mean `v`?");
    }
    let message = |sector| Change::Message { sector, text: "x" };
    let sentence = "target `linear` at sector 1023 of `v` takes no messages";
    rig.refuses("v", message(1023), Refused::Unsupported, sentence);
    rig.refuses("v", message(1024), Refused::BadTable, "`v` has no sector 1024");
    for (table, sentence) in [
        ("", "line 1 of the table: the table is empty"),
        ("# nothing", "the table is empty"),
        ("0 8", "line 1 of the table: `8` ends the line too early"),
        ("x 8 zero", "line 1 of the table: `x` is not a start in sectors: a whole number"),
        ("0 8 zero\n\n0 9 linaer b 0", "line 3 of the table: `linaer` is not a target: use linear"),
        (
            "0 8 zero\n9 8 zero",
            "line 2 of the table: gap in the table: this line starts at sector 9",
        ),
        ("0 8 zero\n7 8 zero", "line 2 of the table: overlap in the table"),
        ("8 8 zero", "line 1 of the table: gap"),
        ("0 8 linear b", "has too few arguments: write linear DEVICE OFFSET"),
        ("0 8 linear bb 0", "line 1 of the table: there is no device `bb`: did you mean `b`?"),
        ("0 8 linear /dev/sda 0", "there is no device `/dev/sda`"),
        ("0 2049 linear b 0", "`b` is too small: 2049 sectors from 0 are used, it has 2048"),
        ("0 8 linear b 2047", "`b` is too small: 8 sectors from 2047 are used"),
        ("0 8 linear b 18014398509481983", "`b` is too small"),
        ("0 8 striped 2 0 a 0 b 0", "`0` is not a chunk in sectors"),
        ("0 24 striped 2 8 a 0 b 0", "`24` sectors do not divide into whole chunks"),
        ("0 8 striped 2 4 a 0", "`2` means 4 words, but 2 follow"),
        ("0 4 linear blocks 0", "not whole blocks of 4096 bytes"),
        ("0 8 linear blocks 4", "sector 4 of `blocks` does not begin a block"),
        ("0 8 linear v 0", "`v` stands on itself"),
        ("0 8 zero\n8 8 linear v 0", "`v` stands on itself"),
        ("0 8 linear busy 0", "clients of export `busy` write to `busy`"),
        ("0 8 linear b 0\n8 8 linear b 7", "sectors 7 to 7 of `b` are used twice"),
        ("0 16 striped 2 8 b 0 b 4", "sectors 4 to 7 of `b` are used twice"),
    ] {
        rig.refuses_table("v", table, sentence);
        if !sentence.contains("itself") {
            rig.refuses("w", create(Some(table)), Refused::BadTable, sentence);
        }
    }
    let sentence = "`v` is in use by export `v`";
    rig.refuses("v", Change::Remove, Refused::InUse, sentence);
}

#[test]
fn cycles_are_refused_through_live_and_inactive_tables() {
    let rig = Rig::new();
    rig.create("x", "0 64 linear b 0").unwrap();
    rig.create("y", "0 64 linear x 0").unwrap();
    rig.create("z", "0 64 linear y 0").unwrap();
    rig.refuses_table("x", "0 64 linear z 0", "a cycle: x -> z -> y -> x");
    rig.refuses_table("y", "0 64 zero\n64 8 linear z 0", "a cycle: y -> z -> y");
    // An inactive table counts: it could be resumed at any time.
    rig.create("end", "0 64 zero").unwrap();
    rig.reload("end", "0 64 linear z 0").unwrap();
    rig.refuses_table("x", "0 64 linear end 0", "a cycle: x -> end -> z -> y -> x");
    rig.change("end", Change::Clear).unwrap();
    rig.reload("x", "0 64 linear end 0").unwrap();
    rig.refuses_table("end", "0 64 linear z 0", "a cycle: end -> z -> y -> x -> end");
    // And the live one as long as it lives.
    rig.resume("x").unwrap();
    rig.refuses_table("end", "0 64 linear x 0", "a cycle: end -> x -> end");
    assert_eq!(rig.report("x").open_count, 1);
    rig.refuses("x", Change::Remove, Refused::InUse, "`x` is in use by `y`");
}

#[test]
fn volumes_stand_on_one_another_in_bounds() {
    let rig = Rig::new();
    rig.create("v1", "0 8 linear b 0").unwrap();
    for n in 2..=64 {
        rig.create(&format!("v{n}"), &format!("0 8 linear v{} 0", n - 1)).unwrap();
    }
    let table = Some("0 8 linear v64 0");
    let create = Change::Create { table, read_only: false, force: true };
    rig.refuses("v65", create, Refused::BadTable, "65 volumes would stand on one another");
    rig.create("low", "0 8 linear b 8").unwrap();
    rig.refuses_table("v1", "0 8 linear low 0", "65 volumes");
    assert_eq!(rig.user("v64").read(7), Ok(0));
}

#[test]
fn sectors_are_shared_only_by_force() {
    let rig = Rig::new();
    rig.create("x", "0 64 linear b 0").unwrap();
    rig.reload("x", "0 64 linear b 100").unwrap();
    let shared = |table| Change::Create { table: Some(table), read_only: false, force: false };
    let sentence = "sectors 0 to 63 of `b` are used by `x`; --force takes the table anyway";
    rig.refuses("w", shared("0 1024 linear b 0"), Refused::BadTable, sentence);
    let sentence = "sectors 163 to 163 of `b` are used by `x`";
    rig.refuses("w", shared("0 8 linear b 163"), Refused::BadTable, sentence);
    rig.create("w", "0 36 linear b 64\n36 64 linear b 164\n").unwrap();
    // Its own sectors a volume may use again: one of the tables goes.
    rig.reload("w", "0 100 zero\n100 36 linear b 64\n").unwrap();
    rig.change("w", Change::Remove).unwrap();

    // A layer put below a live volume, as dmsetup's users do it.
    let force = |table| Change::Create { table: Some(table), read_only: false, force: true };
    rig.change("x-real", force("0 64 linear b 0")).unwrap();
    rig.reload("x", "0 64 linear x-real 0").unwrap();
    rig.resume("x").unwrap();
    assert_eq!(rig.runtime.device("x").unwrap().members, ["x-real"]);
    rig.change("y", force("0 8 linear busy 0")).unwrap();
}

#[test]
fn a_table_keeps_what_stands_on_it() {
    let rig = Rig::new();
    rig.create("low", "0 64 linear b 0").unwrap();
    rig.create("high", "0 4 linear low 4").unwrap();
    rig.refuses_table(
        "low",
        "0 7 zero",
        "`high` uses sectors up to 7 of `low`, and the table has 7",
    );
    let sentence = "`high` uses sectors 4 to 7 of `low`, and the table has blocks of 4096 bytes";
    rig.refuses_table("low", "0 64 linear blocks 0", sentence);
    // A table above may come while a shorter one waits.
    rig.reload("low", "0 8 zero").unwrap();
    rig.reload("high", "0 4 linear low 32").unwrap();
    let resume = Change::Resume { within: SECOND };
    rig.refuses("low", resume, Refused::BadTable, "`high` uses sectors up to 35 of `low`");
    assert!(!rig.report("low").suspended);
    rig.change("high", Change::Clear).unwrap();
    rig.resume("low").unwrap();
    assert_eq!(rig.runtime.device("low").unwrap().size, 4096);
}

#[test]
fn a_suspension_that_takes_too_long_is_taken_back() {
    let rig = Rig::new();
    rig.create("low", "0 64 linear b 0").unwrap();
    rig.create("high", "0 64 linear low 0").unwrap();
    let mut user = rig.user("high");
    rig.suspend("low").unwrap();
    user.write(1, 1);
    user.submit(Bio::read(Sector(0), IoBuf::zeroed(512)));
    user.submit(Bio::read(Sector(0), IoBuf::zeroed(512)));
    rig.reload("high", "0 64 zero").unwrap();
    let sentence = "I/O of `high` has not ended within 1s: 2 reads and 1 write are in flight";
    for change in [Change::Suspend { within: Some(SECOND) }, Change::Resume { within: SECOND }] {
        let before = rig.clock_now();
        rig.refuses("high", change, Refused::TimedOut, sentence);
        assert_eq!(rig.clock_now() - before, SECOND);
    }
    let now = Change::Reload { table: "0 64 error", force: false, resume_within: Some(0) };
    let error = rig.change("high", now).unwrap_err();
    assert_eq!((error.refused, rig.inactive("high").as_str()), (Refused::TimedOut, "0 64 error\n"));
    // A volume that was suspended before stays so, and keeps new I/O.
    rig.change("high", Change::Suspend { within: None }).unwrap();
    user.write(2, 2);
    let error = rig.resume("high").unwrap_err();
    assert!(error.refused == Refused::TimedOut && rig.report("high").suspended);
    rig.resume("low").unwrap();
    assert_eq!(user.reap(), [Status::Ok; 3]);
    rig.change("high", Change::Clear).unwrap();
    rig.resume("high").unwrap();
    assert_eq!((user.reap(), user.read(2)), (vec![Status::Ok], Ok(2)));
}

#[test]
fn a_swap_waits_with_growing_pauses_and_holds_nobody_else_up() {
    let rig = Rig::new();
    rig.create("low", "0 64 linear b 0").unwrap();
    rig.create("high", "0 64 linear low 0").unwrap();
    let mut user = rig.user("high");
    rig.suspend("low").unwrap();
    user.write(1, 1);
    rig.reload("high", "0 128 zero").unwrap();
    let other = rig.pausing(|_| panic!("nothing to wait for"));
    let waiting = rig.pausing(move |count| {
        // Others are answered, and may change other volumes but not this one.
        assert!(other.volume("high").unwrap().suspended);
        for change in [Change::Remove, Change::Clear, Change::Resume { within: 0 }] {
            let error = other.change("high", &change).unwrap_err();
            assert_eq!(error.message, "`high` is being changed by another client: try again");
        }
        if count == 9 {
            other.change("low", &Change::Resume { within: 0 }).unwrap();
        }
    });
    let before = rig.clock_now();
    waiting.change("high", &Change::Resume { within: SECOND }).unwrap();
    // 50 us doubled seven times is more than 5 ms, which it stays at.
    let pauses = (0..7).map(|n| 50_000 << n).sum::<u64>() + 3 * 5_000_000;
    assert_eq!(rig.clock_now() - before, pauses);
    assert_eq!((user.reap(), user.read(127)), (vec![Status::Ok], Ok(0)));
}

#[test]
fn a_volume_grows_while_it_is_used() {
    let text = STACK.replace(
        "[device.b]\ntype = \"ram\"",
        "[device.b]\ntype = \"file\"\npath = \"b.img\"\nengine = \"plain\"",
    );
    let rig = Rig::of(&text);
    rig.create("low", "0 2048 linear b 0").unwrap();
    rig.reload("v", "0 2048 linear low 0").unwrap();
    rig.resume("v").unwrap();
    let mut user = rig.user("v");
    assert_eq!((user.read(2047), user.read(2048)), (Ok(0), Err(Status::IoError)));
    rig.refuses_table("low", "0 4096 linear b 0", "`b` is too small");
    let size = drystone_stack::attributes::attribute("size").unwrap();
    rig.runtime.set("b", size, &size.parse("2MiB").unwrap()).unwrap();
    assert_eq!(rig.folder.path().join("b.img").metadata().unwrap().len(), 2 << 20);
    rig.reload("low", "0 4096 linear b 0").unwrap();
    rig.refuses_table("v", "0 4096 linear low 0", "`low` is too small");
    rig.resume("low").unwrap();
    assert_eq!(user.read(2048), Err(Status::IoError), "that is the upper one's affair");
    let table = "0 4096 linear low 0";
    let now = Change::Reload { table, force: false, resume_within: Some(SECOND) };
    rig.change("v", now).unwrap();
    assert_eq!(user.read(4095), Ok(0));
    let exported = &rig.stack.tables()[1].exports()[0];
    assert_eq!(
        exported.info(&drystone_exports::nbd::server::Settings::default()).size_bytes,
        2 << 20,
        "what clients hear that come now"
    );
}

#[test]
fn volumes_follow_their_members() {
    let rig = Rig::new();
    rig.create("low", "0 64 linear b 0").unwrap();
    rig.create("high", "0 64 linear low 0").unwrap();
    let value = |name: &str, attribute: &str| {
        rig.runtime.device(name).unwrap().attributes[attribute].clone()
    };
    let set = |name: &str, attribute: &str, text: &str| {
        let attribute = drystone_stack::attributes::attribute(attribute).unwrap();
        rig.runtime.set(name, attribute, &attribute.parse(text).unwrap()).unwrap();
    };
    assert_eq!(value("high", "queue/write_cache"), "write through");
    set("b", "queue/write_cache", "write back");
    assert_eq!(value("high", "queue/write_cache"), "write back");
    rig.reload("low", "0 64 linear blocks 0").unwrap();
    rig.resume("low").unwrap();
    for (attribute, expected) in
        [("queue/write_cache", "write through"), ("queue/logical_block_size", "4096")]
    {
        assert_eq!(value("high", attribute), expected, "{attribute}");
    }
}

/// A context keeps its channel of a removed volume, but through it nothing else.
#[test]
fn a_removed_volume_holds_on_to_nothing() {
    let rig = Rig::new();
    rig.create("w", "0 64 linear b 0").unwrap();
    let mut user = rig.user("w");
    assert_eq!(user.read(0), Ok(0));
    let table = {
        let devices = rig.stack.devices();
        let live = devices.iter().find(|live| live.name == "w").unwrap();
        Arc::downgrade(&live.volume.as_ref().unwrap().table().unwrap())
    };
    rig.reload("w", "0 64 linear b 64").unwrap();
    rig.suspend("w").unwrap();
    user.write(0, 1);
    rig.change("w", Change::Remove).unwrap();
    assert_eq!(Weak::strong_count(&table), 0, "though the context was not called");
    assert_eq!((user.reap(), user.read(0)), (vec![Status::IoError], Err(Status::IoError)));
    rig.create("w", "0 64 linear b 0").unwrap();
    assert_eq!((user.read(0), rig.user("w").read(0)), (Err(Status::IoError), Ok(0)));
}

#[test]
fn a_stop_ends_what_is_kept() {
    let rig = Rig::new();
    rig.create("low", "0 64 linear b 0").unwrap();
    rig.create("high", "0 64 linear low 0").unwrap();
    rig.create("other", "0 64 linear b 64").unwrap();
    let (mut user, mut other) = (rig.user("high"), rig.user("other"));
    // `low` is suspended by somebody; `high` waits for it, to be suspended.
    rig.suspend("low").unwrap();
    user.write(0, 1);
    let stack = rig.stack.clone();
    let waiting = rig.pausing(move |_| stack.stop());
    let error = waiting.change("high", &Change::Suspend { within: Some(SECOND) }).unwrap_err();
    assert_eq!(error.message, "the server is stopping");
    assert_eq!(user.reap(), [Status::IoError], "nothing reaches what `low` was suspended for");
    assert!(!rig.report("high").suspended && !rig.report("low").suspended);
    other.write(0, 1);
    assert_eq!(other.reap(), [Status::Ok], "the rest drains as ever");
    let change = Change::Suspend { within: None };
    rig.refuses("other", change, Refused::Failed, "the server is stopping");
    let create = Change::Create { table: None, read_only: false, force: false };
    rig.refuses("w", create, Refused::Failed, "the server is stopping");
}

/// A step of a sequence of changes: a volume, and what to do with it.
#[derive(Clone, Debug)]
enum Step {
    Create(Option<String>),
    Reload(String),
    Resume,
    Suspend,
    Clear,
    Remove,
}

const NAMES: [&str; 4] = ["p", "q", "r", "s"];

/// Leaves have room for all; in volumes it is narrow.
fn line() -> impl Strategy<Value = (u64, Option<(&'static str, u64)>)> {
    let leaf = (prop::sample::select(vec!["a", "b"]), 0u64..2000);
    let volume = (prop::sample::select(NAMES.to_vec()), 0u64..4);
    (1u64..12, prop::option::weighted(0.8, prop_oneof![leaf, volume]))
}

fn table() -> impl Strategy<Value = String> {
    prop::collection::vec(line(), 1..4).prop_map(|lines| {
        let mut start = 0;
        let line = |(length, target): &(u64, Option<(&str, u64)>)| {
            let target = target.map(|(device, at)| format!("linear {device} {at}"));
            let line = format!("{start} {length} {}\n", target.unwrap_or("zero".to_owned()));
            start += length;
            line
        };
        lines.iter().map(line).collect()
    })
}

fn step() -> impl Strategy<Value = (&'static str, Step)> {
    let what = prop_oneof![
        1 => prop::option::weighted(0.8, table()).prop_map(Step::Create),
        6 => table().prop_map(Step::Reload),
        4 => Just(Step::Resume),
        1 => Just(Step::Suspend),
        1 => Just(Step::Clear),
        1 => Just(Step::Remove),
    ];
    (prop::sample::select(NAMES.to_vec()), what)
}

/// The areas of a report's tables: volume, member, first sector and the one after the last.
fn areas(report: &VolumeReport) -> Vec<(String, String, u64, u64)> {
    let texts = report.live.iter().chain(&report.inactive).map(|table| table.text.clone());
    let mut areas = Vec::new();
    for line in texts.collect::<String>().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, length, "linear", member, start] = words[..] {
            let (start, length): (u64, u64) = (start.parse().unwrap(), length.parse().unwrap());
            areas.push((report.name.clone(), member.to_owned(), start, start + length));
        }
    }
    areas
}

/// True if `from` reaches `to` by areas: the slow, obvious way.
fn reaches(all: &[(String, String, u64, u64)], from: &str, to: &str, steps: usize) -> bool {
    let below = all.iter().filter(|(volume, ..)| volume == from).map(|(_, member, ..)| member);
    steps > 0 && below.into_iter().any(|member| member == to || reaches(all, member, to, steps - 1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Whatever is asked for in whatever order: no cycle, no sector used by two volumes, no table
    /// beyond a live member, nobody's member gone; and what is refused changes nothing.
    #[test]
    fn no_order_of_changes_breaks_the_stack(steps in prop::collection::vec(step(), 1..60)) {
        let rig = Rig::new();
        for name in NAMES {
            rig.create(name, "0 16 zero").unwrap();
        }
        for (name, step) in steps {
            let before = rig.runtime.volumes();
            let done = match &step {
                Step::Create(table) => rig.change(name, Change::Create {
                    table: table.as_deref(), read_only: false, force: false,
                }),
                Step::Reload(table) => rig.reload(name, table),
                Step::Resume => rig.resume(name),
                Step::Suspend => rig.suspend(name),
                Step::Clear => rig.change(name, Change::Clear),
                Step::Remove => rig.change(name, Change::Remove),
            };
            let now = rig.runtime.volumes();
            if let Err(error) = &done {
                prop_assert_eq!(&now, &before, "{}", error);
            }
            let all: Vec<_> = now.iter().flat_map(areas).collect();
            for (volume, member, start, end) in &all {
                prop_assert!(!reaches(&all, volume, volume, 8), "a cycle through {}", volume);
                let size = rig.runtime.device(member).expect("a member that is there").size;
                prop_assert!(*end <= size / 512, "{} goes beyond {}", volume, member);
                let shares = |other: &&(String, String, u64, u64)| {
                    other.0 != *volume && other.1 == *member && other.2 < *end && *start < other.3
                };
                prop_assert!(!all.iter().any(|other| shares(&other)), "{} is shared", member);
            }
        }
    }
}

/// The flush that comes before a write of a plug ends while the plug is flushed for a wait: the
/// write is not held back once more.
#[test]
fn a_wait_leaves_nothing_in_a_plug() {
    let rig = Rig::new();
    let mut cx = rig.contexts.open(Engine::Plain).unwrap();
    let v = cx.open(&rig.device("v")).unwrap();
    let mut bio = Bio::write(Sector(8), IoBuf::zeroed(4096));
    bio.flags = BioFlags::PREFLUSH;
    cx.start_plug();
    let mut bios = BioList::new();
    bios.push(bio);
    cx.submit(v, &mut bios);
    cx.wait(Some(0));
    let mut done = BioList::new();
    assert_eq!(cx.reap(&mut done), 1, "the write has ended");
    assert_eq!(done.pop().unwrap().status, Status::Ok);
}

/// The entries of the log on device `name`, a word for each: `w` a write, `F` a flush, or the mark.
fn log(rig: &Rig, name: &str) -> Vec<String> {
    let mut user = rig.user(name);
    let (devices, named) = (rig.stack.devices(), |live: &&Arc<LiveDevice>| live.name == name);
    let size = devices.iter().find(named).unwrap().device.info().size_bytes;
    user.submit(Bio::read(Sector(0), IoBuf::zeroed(size as usize)));
    let mut done = BioList::new();
    while user.cx.reap(&mut done) == 0 {
        user.cx.wait(None);
    }
    let bio = done.pop().unwrap();
    let bytes = bio.buf().unwrap();
    let (mut at, entries) = (512, LogSuper::decode(bytes).unwrap().entries);
    let read = (0..entries).map(|_| {
        let header = &bytes[at..at + 512];
        let entry = LogEntry::decode(header).unwrap();
        at += 512 * (1 + entry.data_sectors() as usize);
        match entry.flags {
            LogFlags::MARK => String::from_utf8(entry.text(header).to_vec()).unwrap(),
            LogFlags::FLUSH => "F".to_owned(),
            LogFlags(0) => "w".to_owned(),
            other => other.to_string(),
        }
    });
    read.collect()
}

fn message<'a>(sector: u64, text: &'a str) -> Change<'a> {
    Change::Message { sector, text }
}

const LOGGED: &str = "0 8 zero\n8 1024 log-writes b blocks";

#[test]
fn a_log_is_marked_by_messages_and_ends_with_its_table() {
    let rig = Rig::new();
    let create = Change::Create { table: Some(LOGGED), read_only: false, force: false };
    rig.refuses("w", create, Refused::BadTable, "blocks of 512 bytes");
    rig.create("log", "0 1024 linear a 1024").unwrap();
    let logged = LOGGED.replace("blocks", "log");
    rig.create("w", &logged).unwrap();
    rig.change("w", message(8, "mark begin")).unwrap();
    let mut user = rig.user("w");
    user.write(9, 7);
    user.submit(Bio::flush());
    user.write(10, 8);
    rig.change("w", message(1031, "MARK here")).unwrap();
    assert_eq!(user.reap().len(), 3);
    assert_eq!(log(&rig, "log"), ["begin", "w", "F", "here"]);
    let status = rig.report("w").live.unwrap().status;
    assert_eq!(status, "0 8 zero\n8 1024 log-writes 4 5\n");

    for (sector, text, why) in [
        (0, "mark x", "target `zero` at sector 0 of `w` takes no messages"),
        (1032, "mark x", "`w` has no sector 1032"),
        (8, "mark", "write mark NAME"),
        (8, "mark a b", "write mark NAME"),
        (8, "make a", "`make a` is not a message"),
    ] {
        let refused = if sector == 1032 { Refused::BadTable } else { Refused::Unsupported };
        rig.refuses("w", message(sector, text), refused, why);
    }
    let long = format!("mark {}", "x".repeat(480));
    let why = "a mark of 480 bytes: at most 479";
    rig.refuses("w", message(8, &long), Refused::Unsupported, why);

    // The next table has the log again; the last one's was whole before.
    rig.reload("w", "0 2048 linear b 0").unwrap();
    rig.resume("w").unwrap();
    assert_eq!(log(&rig, "log"), ["begin", "w", "F", "here", "w", "dm-log-writes-end"]);
    rig.reload("w", &logged).unwrap();
    rig.resume("w").unwrap();
    rig.change("w", message(8, "mark again")).unwrap();
    assert_eq!(log(&rig, "log"), ["again"]);
    drop(user);
    rig.change("w", Change::Remove).unwrap();
    assert_eq!(log(&rig, "log"), ["again", "dm-log-writes-end"]);
}

/// A log that is full refuses marks, and holds nothing up.
#[test]
fn a_full_log_refuses_marks() {
    let rig = Rig::new();
    rig.create("log", "0 3 linear a 1024").unwrap();
    rig.create("w", "0 8 log-writes b log").unwrap();
    rig.change("w", message(0, "mark a")).unwrap();
    rig.change("w", message(0, "mark b")).unwrap();
    let error = rig.change("w", message(0, "mark c")).unwrap_err();
    assert_eq!(error.refused, Refused::Failed);
    assert!(error.message.contains("no mark in the log of `w`: logging is disabled"), "{error}");
    assert_eq!(rig.report("w").live.unwrap().status, "0 8 log-writes 2 2 logging_disabled\n");
    rig.change("w", Change::Remove).unwrap();
}

/// A volume that somebody uses is not removed, and not left suspended.
#[test]
fn a_volume_with_a_log_that_is_used_goes_on() {
    let rig = Rig::new();
    rig.create("log", "0 1024 linear a 1024").unwrap();
    rig.create("w", "0 8 log-writes b log").unwrap();
    rig.create("above", "0 8 linear w 0").unwrap();
    rig.refuses("w", Change::Remove, Refused::InUse, "`w` is in use by `above`");
    assert!(!rig.report("w").suspended);
    let mut user = rig.user("above");
    user.write(0, 7);
    assert_eq!(user.reap(), [Status::Ok]);
}

/// At the end of a server logs end, also those of suspended volumes.
#[test]
fn logs_end_with_the_server() {
    let rig = Rig::new();
    for (name, log, place) in [("w", "l1", 1024), ("s", "l2", 1536)] {
        rig.create(log, &format!("0 512 linear a {place}")).unwrap();
        let start = place - 1024;
        rig.create(&format!("{name}-data"), &format!("0 512 linear b {start}")).unwrap();
        rig.create(name, &format!("0 512 log-writes {name}-data {log}")).unwrap();
        let mut user = rig.user(name);
        user.write(0, 1);
        assert_eq!(user.reap(), [Status::Ok]);
    }
    rig.suspend("s").unwrap();
    rig.stack.stop();
    let pause: SleepFn = Box::new(|_| panic!("RAM ends at once"));
    rig.stack.end_logs(&pause).unwrap();
    assert_eq!(log(&rig, "l1"), ["w", "dm-log-writes-end"]);
    assert_eq!(log(&rig, "l2"), ["w", "dm-log-writes-end"]);
}

/// An area that is read where it is written is used once, in a table that comes later as in a stack
/// file.
#[test]
fn a_delay_may_name_a_place_again() {
    let rig = Rig::new();
    rig.create("w", "0 8 delay b 0 0 b 0 1").unwrap();
    rig.reload("w", "0 8 delay b 8 0 b 0 1 b 8 2").unwrap();
    rig.refuses_table("w", "0 8 delay b 0 0 b 4 1", "sectors 4 to 7 of `b` are used twice");
    rig.refuses_table(
        "w",
        "0 8 delay b 0 0\n8 8 delay b 0 0",
        "sectors 0 to 7 of `b` are used twice",
    );
}
