//! Tests of the RAM device: data, freeing, allocation.

use super::*;
use crate::testing::{ENGINES, Rig, pattern};
use drystone_core::clock::SystemClock;
use drystone_core::ring::Engine;
use drystone_core::{BioFlags, BioList, IoBuf, Op, Pipe, Sector};
use drystone_queue::queue::QueueOptions;
use drystone_queue::scheduler::SchedulerKind;
use proptest::prelude::*;

const NONE: BioFlags = BioFlags::empty();

fn ram(size_bytes: u64) -> Rig {
    Rig::new(Ram::new(size_bytes, true).expect("memory"), Engine::Auto)
}

#[test]
fn data_comes_back() {
    let mut rig = ram(1 << 20);
    let data = pattern(40_960, 1);
    assert_eq!(rig.read(0, 4096).unwrap(), [0; 4096], "fresh memory is zero");
    assert_eq!(rig.write(512, &data, NONE), Status::Ok);
    assert_eq!(rig.read(512, 40_960).unwrap(), data);
    assert_eq!(rig.read((1 << 20) - 512, 512).unwrap(), [0; 512]);
    assert_eq!(rig.read(1 << 20, 512), Err(Status::IoError));
    assert_eq!((rig.flush(), rig.write(0, &data[..512], BioFlags::FUA)), (Status::Ok, Status::Ok));
}

#[cfg(not(miri))]
#[test]
fn a_long_read_ends_in_its_pipe() {
    let (mut rig, data) = (ram(4 << 20), pattern(1 << 20, 3));
    assert_eq!(rig.write(1 << 20, &data, NONE), Status::Ok);
    assert!(rig.device.fills_pipes());
    let (bio, piped) = rig.read_with_pipe(1 << 20, 1 << 20);
    assert!(bio.status == Status::Ok && piped == data);
    assert!(bio.buf().expect("its buffer").iter().all(|byte| *byte == 0), "nobody copied");
    let (bio, piped) = rig.read_with_pipe(2 << 20, 256 << 10);
    assert!(bio.status == Status::Ok && piped == vec![0; 256 << 10], "a hole");
    let (bio, piped) = rig.read_with_pipe(1 << 20, 64 << 10);
    assert!(bio.status == Status::Ok && piped.is_empty(), "a short one is copied");
    assert!(bio.buf().expect("its buffer")[..] == data[..64 << 10]);
    let (bio, piped) = rig.read_with_pipe(4 << 20, 128 << 10);
    assert!(bio.status == Status::IoError && piped.is_empty(), "behind the end");
}

/// A volume that gets another table may give the place to others, so it gets copies.
#[cfg(not(miri))]
#[test]
fn a_read_that_a_volume_remapped_is_copied() {
    let store = RamStore::new(1 << 20).expect("memory");
    for is_remapped in [false, true] {
        let mut bio = Bio::read(Sector(0), IoBuf::from_slice(&[7; 128 << 10]));
        bio.set_pipe(Pipe::open().expect("a pipe"));
        assert!(!is_remapped || bio.begin_remap(ChannelId(1)));
        assert_eq!(store.do_bio(&mut bio), Some(Status::Ok));
        let pipe = bio.take_pipe().expect("it is there");
        let copied = bio.buf().expect("its buffer")[..] == vec![0; 128 << 10];
        assert_eq!((pipe.is_empty(), copied), (is_remapped, is_remapped));
    }
}

#[test]
fn discard_frees_whole_pages_and_zeroes_the_rest() {
    let mut rig = ram(1 << 20);
    rig.write(0, &[7; 32768], NONE);
    assert_eq!(rig.allocation(65536), [(32768, true), (32768, false)]);
    assert_eq!(rig.range(Op::Discard, 512, 12288, NONE), Status::Ok);
    let mut expected = vec![7u8; 32768];
    expected[512..12800].fill(0);
    assert_eq!(rig.read(0, 32768).unwrap(), expected);
    let map = [(4096, true), (8192, false), (20480, true), (32768, false)];
    assert_eq!(rig.allocation(65536), map, "the first and the last page hold data still");
}

#[test]
fn a_part_of_a_page_is_zeroed_and_stays() {
    let mut rig = ram(1 << 20);
    rig.write(4096, &[9; 4096], NONE);
    assert_eq!(rig.range(Op::WriteZeroes, 4096 + 512, 1024, NONE), Status::Ok);
    let mut expected = [9u8; 4096];
    expected[512..1536].fill(0);
    assert_eq!(rig.read(4096, 4096).unwrap(), expected);
    assert_eq!(rig.allocation(12288), [(4096, false), (4096, true), (4096, false)]);
}

