//! Tests of the ways to wait, step by step.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::thread;

use drystone_core::clock::{Clock, ManualClock, SystemClock};
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, ChannelId, Context, ContextSet, Device, IoBuf, Sector};
use drystone_parity::Parity;
use drystone_raid::layout::Layout;
use drystone_stack::live::OpenEnv;
use serde_json::json;

use super::array::{Array, Open, Opening};
use super::cache::{Cache, HASH_LOCKS, STRIPE_SECTORS, STRIPES, Scheme, User};
use super::scene::{Members, Scene};
use super::wait::Sleeper;
use super::{load, run, shaped};
use crate::Options;

fn user() -> User {
    User { locks: LockCounters::new(ManualClock::new(1)), sleeper: Arc::new(Sleeper::default()) }
}

fn sector(stripe: usize) -> u64 {
    stripe as u64 * STRIPE_SECTORS
}

/// A cache whose stripes are all taken; `stripe % HASH_LOCKS` is a stripe's lock.
fn full(scheme: Scheme, user: &User) -> Cache<()> {
    let cache = Cache::new(scheme, HASH_LOCKS, STRIPES);
    (0..STRIPES).for_each(|n| assert_eq!(cache.get(user, sector(n), || ()), n as u32));
    cache
}

/// Frees the stripes of `locks` while a thread waits for one of lock 0: those of lock 0 first, and
/// the others when the thread has checked again. Returns how often the waiter slept, and whether it
/// got a stripe without a rescue.
fn waits(scheme: Scheme) -> (u32, bool) {
    let (own, waiter) = (user(), user());
    let cache = full(scheme, &own);
    let (sleeps, got) = (AtomicU32::new(0), AtomicU32::new(0));
    let until = |enough: &dyn Fn() -> bool| {
        while !enough() {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            cache.get(&waiter, sector(STRIPES), || {
                sleeps.fetch_add(1, SeqCst);
            });
            got.store(1, SeqCst);
        });
        until(&|| sleeps.load(SeqCst) == 1);
        let (mut first, mut others): (Vec<u32>, _) =
            (0..STRIPES as u32).partition(|n| n % HASH_LOCKS as u32 == 0);
        cache.retire(&mut first, &own.locks);
        until(&|| sleeps.load(SeqCst) == 2 || got.load(SeqCst) == 1);
        cache.retire(&mut others, &own.locks);
        assert_eq!(cache.freed(), STRIPES as u64);
        let woken = scheme != Scheme::Patched;
        until(&|| !woken || got.load(SeqCst) == 1);
        let rescued = cache.rescue(&own.locks);
        until(&|| got.load(SeqCst) == 1);
        (sleeps.load(SeqCst), rescued == 0)
    })
}

#[test]
fn the_mailed_way_loses_a_wake_up() {
    // It slept again while 7/8 were taken, and nobody woke it when fewer were.
    assert_eq!(waits(Scheme::Patched), (2, false));
    assert_eq!(waits(Scheme::Baseline), (2, true));
    assert_eq!(waits(Scheme::Sharded), (1, true));
}

/// Stripes are found again by their sector, free or not, and reused the longest free first.
#[test]
fn stripes_are_found_by_their_sector() {
    let user = user();
    let cache: Cache<()> = Cache::new(Scheme::Baseline, HASH_LOCKS, 2 * HASH_LOCKS);
    let get = |n: usize| cache.get(&user, sector(n), || ());
    let (first, second) = (get(0), get(HASH_LOCKS));
    assert_ne!(first, second);
    assert_eq!((get(0), cache.stripe(first).sector()), (first, 0));
    assert!(!cache.release(first), "there is another reference");
    assert!(cache.release(first) && !cache.release(second), "raid5d is woken once");
    let mut released = Vec::new();
    cache.take_released(&mut released);
    assert_eq!(released, [second, first]);
    cache.retire(&mut released, &user.locks);
    assert_eq!((get(0), cache.freed()), (first, 2));
    assert_eq!(get(2 * HASH_LOCKS), second, "the first is in use again");
}

/// A stripe with work is not freed; one that needs reads waits until no other work is left.
#[test]
fn stripes_with_work_are_not_free() {
    let user = user();
    let cache: Cache<u32> = Cache::new(Scheme::Baseline, HASH_LOCKS, STRIPES);
    let locks = &user.locks;
    let retire = |numbers: &[u32]| cache.retire(&mut numbers.to_vec(), locks);
    let take = |most| {
        let mut out = Vec::new();
        cache.take_work(most, &mut out, locks);
        out
    };
    let all: Vec<u32> = (0..3).map(|n| cache.get(&user, sector(n), || ())).collect();
    all.iter().for_each(|n| cache.stripe(*n).add(*n, locks));
    retire(&all);
    assert_eq!((cache.freed(), take(2)), (0, all[..2].to_vec()));
    assert!(!cache.stripe(all[0]).may_read());
    retire(&all[..1]);
    assert_eq!(take(9), [all[2], all[0]]);
    assert!(cache.stripe(all[0]).may_read() && !cache.stripe(all[1]).may_read());
    retire(&all[1..2]);
    assert!(take(9).is_empty(), "another one reads");
    cache.end_preread(all[0]);
    assert_eq!(take(9), all[1..2]);
    assert_eq!(cache.stripe(all[0]).take(locks), [all[0]]);
    retire(&all[..1]);
    assert_eq!(cache.freed(), 1);
}

