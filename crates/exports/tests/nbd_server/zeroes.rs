//! Requests for zeroes, on devices that can and cannot.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use drystone_core::{BioFlags, Op};
use drystone_exports::nbd::proto::{Command, CommandFlags, TransmissionFlags};
use drystone_exports::nbd::server::Settings;

use crate::disk::{Disk, Handle};
use crate::served::{Served, export, until};
use crate::unaligned::Release;

const SIZE: usize = 4 << 20;

fn disk(change: impl FnOnce(&mut Disk)) -> Arc<Disk> {
    disk_of(SIZE, change)
}

fn disk_of(bytes: usize, change: impl FnOnce(&mut Disk)) -> Arc<Disk> {
    let mut disk = Disk::new(bytes, 512);
    change(Arc::get_mut(&mut disk).unwrap());
    disk.bytes.lock().unwrap().fill(7);
    disk
}

fn zero_most_of(disk: &Arc<Disk>) {
    let served = Served::disk(disk.clone(), 1);
    let mut client = served.client(0);
    let length = SIZE as u64 - (1 << 20) - 512;
    client.command(Command::WriteZeroes, 512, length, CommandFlags::FUA).unwrap();
    let bytes = disk.bytes.lock().unwrap();
    let end = 512 + length as usize;
    assert!(bytes[..512].iter().all(|byte| *byte == 7), "before the range");
    assert!(bytes[512..end].iter().all(|byte| *byte == 0), "the range");
    assert!(bytes[end..].iter().all(|byte| *byte == 7), "behind the range");
}

#[test]
fn a_device_that_writes_no_zeroes_is_written_them() {
    let disk = disk(|disk| disk.zeroes = false);
    let flags = export("vol", disk.clone()).info(&Settings::default()).flags;
    assert!(flags.contains(TransmissionFlags::SEND_WRITE_ZEROES), "offered all the same");
    assert!(!flags.contains(TransmissionFlags::SEND_FAST_ZERO), "it is not fast");
    zero_most_of(&disk);
    let counts = disk.counts.lock().unwrap();
    let written = counts.iter().filter(|(op, flags, _)| {
        assert!(*op == Op::Write && flags.contains(BioFlags::FUA), "{op:?} {flags:?}");
        true
    });
    assert_eq!(written.count(), 3, "pieces of 1 MiB");
}

#[test]
fn a_device_that_cannot_after_all_is_written_them_too() {
    let disk = disk(|disk| disk.claims_to_zero = true);
    zero_most_of(&disk);
    assert_eq!((disk.count(Op::WriteZeroes), disk.count(Op::Write)), (1, 3));
}

/// A client that asks for fast zeroes wants a refusal rather than slow ones, also once it is known
/// that there are none.
#[test]
fn zeroes_that_have_to_be_fast_are_never_written() {
    let disk = disk(|disk| disk.claims_to_zero = true);
    let served = Served::disk(disk.clone(), 1);
    let mut client = served.client(0);
    client.command(Command::WriteZeroes, 0, 512, CommandFlags::empty()).unwrap();
    let writes = disk.count(Op::Write);
    let error = client.command(Command::WriteZeroes, 0, SIZE as u64, CommandFlags::FAST_ZERO);
    assert!(error.unwrap_err().to_string().contains("95: Operation not supported"));
    assert_eq!(disk.count(Op::Write), writes);
}

#[test]
fn a_device_that_can_is_asked_once() {
    let disk = disk(|_| {});
    zero_most_of(&disk);
    assert_eq!((disk.count(Op::WriteZeroes), disk.count(Op::Write)), (1, 0));
    assert!(Handle(disk).0.zeroes);
}

/// A client that goes, and a server that stops, do not wait for the rest.
#[test]
fn zeroing_ends_early_where_nobody_waits_for_it() {
    // Whatever the machine is doing, it is not done with all of this when they go.
    let bytes = 64 << 20;
    let disk = disk_of(bytes, |disk| disk.zeroes = false);
    disk.delay_ns.store(200_000_000, Relaxed);
    let served = Served::disk(disk.clone(), 1);
    let mut client = served.client(0);
    client.send(Command::WriteZeroes, CommandFlags::empty(), 0, bytes as u64, &[]).unwrap();
    let mut other = served.client(0);
    other.send(Command::WriteZeroes, CommandFlags::FUA, 0, bytes as u64, &[]).unwrap();
    let begun = |fua| {
        let counts = disk.counts.lock().unwrap();
        counts.iter().any(|(_, flags, _)| flags.contains(BioFlags::FUA) == fua)
    };
    while !begun(false) || !begun(true) {
        std::thread::yield_now();
    }
    drop(client);
    drop(served);
    assert!(disk.count(Op::Write) < 128, "{} pieces of two requests", disk.count(Op::Write));
    let error = other.receive().unwrap();
    assert_eq!(error.error.map(|(code, _)| code), Some(108), "ESHUTDOWN");
}

/// The same where a device zeroes by itself, piece by piece.
#[test]
fn a_device_zeroes_no_further_where_nobody_waits_for_it() {
    let bytes = 16 << 20;
    let disk = disk_of(bytes, |disk| {
        (disk.zeroes_in_pieces, disk.discards) = (true, true);
    });
    disk.holds.store(true, SeqCst);
    let served = Served::disk(disk.clone(), 1);
    let sends = |command, seen: usize| {
        let mut client = served.client(0);
        client.send(command, CommandFlags::empty(), 0, bytes as u64, &[]).unwrap();
        until("the device has it", || disk.counts.lock().unwrap().len() == seen);
        client
    };
    for (number, command) in [(1, Command::WriteZeroes), (2, Command::Trim)] {
        drop(sends(command, number));
        let cut = || disk.cut_short.load(Relaxed) == number as u64;
        until("it ends when its client has gone", cut);
    }
    let _release = Release(disk.clone());
    let mut waits = [sends(Command::WriteZeroes, 3), sends(Command::Trim, 4)];
    let stop = std::thread::spawn(move || drop(served));
    for client in &mut waits {
        let error = client.receive().unwrap().error.map(|(code, _)| code);
        assert_eq!(error, Some(108), "ESHUTDOWN, as not all of it is zero");
    }
    stop.join().unwrap();
}

#[test]
fn where_one_may_connect_no_more_are_asked_for() {
    let disk = disk(|_| {});
    let told = |settings: Settings| {
        export("vol", disk.clone())
            .info(&settings)
            .flags
            .contains(TransmissionFlags::CAN_MULTI_CONN)
    };
    assert!(told(Settings::default()));
    assert!(!told(Settings { max_connections: 1, ..Settings::default() }));
    assert!(!told(Settings { max_connections_per_client: 1, ..Settings::default() }));
}
