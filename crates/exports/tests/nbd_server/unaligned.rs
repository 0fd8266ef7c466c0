//! Requests for any bytes, on devices that read and write whole blocks.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use drystone_core::{BioFlags, Op};
use drystone_exports::nbd::proto::{Command, CommandFlags, ErrorCode};
use drystone_exports::nbd::server::Settings;
use drystone_testkit::nbd::{ClientError, Connection};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::disk::Disk;
use crate::served::{Served, export, until};

const NONE: CommandFlags = CommandFlags::empty();
const SIZE: usize = 64 << 10;
const CLIENTS: usize = 3;

fn disk(block: u32, change: impl FnOnce(&mut Disk)) -> Arc<Disk> {
    let mut disk = Disk::new(SIZE, block);
    change(Arc::get_mut(&mut disk).unwrap());
    disk.bytes.lock().unwrap().fill(7);
    disk
}

fn client(served: &Served, at: usize, export: &str) -> Connection<UnixStream> {
    let mut negotiation = served.negotiate(at);
    negotiation.structured_replies().unwrap();
    negotiation.set_contexts(export, &["base:allocation"]).unwrap();
    negotiation.go(export, &[]).unwrap()
}

/// Two exports of one device, as a stack has them, on two data threads.
fn two_exports(disk: &Arc<Disk>) -> Served {
    let (one, mut two) = (export("one", disk.clone()), export("two", disk.clone()));
    two.volume.device = one.volume.device.clone();
    two.volume.write_lock = one.volume.write_lock.clone();
    Served::new(vec![one, two], 2, Settings::default())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read,
    /// Of a byte that its place in the batch tells.
    Write,
    Zero,
    Trim,
    Cache,
}

/// A change to a range of bytes, and the client that makes it.
#[derive(Clone, Debug)]
struct Step {
    client: usize,
    what: What,
    start: usize,
    end: usize,
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        3 => Just(What::Read),
        6 => Just(What::Write),
        2 => Just(What::Zero),
        1 => Just(What::Trim),
        1 => Just(What::Cache),
    ];
    // Few blocks, so that requests meet.
    let start = prop_oneof![
        2 => (0_usize..4).prop_map(|n| n * 4096),
        4 => 0_usize..9000,
        1 => SIZE - 900..SIZE,
    ];
    let length = prop_oneof![3 => 1_usize..600, 2 => Just(4096_usize), 3 => 1_usize..20_000];
    (0..CLIENTS, what, start, length).prop_map(|(client, what, start, length)| {
        let end = (start + length).min(SIZE);
        Step { client, what, start, end }
    })
}

fn value(place: usize) -> u8 {
    place as u8 + 8
}

fn send(client: &mut Connection<UnixStream>, place: usize, step: &Step) -> u64 {
    let (start, length) = (step.start as u64, (step.end - step.start) as u64);
    let data = if step.what == What::Write { vec![value(place); length as usize] } else { vec![] };
    let command = match step.what {
        What::Read => Command::Read,
        What::Write => Command::Write,
        What::Zero => Command::WriteZeroes,
        What::Trim => Command::Trim,
        What::Cache => Command::Cache,
    };
    client.send(command, NONE, start, length, &data).unwrap()
}

/// The bytes that requests of the batch leave at `at`.
fn left_at(batch: &[Step], at: usize, block: usize) -> Vec<u8> {
    let changes = |step: &Step| match step.what {
        What::Read | What::Cache => false,
        What::Write | What::Zero => (step.start..step.end).contains(&at),
        What::Trim => {
            let start = step.start.next_multiple_of(block);
            (start..step.end / block * block).contains(&at)
        }
    };
    let writes = batch.iter().enumerate().filter(|(_, step)| changes(step));
    writes.map(|(place, step)| if step.what == What::Write { value(place) } else { 0 }).collect()
}

