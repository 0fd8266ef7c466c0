//! Tables of device-mapper: the good ones with every sector's place, the bad ones with the words in
//! which Linux refuses them. They are the shared input of all who are compared with the kernel.

/// The members: name, sectors. Sizes differ and two of them are no multiple of a page.
pub const MEMBERS: [(&str, u64); 4] = [
    ("/dev/disk/m0", 4096),
    ("/dev/disk/m1", 3001),
    ("/dev/disk/m2", 2500),
    ("/dev/disk/m3", 1503),
];

/// A member of the same kind with logical blocks of 4096 bytes: name, sectors.
pub const MEMBER_4K: (&str, u64) = ("/dev/disk/k0", 4096);

/// Tables that the kernel takes, each of whose sectors is one of [`MEMBERS`].
pub const MAPPED: [&str; 18] = [
    // One member, whole and in part.
    "0 4096 linear /dev/disk/m0 0",
    "0 1 linear /dev/disk/m1 3000",
    "0 777 linear /dev/disk/m1 1313",
    // Members one after another, one twice, and backwards.
    "0 4096 linear /dev/disk/m0 0\n4096 3001 linear /dev/disk/m1 0\n7097 2500 linear /dev/disk/m2 \
     0\n9597 1503 linear /dev/disk/m3 0",
    "0 1 linear /dev/disk/m3 7\n1 2 linear /dev/disk/m2 9\n3 3 linear /dev/disk/m1 11\n6 1000 \
     linear /dev/disk/m0 13",
    "0 100 linear /dev/disk/m0 50\n100 100 linear /dev/disk/m1 0\n200 100 linear /dev/disk/m0 0",
    "0 8 linear /dev/disk/m0 24\n8 8 linear /dev/disk/m0 16\n16 8 linear /dev/disk/m0 8\n24 8 \
     linear /dev/disk/m0 0",
    // Stripes: chunks that are powers of two and that are not, of one sector and of the whole.
    "0 8 striped 1 4 /dev/disk/m0 5",
    "0 2000 striped 2 1 /dev/disk/m0 0 /dev/disk/m1 0",
    "0 4096 striped 2 8 /dev/disk/m0 0 /dev/disk/m1 0",
    "0 4096 striped 2 128 /dev/disk/m1 1 /dev/disk/m0 2000",
    "0 6002 striped 2 3001 /dev/disk/m0 1095 /dev/disk/m1 0",
    "0 2100 striped 3 7 /dev/disk/m0 0 /dev/disk/m1 1 /dev/disk/m2 1800",
    "0 3000 striped 3 20 /dev/disk/m2 0 /dev/disk/m1 2001 /dev/disk/m0 3096",
    "0 6000 striped 4 12 /dev/disk/m0 1 /dev/disk/m1 2 /dev/disk/m2 4 /dev/disk/m3 3",
    "0 5632 striped 4 64 /dev/disk/m3 95 /dev/disk/m2 1092 /dev/disk/m1 0 /dev/disk/m0 2688",
    // One member may be several stripes.
    "0 600 striped 3 10 /dev/disk/m0 0 /dev/disk/m0 200 /dev/disk/m0 400",
    // Targets of both kinds in one table; a stripe counts from the beginning of its own line.
    "0 5 linear /dev/disk/m3 1498\n5 42 striped 2 3 /dev/disk/m0 1 /dev/disk/m2 2\n47 90 striped 3 \
     6 /dev/disk/m1 0 /dev/disk/m2 30 /dev/disk/m0 90\n137 64 linear /dev/disk/m1 64",
];