#[test]
fn discarded_memory_goes_back_to_the_system() {
    let mut rig = ram(64 << 20);
    let data = vec![5u8; 1 << 20];
    (0..64).for_each(|i| assert_eq!(rig.write(i << 20, &data, NONE), Status::Ok));
    let before = resident_pages();
    assert_eq!(rig.range(Op::Discard, 0, 64 << 20, NONE), Status::Ok);
    let freed = before.saturating_sub(resident_pages()) * 4096;
    assert!(freed > 32 << 20, "{freed} bytes of 64 MiB came back");
    assert_eq!(rig.allocation(64 << 20), [(64 << 20, false)]);
}

fn resident_pages() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn sizes_have_limits() {
    let error = |size| Ram::new(size, true).err().expect("refused").to_string();
    for size in [0, 511, 513] {
        assert!(error(size).contains(&format!("size {size} of a RAM device")));
    }
    assert!(error(u64::MAX - 511).contains("cannot be mapped"));
    assert!(error(1 << 60).contains("cannot be mapped"));
    // A sparse device, larger than the machine's memory.
    let mut rig = ram(1 << 40);
    assert_eq!(rig.write((1 << 40) - 512, &[1; 512], NONE), Status::Ok);
    assert_eq!(rig.read((1 << 40) - 512, 512).unwrap(), [1; 512]);
}

#[test]
fn an_odd_size_ends_inside_a_page() {
    let mut rig = ram(4096 + 512);
    rig.write(4096, &[3; 512], NONE);
    assert_eq!(rig.allocation(4608), [(4096, false), (512, true)]);
    assert_eq!(rig.range(Op::Discard, 0, 4608, NONE), Status::Ok);
    assert_eq!(rig.read(0, 4608).unwrap(), [0; 4608]);
}

#[test]
fn discard_can_be_switched_off() {
    let mut rig = Rig::new(Ram::new(1 << 20, false).unwrap(), Engine::Auto);
    assert_eq!(rig.range(Op::Discard, 0, 4096, NONE), Status::NotSupported);
    assert_eq!(rig.range(Op::WriteZeroes, 0, 4096, BioFlags::FAST_ZERO), Status::Ok);
}