/// A batch that is in flight together: each byte is then what one of those left that changed it, or
/// as before if none did.
fn run_batch(clients: &mut [Connection<UnixStream>], disk: &Disk, batch: &[Step]) {
    let (before, block) = (disk.bytes.lock().unwrap().clone(), disk.block as usize);
    let mut open = Vec::new();
    for (place, step) in batch.iter().enumerate() {
        open.push((step.client, send(&mut clients[step.client], place, step), step));
    }
    while let Some((number, ..)) = open.first() {
        let number = *number;
        let reply = clients[number].receive().unwrap();
        let at = open.iter().position(|(n, cookie, _)| *n == number && *cookie == reply.cookie);
        let (.., step) = open.swap_remove(at.expect("each is answered once"));
        assert_eq!(reply.error, None, "{step:?}");
        if step.what == What::Read {
            assert_eq!(reply.data.len(), step.end - step.start);
            let wrong = (step.start..).zip(&reply.data).find(|(at, byte)| {
                before[*at] != **byte && !left_at(batch, *at, block).contains(*byte)
            });
            assert_eq!(wrong, None, "{step:?}");
        }
    }
    let after = disk.bytes.lock().unwrap();
    let wrong = (0..SIZE).find(|at| match &left_at(batch, *at, block)[..] {
        [] => after[*at] != before[*at],
        left => !left.contains(&after[*at]),
    });
    assert_eq!(wrong.map(|at| (at, after[at], before[at])), None);
}

fn run(batches: &[Vec<Step>], block: u32, zeroes: bool, delay_ns: u64) {
    let disk = disk(block, |disk| (disk.zeroes, disk.discards) = (zeroes, true));
    disk.delay_ns.store(delay_ns, Relaxed);
    let served = two_exports(&disk);
    let mut clients: Vec<_> = [(0, "one"), (1, "one"), (1, "two")]
        .map(|(thread, export)| client(&served, thread, export))
        .into();
    batches.iter().for_each(|batch| run_batch(&mut clients, &disk, batch));
}

/// Of several clients, by two exports, on two threads, on a device whose I/O ends in any order.
#[test]
fn all_bytes_are_what_somebody_wrote() {
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let batches = prop::collection::vec(prop::collection::vec(step(), 1..12), 1..8);
    let delay = prop_oneof![Just(0_u64), Just(100_000)];
    let all = (batches, prop_oneof![Just(512_u32), Just(4096)], any::<bool>(), delay);
    let ran = TestRunner::new(config).run(&all, |(batches, block, zeroes, delay_ns)| {
        run(&batches, block, zeroes, delay_ns);
        Ok(())
    });
    if let Err(why) = ran {
        panic!("{why}");
    }
}

/// Each client has a byte of its own in one block, and writes it again and again.
#[test]
fn neighbours_in_a_block_lose_nothing() {
    for block in [512, 4096] {
        let disk = disk(block, |_| {});
        disk.delay_ns.store(50_000, Relaxed);
        let served = two_exports(&disk);
        let write = |(number, mut client): (usize, Connection<UnixStream>)| {
            for round in 0..100 {
                client.write(number as u64, &[round], NONE).unwrap();
                assert_eq!(client.read(number as u64, 1, NONE).unwrap(), [round]);
            }
        };
        let of = [(0, "one"), (1, "one"), (0, "two"), (1, "two")];
        let clients = of.map(|(thread, export)| client(&served, thread, export));
        std::thread::scope(|scope| {
            for client in clients.into_iter().enumerate() {
                scope.spawn(move || write(client));
            }
        });
        assert_eq!(disk.bytes.lock().unwrap()[..5], [99, 99, 99, 99, 7]);
    }
}

/// Releases what a disk holds, also if the test fails.
pub struct Release(pub Arc<Disk>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.released.store(true, SeqCst);
    }
}