/// Tables that the kernel refuses, with the message of its log; or that dmsetup refuses, which
/// reads starts, lengths and the targets' names.
pub const REFUSED: &[(&str, &str)] = &[
    // The lines of a table.
    ("0 100 linear /dev/disk/m0 0\n101 100 linear /dev/disk/m1 0", "linear: Gap in table"),
    ("0 100 linear /dev/disk/m0 0\n99 100 linear /dev/disk/m1 0", "linear: Gap in table"),
    ("100 100 linear /dev/disk/m0 0\n0 100 linear /dev/disk/m1 0", "linear: Gap in table"),
    ("1 100 linear /dev/disk/m0 0", "linear: Gap in table"),
    ("0 0 linear /dev/disk/m0 0", "zero-length target"),
    ("0 18446744073709551615 linear /dev/disk/m0 0", "too large device"),
    ("0 8 lineal /dev/disk/m0 0", "lineal: unknown target type"),
    // Members.
    ("0 8 linear /dev/disk/m9 0", "linear: Device lookup failed"),
    ("0 4097 linear /dev/disk/m0 0", "too small for target: start=0, len=4097, dev_size=4096"),
    ("0 1 linear /dev/disk/m0 4096", "too small for target: start=4096, len=1, dev_size=4096"),
    (
        "0 1 linear /dev/disk/m0 18446744073709551615",
        "too small for target: start=18446744073709551615",
    ),
    (
        "0 16 striped 2 4 /dev/disk/m0 4089 /dev/disk/m1 0",
        "too small for target: start=4089, len=8, dev_size=4096",
    ),
    (
        "0 16 striped 2 4 /dev/disk/m0 0 /dev/disk/m1 2994",
        "too small for target: start=2994, len=8, dev_size=3001",
    ),
    // Arguments of linear: a sector is decimal digits and nothing else.
    ("0 8 linear", "linear: Invalid argument count"),
    ("0 8 linear /dev/disk/m0", "linear: Invalid argument count"),
    ("0 8 linear /dev/disk/m0 0 0", "linear: Invalid argument count"),
    ("0 8 linear /dev/disk/m0 -1", "linear: Invalid device sector"),
    ("0 8 linear /dev/disk/m0 +1", "linear: Invalid device sector"),
    ("0 8 linear /dev/disk/m0 0x8", "linear: Invalid device sector"),
    ("0 8 linear /dev/disk/m0 8x", "linear: Invalid device sector"),
    // Arguments of striped.
    ("0 8 striped", "striped: Not enough arguments"),
    ("0 8 striped 0 4 /dev/disk/m0 0", "striped: Invalid stripe count"),
    ("0 8 striped -1 4 /dev/disk/m0 0 /dev/disk/m1 0", "striped: Invalid stripe count"),
    ("0 8 striped 2 0 /dev/disk/m0 0 /dev/disk/m1 0", "striped: Invalid chunk_size"),
    ("0 8 striped 2 4294967296 /dev/disk/m0 0 /dev/disk/m1 0", "striped: Invalid chunk_size"),
    (
        "0 9 striped 2 4 /dev/disk/m0 0 /dev/disk/m1 0",
        "striped: Target length not divisible by number of stripes",
    ),
    (
        "0 12 striped 2 4 /dev/disk/m0 0 /dev/disk/m1 0",
        "striped: Target length not divisible by chunk size",
    ),
    ("0 8 striped 2 4 /dev/disk/m0 0", "striped: Not enough destinations specified"),
    (
        "0 8 striped 2 4 /dev/disk/m0 0 /dev/disk/m1 0 /dev/disk/m1 8",
        "striped: Not enough destinations specified",
    ),
    (
        "0 8 striped 2 4 /dev/disk/m0 4s /dev/disk/m1 0",
        "striped: Couldn't parse stripe destination",
    ),
    // Members with larger blocks, which are those of the whole target: every line of the table must
    // begin and end between blocks.
    ("0 8 linear /dev/disk/k0 1", "start=1 not aligned to h/w logical block size 4096"),
    (
        "0 7 linear /dev/disk/k0 0\n7 9 linear /dev/disk/m0 0",
        "len=7 not aligned to h/w logical block size 4096",
    ),
    (
        "0 9 linear /dev/disk/m0 0\n9 8 linear /dev/disk/k0 0",
        "table line 1 (start sect 9 len 8) not aligned to h/w logical block size 4096",
    ),
    (
        "0 18 striped 2 9 /dev/disk/k0 0 /dev/disk/m0 0",
        "len=9 not aligned to h/w logical block size 4096",
    ),
    (
        "0 16 striped 2 8 /dev/disk/k0 0 /dev/disk/m0 5",
        "start=5 not aligned to h/w logical block size 4096",
    ),
    // Words that are missing or too much.
    ("0", "Invalid format on line 1"),
    ("0 8", "Invalid format on line 1"),
    ("0 8 zero 1", "zero: No arguments required"),
    ("0 8 striped 2", "striped: Not enough arguments"),
    ("0 8 striped 2 4", "striped: Not enough destinations specified"),
    ("0 8 striped 2 4 /dev/disk/m0 0 /dev/disk/m1", "striped: Not enough destinations specified"),
    // Starts and lengths.
    ("x 8 zero", "Invalid format on line 1"),
    ("0 x zero", "Invalid format on line 1"),
    ("0x0 8 zero", "Invalid format on line 1"),
    ("0 8.5 zero", ".5: unknown target type"),
    ("0 8 ZERO", "ZERO: unknown target type"),
    ("0 0 zero", "zero-length target"),
    ("0 -8 zero", "too large device"),
    ("-1 8 zero", "too large device"),
    ("0 18014398509481984 zero", "too large device"),
    ("0 36028797018963967 zero", "too large device"),
    ("0 9223372036854775807 zero", "too large device"),
    ("0 9223372036854775808 zero", "too large device"),
    ("0 18446744073709551616 zero", "too large device"),
    ("18446744073709551616 8 zero", "too large device"),
    ("0 18014398509481976 zero\n18014398509481976 8 zero", "too large device"),
    ("0 8 zero\n0 8 zero", "zero: Gap in table"),
    // Offsets beyond the end of every device.
    (
        "0 8 linear /dev/disk/m0 18014398509481984",
        "too small for target: start=18014398509481984, len=8, dev_size=4096",
    ),
    (
        "0 8 linear /dev/disk/m0 9223372036854775808",
        "too small for target: start=9223372036854775808, len=8, dev_size=4096",
    ),
    (
        "0 8 linear /dev/disk/m0 18446744073709551608",
        "too small for target: start=18446744073709551608, len=8, dev_size=4096",
    ),
    ("0 8 linear /dev/disk/m0 1e3", "linear: Invalid device sector"),
    ("0 8 linear /dev/disk/m0 8.0", "linear: Invalid device sector"),
    // Stripes and chunks near the bounds of 32 bits.
    ("0 8 striped 4294967298 4 /dev/disk/m0 0 /dev/disk/m1 0", "striped: Invalid stripe count"),
    ("0 8 striped 2 4294967300 /dev/disk/m0 0 /dev/disk/m1 0", "striped: Invalid chunk_size"),
    ("0 8 striped 2 4x /dev/disk/m0 0 /dev/disk/m1 0", "striped: Invalid chunk_size"),
    (
        "0 8 striped 2 4294967295 /dev/disk/m0 0 /dev/disk/m1 0",
        "striped: Target length not divisible by chunk size",
    ),
    (
        "0 8 striped 2 2147483648 /dev/disk/m0 0 /dev/disk/m1 0",
        "striped: Target length not divisible by chunk size",
    ),
    (
        "0 8 striped 2 4 /dev/disk/m0 18446744073709551615 /dev/disk/m1 0",
        "too small for target: start=18446744073709551615, len=4, dev_size=4096",
    ),
    // Stripes as short as half a block.
    (
        "0 8 striped 2 4 /dev/disk/k0 0 /dev/disk/k0 8",
        "len=4 not aligned to h/w logical block size 4096",
    ),
    // delay, flakey and log-writes.
    ("0 8 delay", "delay: Requires exactly 3, 6 or 9 arguments"),
    ("0 8 delay /dev/disk/m0 0 10 /dev/disk/m1 0", "delay: Requires exactly 3, 6 or 9 arguments"),
    ("0 8 delay /dev/disk/m0 0 -1", "delay: Invalid delay"),
    ("0 8 delay /dev/disk/m0 x 0", "delay: Invalid device sector"),
    ("0 8 delay /dev/disk/m9 0 0", "delay: Device lookup failed"),
    (
        "0 8 delay /dev/disk/m0 0 10 /dev/disk/m1 2999 10",
        "too small for target: start=2999, len=8, dev_size=3001",
    ),
    ("0 8 flakey /dev/disk/m0 0 1", "flakey: Invalid argument count"),
    ("0 8 flakey /dev/disk/m0 0 x 1", "flakey: Invalid up interval"),
    ("0 8 flakey /dev/disk/m0 0 0 0", "flakey: Total (up + down) interval is zero"),
    ("0 8 flakey /dev/disk/m0 0 4294967295 1", "flakey: Total (up + down) interval is zero"),
    ("0 8 flakey /dev/disk/m0 0 4294967295 4294967295", "flakey: Interval overflow"),
    ("0 8 flakey /dev/disk/m0 0 1 1 2 drop_writes", "flakey: Invalid number of feature args"),
    ("0 8 flakey /dev/disk/m0 0 1 1 1 bogus", "flakey: Unrecognised flakey feature requested"),
    (
        "0 8 flakey /dev/disk/m0 0 1 1 2 error_reads error_reads",
        "flakey: Feature error_reads duplicated",
    ),
    (
        "0 8 flakey /dev/disk/m0 0 1 1 2 drop_writes error_writes",
        "flakey: Feature error_writes conflicts with feature drop_writes",
    ),
    (
        "0 8 flakey /dev/disk/m0 0 1 1 6 corrupt_bio_byte 32 w 1 0 drop_writes",
        "flakey: drop_writes is incompatible with corrupt_bio_byte with the WRITE flag set",
    ),
    (
        "0 8 flakey /dev/disk/m0 0 1 1 5 corrupt_bio_byte 0 r 1 0",
        "flakey: Invalid corrupt bio byte",
    ),
    (
        "0 8 flakey /dev/disk/m0 0 1 1 2 random_read_corrupt 1000000001",
        "flakey: Invalid random corrupt argument",
    ),
    ("0 8 log-writes /dev/disk/m0", "log-writes: Invalid argument count"),
    ("0 8 log-writes /dev/disk/m9 /dev/disk/m1", "log-writes: Device lookup failed"),
    ("0 8 log-writes /dev/disk/m0 /dev/disk/m9", "log-writes: Log device lookup failed"),
];

