//! The types that C and Rust share, as `include/drystone.h` has them.

use std::ffi::c_void;

use drystone_core::op::BioFlags;
use drystone_core::{DeviceInfo, Op};

/// The version of the interface: `DRYSTONE_ABI_VERSION`.
pub const ABI_VERSION: u32 = 1;

/// As a timeout, for as long as it takes: `DRYSTONE_FOREVER`.
pub const FOREVER: u64 = u64::MAX;

/// One I/O: `struct drystone_io`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Io {
    /// Comes back with the completion.
    pub tag: u64,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The data, or an array of `vectors` pieces.
    pub buffer: *mut c_void,
    /// Number of the device in the context.
    pub device: u32,
    /// Pieces; 0 if `buffer` is the data itself.
    pub vectors: u32,
    /// One of [`OPS`].
    pub op: u16,
    /// Some of [`FLAGS`].
    pub flags: u16,
    /// One of [`PRIORITY_CLASSES`].
    pub priority_class: u8,
    /// 0 to 7.
    pub priority_level: u8,
    /// 0.
    pub reserved: u16,
}

/// The way an I/O ended: `struct drystone_completion`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Completion {
    /// The I/O's.
    pub tag: u64,
    /// 0 or a negative errno.
    pub result: i32,
    /// 0.
    pub reserved: u32,
}

/// The description of a device: `struct drystone_device_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Info {
    /// Bytes.
    pub size: u64,
    /// Most bytes of a discard; 0 is none.
    pub max_discard: u64,
    /// Most bytes of a write zeroes; 0 is none.
    pub max_write_zeroes: u64,
    /// Bytes.
    pub logical_block: u32,
    /// Bytes.
    pub physical_block: u32,
    /// Bytes.
    pub io_min: u32,
    /// Bytes; 0 is none.
    pub io_opt: u32,
    /// Bytes; 1 is any.
    pub memory_alignment: u32,
    /// Some of [`FEATURES`].
    pub features: u32,
}

/// Operations by the names of the header.
pub const OPS: [(&str, Op); 5] = [
    ("DRYSTONE_READ", Op::Read),
    ("DRYSTONE_WRITE", Op::Write),
    ("DRYSTONE_FLUSH", Op::Flush),
    ("DRYSTONE_DISCARD", Op::Discard),
    ("DRYSTONE_WRITE_ZEROES", Op::WriteZeroes),
];

/// Flags by the names of the header.
pub const FLAGS: [(&str, BioFlags); 10] = [
    ("DRYSTONE_FUA", BioFlags::FUA),
    ("DRYSTONE_PREFLUSH", BioFlags::PREFLUSH),
    ("DRYSTONE_SYNC", BioFlags::SYNC),
    ("DRYSTONE_NOWAIT", BioFlags::NOWAIT),
    ("DRYSTONE_POLLED", BioFlags::POLLED),
    ("DRYSTONE_BACKGROUND", BioFlags::BACKGROUND),
    ("DRYSTONE_NOUNMAP", BioFlags::NOUNMAP),
    ("DRYSTONE_FAST_ZERO", BioFlags::FAST_ZERO),
    ("DRYSTONE_NOMERGE", BioFlags::NOMERGE),
    ("DRYSTONE_STABLE", BioFlags::STABLE),
];

/// Priority classes by the names of the header; their places are their numbers.
pub const PRIORITY_CLASSES: [&str; 4] = [
    "DRYSTONE_PRIORITY_NONE",
    "DRYSTONE_PRIORITY_RT",
    "DRYSTONE_PRIORITY_BE",
    "DRYSTONE_PRIORITY_IDLE",
];

/// Features by the names of the header; the place is the number of the bit.
pub const FEATURES: [&str; 5] = [
    "DRYSTONE_READ_ONLY",
    "DRYSTONE_WRITE_CACHE",
    "DRYSTONE_HAS_FUA",
    "DRYSTONE_ROTATIONAL",
    "DRYSTONE_HAS_FAST_ZERO",
];

// Programs were compiled with these.
const _: () = assert!(size_of::<Io>() == 48 && align_of::<Io>() == 8);
const _: () = assert!(size_of::<Completion>() == 16 && size_of::<Info>() == 48);

impl From<&DeviceInfo> for Info {
    fn from(device: &DeviceInfo) -> Self {
        let limits = &device.limits;
        let features =
            [limits.read_only, limits.write_cache, limits.fua, limits.rotational, limits.fast_zero];
        let bit = |(place, on): (usize, &bool)| u32::from(*on) << place;
        Info {
            size: device.size_bytes,
            max_discard: limits.max_discard_bytes,
            max_write_zeroes: limits.max_write_zeroes_bytes,
            logical_block: limits.logical_block_size,
            physical_block: limits.physical_block_size,
            io_min: limits.io_min,
            io_opt: limits.io_opt,
            memory_alignment: limits.memory_alignment,
            features: features.iter().enumerate().map(bit).sum(),
        }
    }
}
