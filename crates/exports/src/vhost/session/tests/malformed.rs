//! Payloads and descriptors that do not belong to their message, with the sentences.

use super::super::super::proto::Request;
use super::{Case, FrontEnd, addresses, check, config, inflight, numbers, region, table, words};

#[test]
fn payloads_and_descriptors_of_another_shape() {
    use Request as R;
    let two_regions = table(&[(0, 0, 1, 0), (1, 1, 1, 0)]);
    let cases: &[Case] = &[
        (R::GetFeatures, vec![0], &[], "GET_FEATURES has 1 bytes of payload: it needs 0"),
        (R::GetQueueNum, vec![], &[1], "GET_QUEUE_NUM came with 1 descriptors: it needs 0"),
        (R::SetFeatures, vec![0; 7], &[], "SET_FEATURES has 7 bytes of payload: it needs 8"),
        (R::SetVringNum, vec![0; 9], &[], "SET_VRING_NUM has 9 bytes of payload: it needs 8"),
        (R::SetVringAddr, vec![0; 8], &[], "SET_VRING_ADDR has 8 bytes of payload: it needs 40"),
        (R::SetMemTable, vec![1], &[], "SET_MEM_TABLE has 1 bytes of payload: it needs 8"),
        (
            R::SetMemTable,
            two_regions[..71].to_vec(),
            &[1, 2],
            "SET_MEM_TABLE has 71 bytes of payload: it needs 72",
        ),
        (R::SetMemTable, two_regions, &[1], "SET_MEM_TABLE came with 1 descriptors: it needs 2"),
        (
            R::SetMemTable,
            words(&[33, 0]),
            &[],
            "SET_MEM_TABLE has 33 regions: at most 32 fit, and ADD_MEM_REG adds more",
        ),
        (
            R::AddMemReg,
            region((0, 0, 1, 0)),
            &[],
            "ADD_MEM_REG came with 0 descriptors: it needs 1",
        ),
        (
            R::RemMemReg,
            region((0, 0, 1, 0)),
            &[1, 2],
            "REM_MEM_REG came with 2 descriptors: it needs 1",
        ),
        (
            R::AddMemReg,
            region((16, 32, 0, 48)),
            &[1],
            "ADD_MEM_REG: a region of 0x0 bytes at guest 0x10, user 0x20, file offset 0x30 is \
             empty or passes 2^64",
        ),
        (
            R::SetVringKick,
            numbers(&[0x1200]),
            &[1],
            "SET_VRING_KICK has 0x1200: only bits 0 to 7 (the queue) and 8 (no descriptor) exist",
        ),
        (
            R::SetVringCall,
            numbers(&[0x100]),
            &[1],
            "SET_VRING_CALL came with 1 descriptors: it needs 0",
        ),
        (R::SetVringErr, numbers(&[0]), &[], "SET_VRING_ERR came with 0 descriptors: it needs 1"),
        (
            R::SetVringAddr,
            addresses(0, 2, 0),
            &[],
            "SET_VRING_ADDR has flags 0x2: only bit 0 (log) exists",
        ),
        (
            R::SetLogBase,
            numbers(&[0, 1]),
            &[1],
            "SET_LOG_BASE: an area of 0x0 bytes at offset 0x1 is empty or passes 2^64",
        ),
        (
            R::SetInflightFd,
            inflight(2, u64::MAX - 1, 1, 1),
            &[1],
            "SET_INFLIGHT_FD: an area of 0x2 bytes at offset 0xfffffffffffffffe is empty or \
             passes 2^64",
        ),
        (
            R::GetInflightFd,
            vec![0; 21],
            &[],
            "GET_INFLIGHT_FD has 21 bytes of payload: it needs 20",
        ),
        (
            R::GetConfig,
            config(255, 2, 0, &[]),
            &[],
            "GET_CONFIG: 2 bytes at 255 of the configuration space: only bytes 0 to 255 can be \
             named",
        ),
        (
            R::GetConfig,
            config(0, 1, 2, &[]),
            &[],
            "GET_CONFIG has flags 0x2: only 0 (writable fields) and 1 (migration) exist",
        ),
        (
            R::SetConfig,
            config(32, 1, 0, &[1, 1]),
            &[],
            "SET_CONFIG has 14 bytes of payload: it needs 13",
        ),
    ];
    check(FrontEnd::negotiated, cases);
}