/// Bytes of a file here: no whole number of rows.
const SMALL: usize = 700 << 10;

/// Opens an array over RAM, lets threads write to it, and compares its members with what they
/// wrote.
fn holds_what_is_written(open: Open, disks: u32, threads: u64) {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let at = OpenEnv::new(1, clock);
    let scene = Scene { members: Members::Ram, disks, threads: threads as u32 };
    let stack = scene.open(false, &at).unwrap();
    let (layout, members) = (scene.layout().unwrap(), scene.members_of(&stack));
    let array = open(&Opening { scene: &scene, layout, members: &members, at: &at }).unwrap();
    let done = AtomicU32::new(0);
    thread::scope(|scope| {
        for number in 0..threads {
            let (array, done) = (&array, &done);
            scope.spawn(move || {
                let mut writer = array.writer();
                for (place, version) in [(number, 100), (threads + number, 0), (number, 0)] {
                    let data = load::content(place + version, SMALL);
                    load::write_file(&mut *writer, place, &data).unwrap();
                }
                done.fetch_add(1, SeqCst);
            });
        }
        // The mailed variant may need a rescue.
        while done.load(SeqCst) < threads as u32 {
            thread::yield_now();
            array.rescue();
        }
    });
    assert!(array.counts().freed > 0);
    drop(array);
    let mut files: Vec<u8> =
        (0..2 * threads).flat_map(|n| load::content(n, SMALL).to_vec()).collect();
    compare(&layout, &at, &members, &files);
    // The cache of a new array is empty, so writes of single pages need reads.
    let array = open(&Opening { scene: &scene, layout, members: &members, at: &at }).unwrap();
    rewrite_pages(&*array, &mut files);
    drop(array);
    compare(&layout, &at, &members, &files);
}

/// Rewrites every 37th page, one in each bio.
fn rewrite_pages(array: &dyn Array, files: &mut [u8]) {
    let (mut writer, data) = (array.writer(), load::content(77, SMALL));
    for page in (0..files.len()).step_by(37 * 4096) {
        let from = page % SMALL;
        writer.write(page as u64 / 512, &data, from..from + 4096);
        files[page..page + 4096].copy_from_slice(&data[from..from + 4096]);
    }
    writer.sync().unwrap();
}

/// Checks that every page of `files` is at its place in the layout, and that parity is the xor of
/// its row's data.
fn compare(layout: &Layout, at: &OpenEnv, members: &[Arc<dyn Device>], files: &[u8]) {
    let mut cx = ContextSet::counted_by(at.locks.clone()).open(Engine::Auto).unwrap();
    let members: Vec<ChannelId> = members.iter().map(|member| cx.open(member).unwrap()).collect();
    let rows = files.len() as u64 / 512 / layout.row_sectors();
    let bytes = (rows * layout.chunk_sectors() * 512) as usize;
    let images: Vec<Vec<u8>> = members.iter().map(|member| read(&mut cx, *member, bytes)).collect();
    for (n, page) in files.chunks(4096).take((rows * layout.row_sectors() / 8) as usize).enumerate()
    {
        let place = layout.map_sector(n as u64 * STRIPE_SECTORS);
        let from = place.sector as usize * 512;
        assert!(images[place.role.index()][from..from + 4096] == *page, "page {n}");
    }
    let mut sum = vec![0; bytes];
    let images: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
    Parity::detect().xor_of(&mut sum, &images);
    assert_eq!(sum.iter().position(|byte| *byte != 0), None, "parity is wrong");
}

fn read(cx: &mut Context, member: ChannelId, bytes: usize) -> Vec<u8> {
    let mut bios = BioList::new();
    bios.push(Bio::read(Sector(0), IoBuf::zeroed(bytes)));
    cx.submit(member, &mut bios);
    while cx.reap(&mut bios) == 0 {
        cx.wait(None);
    }
    let bio = bios.pop().unwrap();
    assert!(bio.status.is_ok());
    bio.buf().unwrap().to_vec()
}

#[test]
fn arrays_hold_what_is_written() {
    for open in [shaped::before, shaped::mailed] {
        for (disks, threads) in [(4, 6), (3, 1), (9, 2)] {
            holds_what_is_written(open, disks, threads);
        }
    }
}

/// Checks the form of an outcome, with runs far too short to measure speed.
#[test]
fn an_outcome_has_a_row_for_each_variant_of_each_scene() {
    let options = Options { runs: 1, runtime_ns: 1_000_000, threads: 3, ..Options::default() };
    let outcome = run(&options, &mut |_| ()).unwrap();
    let json = outcome.json();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!((rows.len(), outcome.table.lines.len()), (18, 18));
    for row in rows {
        for key in ["files_per_second", "user_seconds", "system_seconds", "wakeups_per_stripe"] {
            assert!(row[key][0].is_number(), "{key} in {row}");
        }
        assert!(row["files_per_second"][0].as_f64() > Some(0.0), "{row}");
    }
    let shapes: Vec<_> = rows.iter().map(|row| [&row["members"], &row["threads"]]).collect();
    assert_eq!(shapes[0], [&json!(4), &json!(3)]);
    assert_eq!(shapes[17], [&json!(3), &json!(1)]);
    assert!(outcome.text().contains("stripe_hash"));
    assert!(outcome.html().contains("ram: files a second"), "{}", outcome.html());
}
