//! Tests of the oracle: each rule by itself.

use super::*;

/// An oracle of 16 sectors with what a user does in one call.
struct User {
    oracle: Oracle,
    data: Vec<u8>,
}

impl User {
    fn new() -> Self {
        User { oracle: Oracle::new(3, 16), data: vec![0; 16 * SECTOR] }
    }

    fn write(&mut self, range: Range<u64>) -> WriteId {
        let id = self.oracle.write_begins(range, false);
        self.oracle.write_ends(id, Ended::Ok);
        id
    }

    fn flush(&mut self) {
        let id = self.oracle.flush_begins();
        self.oracle.flush_ends(id, true);
    }

    /// Puts what a write leaves into the volume.
    fn put(&mut self, range: Range<u64>, id: WriteId) {
        let bytes = range.start as usize * SECTOR..range.end as usize * SECTOR;
        fill(&mut self.data[bytes], 3, range.start, id.stamp());
    }

    fn read(&mut self, range: Range<u64>) -> Result<(), Box<Violation>> {
        let id = self.oracle.read_begins(range.clone());
        let bytes = range.start as usize * SECTOR..range.end as usize * SECTOR;
        self.oracle.read_ends_ok(id, &self.data[bytes])
    }
}

#[test]
fn a_write_that_was_acknowledged_must_be_read() {
    let mut user = User::new();
    user.read(0..16).unwrap();
    let a = user.write(2..4);
    assert_eq!(user.read(0..16).unwrap_err().sector, 2);
    user.put(2..4, a);
    user.read(0..16).unwrap();
    let b = user.write(3..5);
    let wrong = user.read(0..16).unwrap_err();
    assert_eq!((wrong.sector, wrong.found_write.unwrap().state), (3, State::Superseded));
    user.put(3..5, b);
    user.read(0..16).unwrap();
}

#[test]
fn what_is_not_durable_may_be_lost_and_stays_as_it_was_read() {
    let mut user = User::new();
    let a = user.write(0..2);
    user.put(0..2, a);
    user.flush();
    let b = user.write(0..2);
    user.oracle.power_cut();
    user.put(0..1, b);
    user.read(0..2).unwrap();
    user.put(0..2, b);
    assert_eq!(user.read(0..2).unwrap_err().sector, 1, "a was read there");
    user.data.fill(0);
    assert_eq!(user.read(0..2).unwrap_err().sector, 0);
}