/// A part of a block keeps nobody waiting that writes another one.
#[test]
fn others_write_other_blocks_meanwhile() {
    let disk = disk(512, |_| {});
    let served = two_exports(&disk);
    let (mut slow, mut quick) = (client(&served, 0, "one"), client(&served, 1, "two"));
    let _release = Release(disk.clone());
    disk.holds.store(true, SeqCst);
    let unaligned = slow.send(Command::Write, NONE, 1, 1, &[1]).unwrap();
    until("its block is read", || disk.count(Op::Read) == 1);
    disk.holds.store(false, SeqCst);
    quick.write(512, &[2; 512], NONE).unwrap();
    quick.write(1025, &[3; 5], NONE).unwrap();
    assert_eq!(disk.bytes.lock().unwrap()[512], 2);
    let waits = quick.send(Command::Write, NONE, 0, 512, &[4; 512]).unwrap();
    quick.write(1536, &[5; 512], NONE).unwrap();
    assert_eq!(disk.count(Op::Write), 3, "the same block is not written meanwhile");
    disk.released.store(true, SeqCst);
    assert_eq!(slow.receive().unwrap().cookie, unaligned);
    assert_eq!(quick.receive().unwrap().cookie, waits);
    assert_eq!(disk.bytes.lock().unwrap()[..512], [4; 512]);
}

/// The inside of zeroes for parts of blocks may take long: others write it meanwhile.
#[test]
fn zeroes_for_parts_of_blocks_hold_others_up_at_their_edges_only() {
    let disk = disk(512, |disk| (disk.zeroes, disk.holds_zeroes) = (true, true));
    let served = two_exports(&disk);
    let _release = Release(disk.clone());
    let (mut slow, mut quick) = (client(&served, 0, "one"), client(&served, 1, "two"));
    let zeroes = slow.send(Command::WriteZeroes, NONE, 1, 4094, &[]).unwrap();
    until("what is inside is zeroed", || disk.count(Op::WriteZeroes) == 1);
    assert_eq!(disk.bytes.lock().unwrap()[..512], [&[7][..], &[0; 511]].concat());
    quick.write(0, &[2; 512], NONE).unwrap();
    quick.write(1024, &[3; 512], NONE).unwrap();
    slow.write(4000, &[4; 3], NONE).unwrap();
    // A part of a block inside waits.
    let waits = quick.send(Command::Write, NONE, 2000, 3, &[5; 3]).unwrap();
    quick.write(8192, &[6; 512], NONE).unwrap();
    disk.released.store(true, SeqCst);
    assert_eq!(slow.receive().unwrap().cookie, zeroes);
    assert_eq!(quick.receive().unwrap().cookie, waits);
    let bytes = disk.bytes.lock().unwrap();
    assert_eq!((bytes[..512].to_vec(), &bytes[4000..4003]), (vec![2; 512], &[4; 3][..]));
    assert_eq!(bytes[1999..2004], [0, 5, 5, 5, 0]);
}

/// Zeroes that are written by pieces hold nobody up but at the piece that is.
#[test]
fn zeroes_that_are_written_are_locked_by_pieces() {
    let mut disk = Disk::new(4 << 20, 512);
    Arc::get_mut(&mut disk).unwrap().zeroes = false;
    let served = two_exports(&disk);
    let _release = Release(disk.clone());
    let (mut slow, mut quick) = (client(&served, 0, "one"), client(&served, 1, "two"));
    disk.holds.store(true, SeqCst);
    let zeroes = slow.send(Command::WriteZeroes, NONE, 0, 4 << 20, &[]).unwrap();
    until("the first piece is written", || disk.count(Op::Write) == 1);
    disk.holds.store(false, SeqCst);
    quick.write(3 << 20 | 1, &[1; 3], NONE).unwrap();
    let waits = quick.send(Command::Write, NONE, 1, 3, &[2; 3]).unwrap();
    quick.write(2 << 20, &[1; 512], NONE).unwrap();
    disk.released.store(true, SeqCst);
    assert_eq!(slow.receive().unwrap().cookie, zeroes);
    assert_eq!(quick.receive().unwrap().cookie, waits);
    let bytes = disk.bytes.lock().unwrap();
    assert_eq!(bytes[..5], [0, 2, 2, 2, 0]);
    assert!(bytes[5..].iter().all(|byte| *byte == 0), "zeroes came behind what was written before");
}

