//! Each command, in each style of replies.

use drystone_exports::nbd::proto::{InfoCode, TransmissionFlags};
use drystone_exports::nbd::{
    BlockSizes, CloseReason, Command, CommandFlags, ErrorCode, ExportInfo, ReplyStyle,
};
use drystone_testkit::nbd::{ClientError, Connection, Negotiation, RawRequest};

use crate::support::{Server, server};

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];
const NONE: CommandFlags = CommandFlags::empty();
const SIZE: u64 = 8 << 20;

fn export() -> ExportInfo {
    let mut export = ExportInfo::new("vol", SIZE);
    export.flags |= TransmissionFlags::SEND_FAST_ZERO;
    export
}

fn connect_to(server: Server, style: ReplyStyle) -> Connection<Server> {
    let mut negotiation = Negotiation::new(server).unwrap();
    match style {
        ReplyStyle::Simple => {}
        ReplyStyle::Structured => negotiation.structured_replies().unwrap(),
        ReplyStyle::Extended => negotiation.extended_headers().unwrap(),
    }
    if style != ReplyStyle::Simple {
        negotiation.set_contexts("", &["base:allocation"]).unwrap();
    }
    negotiation.go("", &[InfoCode::BlockSize]).unwrap()
}

fn connect(style: ReplyStyle) -> Connection<Server> {
    connect_to(server(vec![export()]), style)
}

fn failure<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Option<ErrorCode> {
    result.unwrap_err().failure()
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) | 1).collect()
}

#[test]
fn data_written_is_read_back_whatever_the_pieces() {
    for style in STYLES {
        for cut in [1, 7, 28, 33, 4096, usize::MAX] {
            let mut connection = connect_to(server(vec![export()]).with_cut(cut), style);
            let data = pattern(3000, 5);
            connection.write(1000, &data, CommandFlags::FUA).unwrap();
            connection.command(Command::Flush, 0, 0, NONE).unwrap();
            assert_eq!(connection.read(1000, 3000, NONE).unwrap(), data);
            assert_eq!(connection.read(999, 2, NONE).unwrap(), [0, data[0]]);
            let requests = &connection.stream().requests;
            assert_eq!(requests[0].flags, CommandFlags::FUA);
            assert_eq!(requests[1].command, Command::Flush);
        }
    }
}

#[test]
fn many_requests_in_one_buffer_are_all_answered() {
    for style in STYLES {
        let mut connection = connect(style);
        let mut bytes = Vec::new();
        for cookie in 0..50 {
            let flags = if style == ReplyStyle::Extended { 1 << 5 } else { 0 };
            let write = RawRequest { flags, command: 1, cookie, offset: cookie * 9, length: 9 };
            bytes.extend(write.encode(style));
            bytes.extend(pattern(9, cookie as u8));
        }
        std::io::Write::write_all(connection.stream(), &bytes).unwrap();
        assert_eq!(connection.stream().requests.len(), 50);
        let mut replies = vec![0; 50 * style.success_bytes()];
        std::io::Read::read_exact(connection.stream(), &mut replies).unwrap();
        assert_eq!(connection.read(49 * 9, 9, NONE).unwrap(), pattern(9, 49));
    }
}

#[test]
fn trim_zeroes_and_cache_work_and_fast_zero_may_fail() {
    for style in STYLES {
        let mut connection = connect(style);
        connection.write(0, &pattern(8192, 1), NONE).unwrap();
        connection.command(Command::Trim, 512, 1024, CommandFlags::FUA).unwrap();
        connection.command(Command::WriteZeroes, 2048, 100, CommandFlags::NO_HOLE).unwrap();
        connection.command(Command::Cache, 0, 8192, NONE).unwrap();
        let data = connection.read(0, 8192, NONE).unwrap();
        assert!(data[512..1536].iter().chain(&data[2048..2148]).all(|byte| *byte == 0));
        assert_eq!(data.iter().filter(|byte| **byte == 0).count(), 1124);
        let fast = connection.command(Command::WriteZeroes, 0, 512, CommandFlags::FAST_ZERO);
        assert_eq!(failure(fast), Some(ErrorCode::Enotsup));
    }
}