#[test]
fn a_query_may_ask_for_few_extents() {
    let mut rig = ram(1 << 20);
    (0..10).for_each(|i| assert_eq!(rig.write(i * 8192, &[1; 4096], NONE), Status::Ok));
    let extents = rig.device.extents(2048, 81920, 3).unwrap();
    let expected = [Extent::data(2048, 2048), Extent::hole(4096, 4096), Extent::data(8192, 4096)];
    assert_eq!(extents, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Compares the store with a vector of bytes and a set of pages.
    #[test]
    fn memory_is_what_was_written(
        ops in prop::collection::vec((0u8..4, 0u64..640, 1u64..200, any::<u8>()), 1..60),
        query in (0u64..640, 1u64..640),
    ) {
        const SECTORS: u64 = 640;
        let mut rig = ram(SECTORS * 512);
        let mut bytes = vec![0u8; (SECTORS * 512) as usize];
        let mut pages = vec![false; (SECTORS / 8) as usize];
        for (op, sector, sectors, seed) in ops {
            let (at, len) = (sector * 512, sectors.min(SECTORS - sector) * 512);
            let range = at as usize..(at + len) as usize;
            if op == 0 {
                let data = pattern(len as usize, seed);
                prop_assert_eq!(rig.write(at, &data, NONE), Status::Ok);
                bytes[range].copy_from_slice(&data);
                pages[(at / 4096) as usize..(at + len).div_ceil(4096) as usize].fill(true);
            } else if op == 1 {
                prop_assert_eq!(&rig.read(at, len as usize).unwrap()[..], &bytes[range]);
            } else {
                let op = if op == 2 { Op::Discard } else { Op::WriteZeroes };
                prop_assert_eq!(rig.range(op, at, len, NONE), Status::Ok);
                bytes[range].fill(0);
                let (first, last) = (at.div_ceil(4096) as usize, ((at + len) / 4096) as usize);
                if first < last {
                    pages[first..last].fill(false);
                }
            }
        }
        prop_assert_eq!(rig.read(0, bytes.len()).unwrap(), bytes);
        let (from, len) = (query.0 * 512, query.1.min(SECTORS - query.0) * 512);
        let extents = rig.device.extents(from, len, usize::MAX).unwrap();
        let mut at = from;
        for e in &extents {
            prop_assert_eq!(e.offset, at);
            for page in e.offset / 4096..(e.offset + e.length).div_ceil(4096) {
                prop_assert_eq!(pages[page as usize], e.allocated, "page {}", page);
            }
            at += e.length;
        }
        prop_assert_eq!(at, from + len);
        prop_assert!(extents.windows(2).all(|w| w[0].allocated != w[1].allocated));
    }
}

/// Statistics outlive the contexts that made them, however many come and go.
#[test]
fn statistics_go_on_when_contexts_go() {
    use drystone_core::clock::SystemClock;
    use drystone_core::sync::LockCounters;
    use drystone_core::{Bio, BioList, ContextSet, Device, IoBuf, Sector};
    let clock = SystemClock::new();
    let locks = LockCounters::new(clock.clone());
    let ram = Ram::new(1 << 20, true).unwrap();
    let queue = drystone_queue::RequestQueue::new("r", ram, &Default::default(), locks).unwrap();
    let device: Arc<dyn Device> = Arc::new(queue);
    let set = ContextSet::new(clock);
    for round in 1..=20 {
        let mut cx = set.open(Engine::Auto).unwrap();
        let index = cx.open(&device).unwrap();
        let mut bios = BioList::new();
        bios.push(Bio::write(Sector(0), IoBuf::zeroed(1024)));
        cx.submit(index, &mut bios);
        assert_eq!(cx.reap(&mut bios), 1);
        let fields = device.stats().fields();
        assert_eq!((fields[4], fields[6], fields[8]), (round, 2 * round, 0));
    }
}

/// Other I/O of the context goes on between the pieces of a long one, however that was sent.
#[test]
fn a_long_range_is_zeroed_in_pieces() {
    const END: u64 = 1 << 38;
    for (engine, scheduler) in
        ENGINES.into_iter().flat_map(|e| SchedulerKind::ALL.map(|scheduler| (e, scheduler)))
    {
        let iosched = match scheduler {
            SchedulerKind::None => Vec::new(),
            SchedulerKind::MqDeadline => vec![("straight", "0".to_owned())],
        };
        let options =
            QueueOptions { scheduler: Some(scheduler), iosched, ..QueueOptions::default() };
        let driver = Ram::new(2 * END, true).expect("memory");
        let mut rig = Rig::with(driver, &options, engine, SystemClock::new());
        for at in [4096, END - 4096, END] {
            assert_eq!(rig.write(at, &[1; 4096], NONE), Status::Ok);
        }
        let mut long = Bio::without_data(Op::Discard, Sector(9), END - 9 * 512);
        long.user_data = 1;
        rig.submit([long]);
        let mut between = 0;
        while rig.cx.outstanding() > 0 {
            let mut read = Bio::read(Sector(0), IoBuf::zeroed(512));
            read.user_data = 2;
            rig.submit([read]);
            let mut ended = BioList::new();
            rig.cx.reap(&mut ended);
            assert!(ended.iter().all(|bio| bio.status.is_ok()));
            between += ended.iter().filter(|bio| bio.user_data == 2).count();
            if ended.iter().any(|bio| bio.user_data == 1) {
                break;
            }
        }
        assert!(between >= 16, "{between} reads, {engine:?}, {scheduler:?}");
        assert_eq!(rig.read(END - 4096, 8192).unwrap()[4095..4097], [0, 1]);
        let map = [(4096, false), (4096, true), (END - 8192, false), (4096, true)];
        assert_eq!(rig.allocation(2 * END)[..4], map, "{engine:?}, {scheduler:?}");
    }
}

/// Zeroing in pieces zeroes the whole range, and nothing else.
#[test]
fn pieces_have_no_seams() {
    const LEN: usize = 24 << 20;
    for flags in [NONE, BioFlags::NOUNMAP] {
        let mut rig = ram(LEN as u64);
        let data = pattern(LEN, 5);
        (0..24).for_each(|n| {
            assert_eq!(
                rig.write(n << 20, &data[n as usize * LEN / 24..][..1 << 20], NONE),
                Status::Ok
            );
        });
        let ranges = [(512u64, (9 << 20) + 1024u64), (12 << 20, 8 << 20)];
        let mut expected = data.clone();
        let bio = |(at, length)| {
            let mut bio = Bio::without_data(Op::WriteZeroes, Sector::from_bytes(at), length);
            bio.flags = flags;
            bio
        };
        rig.submit(ranges.map(bio));
        assert!(rig.drain().iter().all(|bio| bio.status.is_ok()));
        for (at, length) in ranges {
            expected[at as usize..(at + length) as usize].fill(0);
        }
        let read: Vec<u8> = (0..24).flat_map(|n| rig.read(n << 20, 1 << 20).unwrap()).collect();
        assert!(read == expected, "{flags:?}");
        let holes = rig.allocation(LEN as u64).iter().filter(|(_, data)| !data).count();
        assert_eq!(holes, if flags == NONE { 2 } else { 0 });
    }
}

#[test]
fn zeroes_that_keep_their_memory_are_never_fast() {
    let mut rig = ram(64 << 20);
    for bytes in [4096, 64 << 20] {
        let fast = BioFlags::FAST_ZERO | BioFlags::NOUNMAP;
        assert_eq!(rig.range(Op::WriteZeroes, 0, bytes, fast), Status::NotSupported);
        assert_eq!(rig.range(Op::WriteZeroes, 0, bytes, BioFlags::FAST_ZERO), Status::Ok);
    }
    assert_eq!(rig.allocation(64 << 20), [(64 << 20, false)]);
}

/// A short range does not wait for the end of long ones that came before it.
#[test]
fn ranges_take_turns() {
    const LEN: u64 = 1 << 40;
    let mut rig = ram(2 * LEN);
    let zeroes = |at: u64, bytes: u64, user_data: u64| {
        let mut bio = Bio::without_data(Op::WriteZeroes, Sector::from_bytes(at), bytes);
        (bio.flags, bio.user_data) = (BioFlags::NOUNMAP | BioFlags::NOMERGE, user_data);
        bio
    };
    rig.submit([zeroes(0, LEN, 1), zeroes(LEN, 8 << 20, 2)]);
    let mut ended = BioList::new();
    while ended.is_empty() {
        rig.cx.wait(None);
        rig.cx.reap(&mut ended);
    }
    assert_eq!((ended.len(), ended.front().unwrap().user_data), (1, 2));
    rig.cx.withdraw(1..2);
    assert_eq!(rig.drain()[0].status, Status::Cancelled);
}

/// A withdrawn range is not zeroed to its end, and delays no later range.
#[test]
fn a_long_range_that_is_withdrawn_ends_before_its_time() {
    // Larger than the machine's memory, so no range may be zeroed to its end.
    const LEN: u64 = 1 << 40;
    let zeroes = |at: u64, bytes: u64, user_data: u64| {
        let mut bio = Bio::without_data(Op::WriteZeroes, Sector::from_bytes(at), bytes);
        (bio.flags, bio.user_data) = (BioFlags::NOUNMAP | BioFlags::NOMERGE, user_data);
        bio
    };
    for engine in ENGINES {
        let mut rig = Rig::new(Ram::new(2 * LEN, true).expect("address space"), engine);
        rig.submit([zeroes(0, LEN, 7), zeroes(LEN, 8 << 20, 9), zeroes(LEN, LEN, 8)]);
        rig.cx.withdraw(7..9);
        let mut ended = BioList::new();
        rig.cx.reap(&mut ended);
        let statuses: Vec<_> = ended.iter().map(|bio| (bio.user_data, bio.status)).collect();
        assert_eq!(statuses, [(7, Status::Cancelled), (8, Status::Cancelled)], "{engine:?}");
        ended.take();
        let rest = rig.drain();
        assert_eq!((rest.len(), rest[0].user_data, rest[0].status), (1, 9, Status::Ok));
        // The same once more, after all were withdrawn while a timer was set.
        rig.submit([zeroes(0, LEN, 7)]);
        rig.cx.withdraw(0..100);
        rig.submit([zeroes(0, 8 << 20, 9)]);
        let statuses: Vec<_> = rig.drain().iter().map(|bio| bio.status).collect();
        assert_eq!(statuses, [Status::Cancelled, Status::Ok], "{engine:?}");
        let held = rig.allocation(2 * LEN).iter().filter(|run| run.1).map(|run| run.0).sum::<u64>();
        assert!(held < 64 << 20, "{held} bytes were overwritten, {engine:?}");
    }
}
