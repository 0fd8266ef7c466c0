//! A client that changes its buffer during a write, as guests and mapped files do. The stored data
//! may be old or new, but parity must fit it.

use super::stand::{Stand, is_idle};
use super::*;
use crate::layout::Level;
use drystone_core::{Bio, IoBuf, Sector};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The client's memory, which changes during the write. The buffer must stay alive.
struct Client {
    memory: File,
    at: u64,
    bytes: usize,
    value: u8,
}

impl Client {
    fn of(buf: &IoBuf) -> Self {
        let memory = File::options().write(true).open("/proc/self/mem").unwrap();
        Client { memory, at: buf.as_ptr().addr() as u64, bytes: buf.len(), value: 100 }
    }

    fn change(&mut self) {
        self.value += 1;
        self.memory.write_all_at(&vec![self.value; self.bytes], self.at).unwrap();
    }
}

/// Write, and change the buffer at each step of the write. Returns the values that it had.
fn write(stand: &mut Stand, sector: u64, bytes: usize) -> std::ops::RangeInclusive<u8> {
    let buf = IoBuf::from_slice(&vec![100; bytes]);
    let mut client = Client::of(&buf);
    stand.memories.iter().for_each(|memory| memory.hold());
    stand.begin(Bio::write(Sector(sector), buf));
    let mut ended = None;
    for round in 0.. {
        assert!(round < 40, "it does not end");
        for member in 0..stand.memories.len() {
            client.change();
            stand.memories[member].release();
            stand.turn();
            ended = ended.or_else(|| stand.ended());
            stand.memories[member].hold();
            if let Some(ended) = &ended {
                assert!(ended.status.is_ok());
                stand.memories.iter().for_each(|memory| memory.release());
                return 100..=client.value;
            }
        }
    }
    unreachable!()
}

#[test]
fn parity_fits_a_buffer_that_changes_meanwhile() {
    let row = 3 * (64 << 10);
    for (level, disks) in [(Level::Raid5, 4), (Level::Raid5, 7), (Level::Raid6, 7)] {
        let mut stand = Stand::new(disks);
        stand.create(level, true);
        stand.start();
        assert!(stand.write(0, 1, 1 << 20).is_ok());
        let mut changed = 0;
        for (n, bytes) in [512, 4096, 8192, row, 4096].into_iter().enumerate() {
            let sector = n as u64 * 384;
            let values = write(&mut stand, sector, bytes);
            let (status, data) = stand.read(sector, bytes);
            assert!(status.is_ok() && data.iter().all(|byte| values.contains(byte)));
            changed += usize::from(data.iter().any(|byte| *byte != 100));
        }
        assert!(changed > 0, "what was written late is what the buffer held by then");
        stand.command(Command::Sync(SyncAction::Check)).unwrap();
        assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
        stand.stop();
    }
}