#[test]
fn sparse_reads_come_in_data_and_holes_unless_df() {
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        let mut connection = connect(style);
        connection.stream().sparse_reads = true;
        connection.write(4096, &pattern(4096, 3), NONE).unwrap();
        let reply = connection.call(Command::Read, NONE, 0, 16384, &[]).unwrap();
        assert_eq!(reply.content, [(0, 4096, true), (4096, 4096, false), (8192, 8192, true)]);
        assert_eq!(reply.data[4096..8192], pattern(4096, 3));
        assert!(reply.data[8192..].iter().all(|byte| *byte == 0));
        let whole = connection.call(Command::Read, CommandFlags::DF, 0, 16384, &[]).unwrap();
        assert_eq!(whole.content, [(0, 16384, false)]);
        assert_eq!(whole.data, reply.data);
    }
    let mut simple = connect(ReplyStyle::Simple);
    simple.stream().sparse_reads = true;
    assert_eq!(simple.read(0, 4096, NONE).unwrap(), [0; 4096]);
}

#[test]
fn block_status_reports_extents() {
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        let mut connection = connect(style);
        connection.write(4096, &pattern(4096, 3), NONE).unwrap();
        let all = connection.block_status(0, SIZE, NONE).unwrap();
        assert_eq!(all, [(1, vec![(4096, 3), (4096, 0), (SIZE - 8192, 3)])]);
        let one = connection.block_status(1024, SIZE - 1024, CommandFlags::REQ_ONE).unwrap();
        assert_eq!(one, [(1, vec![(3072, 3)])]);
    }
}

#[test]
fn block_status_needs_a_selected_context() {
    let mut simple = connect(ReplyStyle::Simple);
    assert_eq!(failure(simple.block_status(0, 512, NONE)), Some(ErrorCode::Einval));
}

#[test]
fn block_status_may_name_its_contexts_with_extended_headers() {
    for cut in [1, usize::MAX] {
        let mut connection = connect_to(server(vec![export()]).with_cut(cut), ReplyStyle::Extended);
        let told = connection.description().flags;
        assert!(told.contains(TransmissionFlags::BLOCK_STATUS_PAYLOAD));
        let status = connection.block_status_of(0, 4096, &[1]).unwrap();
        assert_eq!(status, [(1, vec![(4096, 3)])]);
        for wrong in [&[][..], &[2], &[1, 1], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]] {
            let result = connection.block_status_of(0, 4096, wrong);
            assert_eq!(failure(result), Some(ErrorCode::Einval), "{wrong:?}");
        }
        let beyond = connection.block_status_of(0, SIZE + 512, &[1]);
        assert_eq!(failure(beyond), Some(ErrorCode::Einval));
        connection.block_status_of(0, 4096, &[1]).unwrap();
    }
}

#[test]
fn extended_requests_reach_beyond_32_bits() {
    let mut export = export();
    export.size_bytes = 1 << 50;
    let mut connection = connect_to(server(vec![export]), ReplyStyle::Extended);
    let huge = 5 << 40;
    connection.command(Command::WriteZeroes, 1 << 20, huge, NONE).unwrap();
    connection.command(Command::Trim, 0, huge, NONE).unwrap();
    connection.command(Command::Cache, 0, huge, NONE).unwrap();
    connection.write(huge, &[1], NONE).unwrap();
    let status = connection.block_status(0, 1 << 50, NONE).unwrap();
    assert_eq!(status, [(1, vec![(huge, 3), (512, 0), ((1 << 50) - huge - 512, 3)])]);
    let lengths: Vec<u64> = connection.stream().requests.iter().map(|r| r.length).collect();
    assert_eq!(lengths, [huge, huge, huge, 1, 1 << 50]);
    let read = connection.read(0, 1 << 33, NONE);
    assert_eq!(failure(read), Some(ErrorCode::Einval), "longer than the maximum payload");
}

#[test]
fn ranges_beyond_the_end_are_refused_and_the_connection_lives_on() {
    for style in STYLES {
        let mut connection = connect(style);
        let ends = [(SIZE, 512), (SIZE - 511, 512), (u64::MAX, 512), (u64::MAX - 511, 512)];
        for (offset, length) in ends {
            let mut command = |command| {
                let payload = if command == Command::Write { vec![9; 512] } else { vec![] };
                failure(connection.call(command, NONE, offset, length, &payload))
            };
            assert_eq!(command(Command::Read), Some(ErrorCode::Einval));
            assert_eq!(command(Command::Write), Some(ErrorCode::Enospc));
            assert_eq!(command(Command::WriteZeroes), Some(ErrorCode::Enospc));
            assert_eq!(command(Command::Trim), Some(ErrorCode::Einval));
            assert_eq!(command(Command::Cache), Some(ErrorCode::Einval));
            assert_eq!(command(Command::BlockStatus), Some(ErrorCode::Einval));
        }
        connection.write(SIZE - 512, &[7; 512], NONE).unwrap();
        assert_eq!(connection.read(SIZE - 1, 1, NONE).unwrap(), [7]);
    }
}

