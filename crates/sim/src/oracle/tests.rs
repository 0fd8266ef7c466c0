//! Tests of the oracle: each rule by itself.

use super::*;

/// An oracle of 16 sectors, with calls that do a user's whole operation.
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

    /// Puts the content that a write leaves into the volume.
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

#[test]
fn a_failed_write_may_have_happened_until_another_is_acknowledged() {
    let mut user = User::new();
    let a = user.write(0..2);
    let failed = user.oracle.write_begins(0..2, false);
    user.oracle.write_ends(failed, Ended::Failed);
    user.put(0..1, a);
    user.put(1..2, failed);
    user.read(0..2).unwrap();
    user.put(0..1, failed);
    let wrong = user.read(0..2).unwrap_err();
    assert_eq!(wrong.found_write.as_ref().unwrap().state, State::SettledOtherwise);
    assert!(wrong.to_string().contains("an earlier read found something else"), "{wrong}");
    let b = user.write(0..2);
    assert_eq!(user.read(0..2).unwrap_err().sector, 0);
    user.put(0..2, b);
    user.read(0..2).unwrap();
}

#[test]
fn nothing_acknowledged_is_lost_with_the_process() {
    let mut user = User::new();
    let a = user.write(0..1);
    let cut_off = user.oracle.write_begins(0..2, false);
    let read = user.oracle.read_begins(0..1);
    user.oracle.process_killed();
    user.oracle.write_ends(cut_off, Ended::Ok);
    assert_eq!(user.oracle.read_ends_ok(read, &[7; SECTOR]), Ok(()), "it ended with its process");
    assert_eq!(user.read(0..1).unwrap_err().candidates.len(), 3);
    user.put(0..1, a);
    user.put(1..2, cut_off);
    user.read(0..2).unwrap();
}

#[test]
fn a_discard_leaves_zeroes_or_what_was_there() {
    let mut user = User::new();
    let a = user.write(0..4);
    user.put(0..4, a);
    for _ in 0..3 {
        let discard = user.oracle.discard_begins(0..4);
        user.oracle.write_ends(discard, Ended::Ok);
    }
    user.read(0..4).unwrap();
    user.data[..SECTOR].fill(0);
    user.read(0..4).unwrap();
    user.put(0..4, a);
    user.read(0..4).unwrap();
    assert!(user.oracle.counts().candidates_max <= 3, "many discards are as one");
    user.data[..SECTOR].fill(9);
    assert!(user.read(0..4).is_err());
}

#[test]
fn a_volume_grows_with_zeroes_or_anything() {
    let mut user = User::new();
    user.oracle.grow(18, Grown::Zeroes);
    user.oracle.grow(20, Grown::Anything);
    user.data.resize(20 * SECTOR, 0);
    user.data[18 * SECTOR..].fill(0x77);
    user.read(0..20).unwrap();
    let a = user.write(17..19);
    assert_eq!(user.read(0..20).unwrap_err().sector, 17);
    user.put(17..19, a);
    user.read(0..20).unwrap();
}

#[test]
fn every_byte_of_a_stamp_counts() {
    let mut data = vec![0; 2 * SECTOR];
    fill(&mut data, 3, 7, 42);
    assert_eq!(identify(&data[SECTOR..], 3, 8), Content::Stamp { id: 42 });
    for (volume, sector) in [(3, 7), (4, 8)] {
        let elsewhere = Content::Elsewhere { id: 42, volume: 3, sector: 8 };
        assert_eq!(identify(&data[SECTOR..], volume, sector), elsewhere);
    }
    for at in 0..SECTOR {
        let mut wrong = data[..SECTOR].to_vec();
        wrong[at] ^= 1;
        assert!(!stamp::is_stamp(&wrong, 3, 7, 42), "byte {at}");
        assert!(matches!(identify(&wrong, 3, 7), Content::Foreign { .. }), "byte {at}");
    }
    let mut torn = data[..SECTOR].to_vec();
    torn[256..].fill(0);
    let text = identify(&torn, 3, 7).to_string();
    assert!(text.starts_with("32 of 64 words of write 42 of sector 7 of volume 3"), "{text}");
}

#[test]
fn what_was_read_from_another_place_is_told() {
    let mut user = User::new();
    let a = user.write(0..2);
    fill(&mut user.data[..2 * SECTOR], 3, 1, a.stamp());
    let text = user.read(0..2).unwrap_err().to_string();
    assert!(text.contains("write 1 of sector 1 of volume 3: a wrong place"), "{text}");
    assert!(text.contains("write 1 (its stamp), begun 1, ended 2 Ok, not durable"), "{text}");
}

#[test]
fn what_is_told_to_be_zeroes_is_judged_as_a_read_of_them() {
    let mut oracle = Oracle::new(1, 8);
    let write = oracle.write_begins(2..4, false);
    oracle.write_ends(write, Ended::Ok);
    let told = oracle.read_begins(0..8);
    assert!(oracle.read_tells_zeroes(told, &[0..2, 4..8]).is_ok());
    let told = oracle.read_begins(0..8);
    assert!(oracle.read_tells_zeroes(told, &[0..2, 2..3]).is_err(), "sector 2 was written");
    let told = oracle.read_begins(3..8);
    assert!(oracle.read_tells_zeroes(told, &[]).is_ok(), "nothing is told of the rest");
}