/// Tables that look wrong or odd and that the kernel takes nevertheless, with the last word of the
/// output of `dmsetup table`. Ours are the same tables, with the same output.
pub const TAKEN: &[(&str, &str)] = &[
    // Decimal, not octal.
    ("0 8 linear /dev/disk/m0 010", "10"),
    ("00 08 linear /dev/disk/m0 00000000000000000000000000000000000008", "8"),
    ("  0   8  linear   /dev/disk/m0   3  ", "3"),
    ("# comment\n0 8 linear /dev/disk/m0 3 # another\n\n# the last", "3"),
    // Two stripes lie on the same sectors.
    ("0 8 striped 2 4 /dev/disk/m0 4 /dev/disk/m0 4", "4"),
    ("0 8 striped 02 04 /dev/disk/m0 0 /dev/disk/m1 0", "0"),
    // A line of blocks of 4096 bytes after one of 512.
    ("0 8 linear /dev/disk/m0 0\n8 8 linear /dev/disk/k0 8", "8"),
    // The last sectors of a member.
    ("0 8 linear /dev/disk/k0 4088", "4088"),
    // The longest, in one line and in two.
    ("0 18014398509481983 zero", "zero"),
    ("0 18014398509481976 zero\n18014398509481976 7 error", "error"),
    ("0 8 delay /dev/disk/m0 0 4294967295", "4294967295"),
    ("0 8 delay /dev/disk/m0 0 1 /dev/disk/m1 2 3 /dev/disk/m2 4 5", "5"),
    ("0 8 flakey /dev/disk/m0 0 0 1", "error_writes"),
    ("0 8 flakey /dev/disk/m0 0 1 1 0", "error_writes"),
    ("0 8 flakey /dev/disk/m0 0 1 1 2 random_read_corrupt 0", "error_writes"),
    ("0 8 flakey /dev/disk/m0 0 1 1 3 random_read_corrupt 5 error_reads", "5"),
    ("0 8 flakey /dev/disk/m0 0 1 1 3 random_write_corrupt 5 drop_writes", "5"),
    ("0 8 flakey /dev/disk/m0 0 1 1 6 error_reads corrupt_bio_byte 32 r 1 0", "0"),
];