#[test]
fn read_only_exports_refuse_writes_with_eperm() {
    for style in STYLES {
        let mut export = export();
        export.flags |= TransmissionFlags::READ_ONLY;
        let mut connection = connect_to(server(vec![export]), style);
        assert_eq!(failure(connection.write(0, &[1; 700], NONE)), Some(ErrorCode::Eperm));
        for command in [Command::Trim, Command::WriteZeroes] {
            let result = connection.command(command, 0, 512, NONE);
            assert_eq!(failure(result), Some(ErrorCode::Eperm));
        }
        assert_eq!(connection.read(0, 3, NONE).unwrap(), [0; 3]);
        assert_eq!(connection.stream().requests.len(), 1);
    }
}

#[test]
fn payloads_are_bounded_and_any_byte_can_be_addressed() {
    for style in STYLES {
        let mut export = export();
        export.block_sizes = BlockSizes { min: 512, preferred: 4096, max_payload: 1 << 20 };
        let mut connection = connect_to(server(vec![export]), style);
        for (offset, length) in [(1, 512), (0, 511), (512, 513)] {
            connection.write(offset, &vec![3; length as usize], NONE).unwrap();
            assert!(connection.read(offset, length, NONE).unwrap().iter().all(|byte| *byte == 3));
        }
        let long = (1 << 20) + 512;
        assert_eq!(failure(connection.read(0, long, NONE)), Some(ErrorCode::Einval));
        if style != ReplyStyle::Simple {
            let result = connection.read(0, long, CommandFlags::DF);
            assert_eq!(failure(result), Some(ErrorCode::Eoverflow));
        }
        let data = vec![1; long as usize];
        assert_eq!(failure(connection.write(0, &data, NONE)), Some(ErrorCode::Einval));
        connection.command(Command::Trim, 0, 4 << 20, NONE).unwrap();
        connection.write(0, &data[..1 << 20], NONE).unwrap();
        assert_eq!(connection.read(512, 512, NONE).unwrap(), [1; 512]);
    }
}

#[test]
fn flags_that_do_not_belong_are_refused() {
    for style in STYLES {
        let mut connection = connect(style);
        let wrong = [
            (Command::Read, CommandFlags::NO_HOLE),
            (Command::Read, CommandFlags::from_bits_retain(1 << 15)),
            (Command::Flush, CommandFlags::DF),
            (Command::Trim, CommandFlags::NO_HOLE),
            (Command::Cache, CommandFlags::REQ_ONE),
            (Command::WriteZeroes, CommandFlags::REQ_ONE),
        ];
        for (command, flags) in wrong {
            let length = if command == Command::Flush { 0 } else { 512 };
            let result = connection.command(command, 0, length, flags);
            assert_eq!(failure(result), Some(ErrorCode::Einval), "{command:?} {flags:?}");
        }
        let write = connection.write(0, &[1; 512], CommandFlags::DF);
        assert_eq!(failure(write), Some(ErrorCode::Einval));
        connection.read(0, 512, CommandFlags::FUA).unwrap();
        let last = *connection.stream().requests.last().unwrap();
        assert_eq!(last.flags, NONE, "FUA on a read is accepted and dropped");
        let df = connection.read(0, 512, CommandFlags::DF);
        assert_eq!(df.is_ok(), style != ReplyStyle::Simple, "DF needs chunks");
    }
}

#[test]
fn commands_and_flags_that_were_not_offered_are_refused() {
    for style in STYLES {
        let mut export = export();
        export.flags = TransmissionFlags::empty();
        let mut connection = connect_to(server(vec![export]), style);
        for command in [Command::Flush, Command::Trim, Command::Cache, Command::WriteZeroes] {
            let length = if command == Command::Flush { 0 } else { 512 };
            let result = connection.command(command, 0, length, NONE);
            assert_eq!(failure(result), Some(ErrorCode::Einval), "{command:?}");
        }
        let fua = connection.write(0, &[1; 512], CommandFlags::FUA);
        assert_eq!(failure(fua), Some(ErrorCode::Einval));
        connection.write(0, &[1; 512], NONE).unwrap();
    }
}

