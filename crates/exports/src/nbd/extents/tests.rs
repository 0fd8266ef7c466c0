use proptest::prelude::*;

use super::*;

const TAG: ReplyTag = ReplyTag { cookie: 1, offset: 0 };

fn extent(length: u64, data: bool, zero: bool) -> Extent {
    Extent { length, data, zero }
}

fn query(length: u64, req_one: bool, min_block: u32) -> StatusQuery {
    StatusQuery { length, req_one, min_block }
}

/// The descriptors of a chunk as (length, status), read back from its bytes.
fn status(
    style: ReplyStyle,
    extents: &[Extent],
    query: StatusQuery,
    room: usize,
) -> Vec<(u64, u32)> {
    let mut out = vec![0xee; style.status_bytes(room)];
    let total = style.status_chunk(&mut out, TAG, 7, extents, query, true);
    let payload = &out[style.chunk_header_bytes()..total];
    assert_eq!(payload[..4], [0, 0, 0, 7], "context id");
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    if style == ReplyStyle::Extended {
        let found: Vec<_> = payload[8..]
            .chunks(16)
            .map(|d| (u64::from_be_bytes(d[..8].try_into().unwrap()), word(&d[12..])))
            .collect();
        assert_eq!(word(&payload[4..8]) as usize, found.len(), "descriptor count");
        return found;
    }
    payload[4..].chunks(8).map(|d| (word(&d[..4]).into(), word(&d[4..]))).collect()
}

#[test]
fn neighbours_of_one_status_are_joined_and_the_end_is_cut() {
    let extents = [
        extent(4096, true, false),
        extent(0, false, true),
        extent(4096, true, false),
        extent(1 << 20, false, true),
    ];
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        let found = status(style, &extents, query(16384, false, 1), 9);
        assert_eq!(found, [(8192, 0), (8192, 3)]);
        assert_eq!(status(style, &extents, query(16384, true, 1), 9), [(8192, 0)]);
        assert_eq!(status(style, &extents, query(4096, true, 1), 9), [(4096, 0)]);
        assert_eq!(status(style, &extents, query(16384, false, 1), 1), [(8192, 0)], "room for one");
    }
}

#[test]
fn all_four_states_have_their_flags() {
    let extents = [
        extent(512, true, false),
        extent(512, false, false),
        extent(512, true, true),
        extent(512, false, true),
    ];
    let found = status(ReplyStyle::Structured, &extents, query(2048, false, 512), 9);
    assert_eq!(found, [(512, 0), (512, 1), (512, 2), (512, 3)]);
}

#[test]
fn no_extents_are_one_unknown_one() {
    let found = status(ReplyStyle::Structured, &[], query(8192, false, 512), 3);
    assert_eq!(found, [(8192, 0)]);
    let none = [extent(0, false, true)];
    assert_eq!(status(ReplyStyle::Extended, &none, query(8192, true, 512), 3), [(8192, 0)]);
}

#[test]
fn a_block_with_several_states_gets_what_is_true_of_all_of_it() {
    let extents = [extent(700, false, true), extent(100, true, true), extent(2000, true, false)];
    let found = status(ReplyStyle::Structured, &extents, query(2048, false, 512), 9);
    assert_eq!(found, [(512, 3), (1536, 0)]);
    let ends_early = [extent(700, false, true)];
    let found = status(ReplyStyle::Structured, &ends_early, query(2048, false, 512), 9);
    assert_eq!(found, [(512, 3), (512, 0)]);
}

#[test]
fn lengths_beyond_32_bits_are_cut_to_whole_blocks_or_sent_whole() {
    let extents = [extent(5 << 32, false, true), extent(4096, true, false)];
    let all = query((5 << 32) + 4096, false, 4096);
    let found = status(ReplyStyle::Structured, &extents, all, 9);
    assert_eq!(found[0], (0xffff_f000, 3));
    assert_eq!(found.iter().map(|(length, _)| length).sum::<u64>(), all.length);
    assert!(found.iter().all(|(length, _)| length.is_multiple_of(4096)));
    let found = status(ReplyStyle::Extended, &extents, all, 9);
    assert_eq!(found, [(5 << 32, 3), (4096, 0)]);
}

#[test]
#[should_panic(expected = "no room")]
fn no_room_for_a_descriptor_is_the_drivers_mistake() {
    status(ReplyStyle::Structured, &[], query(512, false, 1), 0);
}

fn any_extents() -> impl Strategy<Value = Vec<Extent>> {
    let one = (0_u64..5000, any::<bool>(), any::<bool>());
    proptest::collection::vec(
        one.prop_map(|(length, data, zero)| extent(length, data, zero)),
        0..12,
    )
}

/// True if the byte at `at` is zero for sure, by the plainest reading of the extents.
fn is_zero(extents: &[Extent], at: u64) -> bool {
    let mut end = 0;
    extents.iter().any(|extent| {
        let start = end;
        end += extent.length;
        extent.zero && (start..end).contains(&at)
    })
}

proptest! {
    #[test]
    fn descriptors_keep_the_rules(
        extents in any_extents(), blocks in 1_u64..40, req_one: bool, shift in 0_u32..11,
        room in 1_usize..9, extended: bool,
    ) {
        let style = if extended { ReplyStyle::Extended } else { ReplyStyle::Structured };
        let query = query(blocks << shift, req_one, 1 << shift);
        let found = status(style, &extents, query, room);
        prop_assert!(!found.is_empty() && found.len() <= room);
        prop_assert!(!req_one || found.len() == 1);
        prop_assert!(found.windows(2).all(|pair| pair[0].1 != pair[1].1), "{:?}", found);
        let mut at = 0;
        for (length, status) in found {
            prop_assert!(length > 0 && length.is_multiple_of(1 << shift));
            if status & 2 != 0 {
                prop_assert!((at..at + length).step_by(61).all(|byte| is_zero(&extents, byte)));
            }
            at += length;
        }
        prop_assert!(at <= query.length);
    }
}