/// Tables that Linux takes and Drystone refuses, with the last word of the output of
/// `dmsetup table`, and Drystone's message. Nobody means these.
pub const TAKEN_BY_LINUX_ONLY: &[(&str, &str, &str)] = &[
    // Linux' reading of numbers wraps around: these are 0.
    (
        "0 1 linear /dev/disk/m0 18446744073709551616",
        "0",
        "`18446744073709551616` is not an offset in sectors",
    ),
    (
        "0 8 striped 2 4 /dev/disk/m0 0 /dev/disk/m1 36893488147419103232",
        "0",
        "`36893488147419103232` is not an offset in sectors",
    ),
    ("0 8 delay /dev/disk/m0 0 4294967296", "0", "`4294967296` is not a delay in milliseconds"),
    (
        "0 8 flakey /dev/disk/m0 0 4294967296 1 1 drop_writes",
        "drop_writes",
        "`4294967296` is not a time in seconds",
    ),
    // dmsetup alone reads starts and lengths with a sign.
    ("+0 +8 zero", "zero", "`+0` is not a start in sectors"),
    // Words that Linux leaves out.
    ("0 8 error 1", "error", "`1` is too much: error has no arguments"),
    (
        "0 8 flakey /dev/disk/m0 0 1 1 1 drop_writes error_writes",
        "drop_writes",
        "`1` means 1 words, but 2 follow",
    ),
    // The chunk is smaller than a block of the first member, so no block could be read; the log
    // warns of it.
    (
        "0 16 striped 2 4 /dev/disk/k0 0 /dev/disk/m0 8",
        "8",
        "a chunk of 4 sectors is not whole blocks of 4096 bytes",
    ),
    // A mask of Linux's own flags of a bio.
    (
        "0 8 flakey /dev/disk/m0 0 1 1 5 corrupt_bio_byte 32 w 1 8",
        "8",
        "`8` is a mask of Linux's own flags",
    ),
];