#[test]
fn empty_ranges_and_flushes_with_a_range_are_refused() {
    for style in STYLES {
        let mut connection = connect(style);
        for command in [Command::Read, Command::Trim, Command::WriteZeroes, Command::Cache] {
            let result = connection.command(command, 0, 0, NONE);
            assert_eq!(failure(result), Some(ErrorCode::Einval));
        }
        assert_eq!(failure(connection.write(0, &[], NONE)), Some(ErrorCode::Einval));
        let flush = connection.command(Command::Flush, 512, 512, NONE);
        assert_eq!(failure(flush), Some(ErrorCode::Einval));
        connection.command(Command::Flush, 0, 0, NONE).unwrap();
    }
}

fn raw(flags: u16, command: u16, length: u64) -> RawRequest {
    RawRequest { flags, command, cookie: 0xc00c1e, offset: 0, length }
}

/// Sends a header and payload as they are; the error of the reply.
fn raw_failure(
    connection: &mut Connection<Server>,
    request: RawRequest,
    payload: &[u8],
) -> Option<u32> {
    connection.send_raw(Command::Flush, &request, payload).unwrap();
    let reply = connection.receive().unwrap();
    assert_eq!(reply.cookie, 0xc00c1e);
    reply.error.map(|(code, _)| code)
}

#[test]
fn unknown_commands_are_refused() {
    for style in STYLES {
        let mut connection = connect(style);
        for command in [8, 99, u16::MAX] {
            assert_eq!(raw_failure(&mut connection, raw(0, command, 512), &[]), Some(22));
        }
        connection.read(0, 512, NONE).unwrap();
    }
}

#[test]
fn the_payload_flag_is_honoured_with_extended_headers_only() {
    let payload_flag = CommandFlags::PAYLOAD_LEN.bits();
    let mut connection = connect(ReplyStyle::Extended);
    let data = [7; 700];
    for command in [0, 3, 4, 99] {
        let request = raw(payload_flag, command, 700);
        assert_eq!(raw_failure(&mut connection, request, &data), Some(22), "skips the payload");
    }
    assert_eq!(raw_failure(&mut connection, raw(0, 1, 512), &[]), Some(22), "a write without");
    connection.read(0, 512, NONE).unwrap();

    let mut compact = connect(ReplyStyle::Structured);
    assert_eq!(raw_failure(&mut compact, raw(payload_flag, 0, 512), &[]), Some(22));
    assert_eq!(raw_failure(&mut compact, raw(payload_flag, 1, 700), &data), Some(22));
    compact.read(0, 512, NONE).unwrap();
}

#[test]
fn payloads_too_long_to_skip_close_and_tolerable_ones_do_not() {
    let mut export = export();
    export.block_sizes.max_payload = 1 << 20;
    for style in STYLES {
        let flags = if style == ReplyStyle::Extended { 1 << 5 } else { 0 };
        let mut connection = connect_to(server(vec![export.clone()]), style);
        let tolerated = vec![1; 32 << 20];
        let request = raw(flags, 1, 32 << 20);
        assert_eq!(raw_failure(&mut connection, request, &tolerated), Some(22));
        let request = raw(flags, 1, (32 << 20) + 1);
        connection.send_raw(Command::Write, &request, &[]).unwrap();
        let closed = connection.stream().closed;
        assert_eq!(closed, Some(CloseReason::PayloadTooLong((32 << 20) + 1)));
    }
}

#[test]
fn bad_magic_closes() {
    for (style, other) in
        [(ReplyStyle::Simple, ReplyStyle::Extended), (ReplyStyle::Extended, ReplyStyle::Simple)]
    {
        let mut connection = connect(style);
        let bytes = [raw(0, 3, 0).encode(other), vec![0; 8]].concat();
        std::io::Write::write_all(connection.stream(), &bytes).unwrap();
        let closed = connection.stream().closed;
        assert!(matches!(closed, Some(CloseReason::BadRequestMagic(_))), "{closed:?}");
    }
}

#[test]
fn disconnect_ends_without_a_reply() {
    for style in STYLES {
        let mut server = connect(style).disconnect().unwrap();
        assert_eq!(server.closed, Some(CloseReason::Disconnected));
        assert!(server.closed.unwrap().is_polite());
        let mut byte = [0];
        assert_eq!(std::io::Read::read(&mut server, &mut byte).unwrap(), 0);
    }
}

#[test]
fn errors_carry_words_where_the_style_allows() {
    for style in STYLES {
        let Err(ClientError::Failed { message, .. }) = connect(style).read(SIZE, 1, NONE) else {
            panic!("a read beyond the end succeeded");
        };
        assert_eq!(message.is_empty(), style == ReplyStyle::Simple);
    }
}
