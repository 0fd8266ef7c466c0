//! The structures of linux/fuse.h (7.42), field by field, under the kernel's names.
//!
//! Invariants:
//! * A structure has no padding that it does not name, so its bytes are exactly its fields.
//! * Numbers are in the byte order of the machine, since kernel and server are on the same.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Defines structures of the wire, and compares their sizes with those in fuse.h at compile time.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

wire! {
    /// `struct fuse_in_header`.
    InHeader: 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// `struct fuse_out_header`.
    OutHeader: 16 { len: u32, error: i32, unique: u64, }
    /// `struct fuse_init_in` as far as all kernels send it.
    InitIn: 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    /// The fields behind them if `flags` has `FUSE_INIT_EXT`, as far as they are used.
    InitInExt: 4 { flags2: u32, }
    /// `struct fuse_init_out`.
    InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, unused: [u32; 6],
    }
    /// `struct fuse_setattr_in`.
    SetattrIn: 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    /// `struct fuse_open_in`.
    OpenIn: 8 { flags: u32, open_flags: u32, }
    /// `struct fuse_read_in`, and of a folder.
    ReadIn: 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// `struct fuse_write_in`.
    WriteIn: 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// `struct fuse_release_in`.
    ReleaseIn: 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// `struct fuse_fsync_in`.
    FsyncIn: 16 { fh: u64, fsync_flags: u32, padding: u32, }
    /// `struct fuse_interrupt_in`.
    InterruptIn: 8 { unique: u64, }
    /// `struct fuse_fallocate_in`.
    FallocateIn: 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// `struct fuse_lseek_in`.
    LseekIn: 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// `struct fuse_attr`.
    Attr: 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    /// `struct fuse_attr_out`.
    AttrOut: 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    /// `struct fuse_entry_out`.
    EntryOut: 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    /// `struct fuse_open_out`.
    OpenOut: 16 { fh: u64, open_flags: u32, backing_id: i32, }
    /// `struct fuse_write_out`.
    WriteOut: 8 { size: u32, padding: u32, }
    /// `struct fuse_lseek_out`.
    LseekOut: 8 { offset: u64, }
    /// `struct fuse_kstatfs`, which is all of `struct fuse_statfs_out`.
    StatfsOut: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// `struct fuse_dirent` without the name.
    Dirent: 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// `struct fuse_uring_ent_in_out`.
    UringEntInOut: 32 {
        flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64,
    }
    /// `struct fuse_uring_cmd_req`.
    UringCmdReq: 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
}

/// Reads a structure from the beginning of `bytes`; `None` if they are too few.
#[inline]
pub(crate) fn read<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// Writes a structure to the beginning of `out`. Returns its length.
#[inline]
pub(crate) fn write<T: IntoBytes + Immutable>(out: &mut [u8], value: &T) -> usize {
    let written = value.write_to_prefix(out);
    debug_assert!(written.is_ok(), "the room for a reply is known beforehand");
    size_of::<T>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_in_order_and_short_bytes_are_refused() {
        let bytes: Vec<u8> = (0..40).collect();
        let header: InHeader = read(&bytes).expect("40 bytes");
        assert_eq!(header.len.to_ne_bytes(), [0, 1, 2, 3]);
        assert_eq!(header.unique.to_ne_bytes(), [8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(header.pid.to_ne_bytes(), [32, 33, 34, 35]);
        assert!(read::<InHeader>(&bytes[..39]).is_none());
        // An address that is not aligned.
        let next: InHeader = read(&[&[9], &bytes[..]].concat()[1..]).expect("40 bytes");
        assert_eq!(next.unique, header.unique);
        let mut out = [0xff; 17];
        assert_eq!(write(&mut out, &OutHeader { len: 16, error: -5, unique: 7 }), 16);
        assert_eq!(out[..8], [16_u32.to_ne_bytes(), (-5_i32).to_ne_bytes()].concat());
        assert_eq!((&out[8..16], out[16]), (&7_u64.to_ne_bytes()[..], 0xff));
    }
}
