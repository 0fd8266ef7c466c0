//! The bounds of a request and of an answer.

use drystone_exports::nbd::proto::{CommandFlags, ErrorCode};
use drystone_exports::nbd::server::Settings;
use drystone_testkit::nbd::ClientError;

use crate::disk::{Disk, PIECE};
use crate::served::{Served, export};

const NONE: CommandFlags = CommandFlags::empty();
const MIB: usize = 1 << 20;

/// nbd-tester-client's integrity test of large requests sends 42 MiB at once. Many clients go up to
/// 64 MiB.
#[test]
fn requests_of_up_to_64_mib_are_served_by_default() {
    let served = Served::disk(Disk::new(65 * MIB, 512), 1);
    let mut client = served.client(0);
    for length in [42 * MIB, 64 * MIB] {
        let data: Vec<u8> = (0..length).map(|at| (at / 4099) as u8).collect();
        client.write(4096, &data, NONE).unwrap();
        assert!(client.read(4096, length as u64, NONE).unwrap() == data, "{length} bytes");
    }
    let refused = client.read(0, 64 * MIB as u64 + 1, NONE);
    assert_eq!(refused.unwrap_err().failure(), Some(ErrorCode::Einval));
    client.read(0, 512, NONE).expect("the connection goes on");
}

#[test]
fn a_stack_can_say_what_the_longest_request_is() {
    let settings = Settings { max_request: 2 << 20, ..Settings::default() };
    let served = Served::new(vec![export("vol", Disk::new(4 * MIB, 512))], 1, settings);
    let mut client = served.client(0);
    client.read(0, 2 << 20, NONE).unwrap();
    let too_long = [
        client.read(0, (2 << 20) + 1, NONE).map(drop),
        client.write(0, &vec![1; 2 * MIB + 1], NONE),
    ];
    for refused in too_long.map(Result::unwrap_err) {
        assert_eq!(refused.failure(), Some(ErrorCode::Einval), "{refused}");
    }
    assert!(client.read(0, 2 << 20, NONE).unwrap().iter().all(|byte| *byte == 0));
}

/// Every other piece of the disk is a hole. The next request asks for the rest.
#[test]
fn an_answer_has_at_most_256_extents() {
    let disk = Disk::new(1000 * PIECE, 512);
    for piece in disk.bytes.lock().unwrap().chunks_mut(PIECE).step_by(2) {
        piece.fill(7);
    }
    let served = Served::disk(disk, 1);
    let mut negotiation = served.negotiate(0);
    negotiation.structured_replies().unwrap();
    negotiation.set_contexts("vol", &["base:allocation"]).unwrap();
    let mut client = negotiation.go("vol", &[]).unwrap();
    let mut told = |at: usize| -> Result<usize, ClientError> {
        let length = ((1000 - at) * PIECE) as u64;
        let extents = client.block_status((at * PIECE) as u64, length, NONE)?.remove(0).1;
        for (n, extent) in extents.iter().enumerate() {
            let state = if (at + n).is_multiple_of(2) { 0 } else { 3 };
            assert_eq!(*extent, (PIECE as u64, state), "extent {n} from piece {at} on");
        }
        Ok(extents.len())
    };
    assert_eq!(told(0).unwrap(), 256);
    assert_eq!(told(1).unwrap(), 256);
    assert_eq!(told(900).unwrap(), 100);
}