/// A client that has so many writes of a byte each under way in the first block, on a disk that
/// holds the read of the first.
fn many_in_one_block(served: &Served, disk: &Disk) -> (Connection<UnixStream>, Vec<u64>) {
    let mut client = client(served, 0, "one");
    disk.holds.store(true, SeqCst);
    let write = |at| client.send(Command::Write, NONE, at, 1, &[1]).unwrap();
    let cookies: Vec<u64> = (1..=MANY).map(write).collect();
    until("the block is read", || disk.count(Op::Read) == 1);
    disk.holds.store(false, SeqCst);
    client.write(4096, &[2; 512], NONE).unwrap();
    (client, cookies)
}

const MANY: u64 = 16;

fn takes_all(client: &mut Connection<UnixStream>, cookies: &[u64], error: Option<ErrorCode>) {
    let mut left = cookies.to_vec();
    while !left.is_empty() {
        let reply = client.receive().unwrap();
        left.remove(left.iter().position(|cookie| *cookie == reply.cookie).unwrap());
        assert_eq!(reply.error.map(|(code, _)| code), error.map(ErrorCode::wire));
    }
}

/// A client that writes a block waits for at most one write of a part of it of each other client.
#[test]
fn nobody_waits_for_all_that_a_client_has_queued() {
    let disk = disk(512, |_| {});
    let served = two_exports(&disk);
    let _release = Release(disk.clone());
    let (mut slow, cookies) = many_in_one_block(&served, &disk);
    let mut other = client(&served, 1, "two");
    let waits = other.send(Command::Write, NONE, 0, 512, &[4; 512]).unwrap();
    other.write(1536, &[5; 512], NONE).unwrap();
    disk.released.store(true, SeqCst);
    assert_eq!(other.receive().unwrap().cookie, waits);
    takes_all(&mut slow, &cookies, None);
    let mut left = [4; 512];
    left[2..=MANY as usize].fill(1);
    assert_eq!(disk.bytes.lock().unwrap()[..512], left, "the first, the other's, the rest");
}

#[test]
fn what_a_client_that_goes_has_queued_holds_nobody_up() {
    let disk = disk(512, |_| {});
    let served = two_exports(&disk);
    let _release = Release(disk.clone());
    let (gone, _) = many_in_one_block(&served, &disk);
    let mut other = client(&served, 1, "two");
    let waits = other.send(Command::Write, NONE, 0, 3, &[4; 3]).unwrap();
    drop(gone);
    other.write(1536, &[5; 512], NONE).unwrap();
    disk.released.store(true, SeqCst);
    assert_eq!(other.receive().unwrap().cookie, waits);
    let clients = &served.table.exports()[0].volume.clients;
    until("the one that went is forgotten", || clients.count() == 0);
}

#[test]
fn what_waits_for_its_turn_is_done_before_the_server_ends() {
    let disk = disk(512, |_| {});
    let served = two_exports(&disk);
    let _release = Release(disk.clone());
    let (mut slow, cookies) = many_in_one_block(&served, &disk);
    let mut idle = client(&served, 0, "one");
    let stop = std::thread::spawn(move || drop(served));
    // A data thread tells all its connections of a stop before it closes the first of them.
    assert_eq!(idle.stream().read(&mut [0]).unwrap(), 0, "the stop has begun");
    assert_eq!(disk.count(Op::Write), 1, "of another block");
    disk.released.store(true, SeqCst);
    takes_all(&mut slow, &cookies, None);
    stop.join().unwrap();
    let mut left = [7; 512];
    left[1..=MANY as usize].fill(1);
    assert_eq!(disk.bytes.lock().unwrap()[..512], left);
}

#[test]
fn each_of_many_that_fail_is_told() {
    let disk = disk(512, |disk| disk.fails = true);
    let served = Served::disk(disk.clone(), 1);
    let mut client = client(&served, 0, "vol");
    let write = |at| client.send(Command::Write, NONE, at, 1, &[1]).unwrap();
    let cookies: Vec<u64> = (1..=MANY).map(write).collect();
    takes_all(&mut client, &cookies, Some(ErrorCode::Eio));
}

fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> u32 {
    match result {
        Err(ClientError::Failed { code, .. }) => code,
        other => panic!("{other:?} where an error of the server was expected"),
    }
}

#[test]
fn what_cannot_be_done_is_told() {
    let failing = disk(4096, |disk| disk.fails = true);
    let served = Served::disk(failing.clone(), 1);
    let mut client = client(&served, 0, "vol");
    let eio = ErrorCode::Eio.wire();
    assert_eq!(code(client.write(5, &[1; 9], NONE)), eio);
    assert_eq!(code(client.read(5, 9, NONE)), eio);
    assert_eq!(code(client.command(Command::WriteZeroes, 1, 2, NONE)), eio);
    assert_eq!(failing.count(Op::Write), 0, "nothing is written that was not read");
    let size = SIZE as u64;
    assert_eq!(code(client.write(size - 3, &[1; 4], NONE)), ErrorCode::Enospc.wire());
    assert_eq!(code(client.read(size - 3, 4, NONE)), ErrorCode::Einval.wire());
    let read_only = disk(4096, |disk| disk.read_only = true);
    let served = Served::disk(read_only, 1);
    let mut client = self::client(&served, 0, "vol");
    assert_eq!(code(client.write(5, &[1; 9], NONE)), ErrorCode::Eperm.wire());
    assert_eq!(client.read(5, 9, NONE).unwrap(), [7; 9]);
}

#[test]
fn parts_of_blocks_are_durable_where_that_is_asked_and_never_fast() {
    let disk = disk(4096, |_| {});
    let served = Served::disk(disk.clone(), 1);
    let mut client = client(&served, 0, "vol");
    client.write(4000, &[1; 5000], CommandFlags::FUA).unwrap();
    let zeroes = CommandFlags::FUA | CommandFlags::NO_HOLE;
    client.command(Command::WriteZeroes, 100, 9000, zeroes).unwrap();
    {
        let counts = disk.counts.lock().unwrap();
        let changes: Vec<_> = counts.iter().filter(|(op, ..)| *op != Op::Read).collect();
        let of = |op| changes.iter().filter(|(of, ..)| *of == op).count();
        assert_eq!((of(Op::Write), of(Op::WriteZeroes)), (1 + 2, 1));
        assert!(changes.iter().all(|(_, flags, _)| flags.contains(BioFlags::FUA)), "{changes:?}");
    }
    let fast = client.command(Command::WriteZeroes, 100, 9000, CommandFlags::FAST_ZERO);
    assert_eq!(code(fast), ErrorCode::Enotsup.wire());
    client.command(Command::WriteZeroes, 8192, 4096, CommandFlags::FAST_ZERO).unwrap();
}

#[test]
fn the_status_of_any_range_is_told() {
    let disk = disk(4096, |_| {});
    disk.bytes.lock().unwrap()[8192..16_384].fill(0);
    let served = Served::disk(disk, 1);
    let mut client = client(&served, 0, "vol");
    let status = |client: &mut Connection<UnixStream>, at, length| {
        client.block_status(at, length, NONE).unwrap().remove(0).1
    };
    assert_eq!(status(&mut client, 8000, 1000), [(192, 0), (808, 3)]);
    assert_eq!(status(&mut client, 8193, 1), [(1, 3)]);
    assert_eq!(status(&mut client, 16_000, 1000), [(384, 3), (616, 0)]);
    assert_eq!(client.block_status(8000, 1000, CommandFlags::REQ_ONE).unwrap()[0].1, [(192, 0)]);
}

/// A client that does not ask for the block size is served all the same, the old way too.
#[test]
fn clients_that_know_nothing_of_blocks_are_served() {
    let disk = disk(4096, |_| {});
    let served = Served::disk(disk.clone(), 1);
    let mut old = served.negotiate(0).export_name("vol").unwrap();
    old.write(10, &[1; 10], NONE).unwrap();
    assert_eq!(old.read(9, 12, NONE).unwrap(), [&[7][..], &[1; 10], &[7]].concat());
}
