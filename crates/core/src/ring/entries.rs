//! The submission queue entries of operations on files.

use super::{FileOp, RingFile};
use io_uring::{opcode, squeue, types};

/// Build the entry for `op`; a macro, because descriptor and registered index differ in type
/// and the crate's trait for both is sealed.
macro_rules! file_entry {
    ($fd:expr, $op:expr, $memory:expr) => {
        match $op {
            FileOp::Read { segment, offset } => match $memory {
                Some(place) => opcode::ReadFixed::new($fd, segment.ptr, segment.len as u32, place)
                    .offset(offset)
                    .build(),
                None => {
                    opcode::Read::new($fd, segment.ptr, segment.len as u32).offset(offset).build()
                }
            },
            FileOp::Write { segment, offset, dsync } if $memory.is_some() => {
                let place = $memory.unwrap_or_default();
                opcode::WriteFixed::new($fd, segment.ptr, segment.len as u32, place)
                    .offset(offset)
                    .rw_flags(sync_flag(dsync))
                    .build()
            }
            FileOp::Write { segment, offset, dsync } => {
                opcode::Write::new($fd, segment.ptr, segment.len as u32)
                    .offset(offset)
                    .rw_flags(sync_flag(dsync))
                    .build()
            }
            FileOp::Readv { iovecs, count, offset } => {
                opcode::Readv::new($fd, iovecs, count).offset(offset).build()
            }
            FileOp::Writev { iovecs, count, offset, dsync } => {
                opcode::Writev::new($fd, iovecs, count)
                    .offset(offset)
                    .rw_flags(sync_flag(dsync))
                    .build()
            }
            FileOp::Splice { pipe, offset, length } => {
                opcode::Splice::new($fd, offset as i64, types::Fd(pipe), -1, length)
                    .flags(libc::SPLICE_F_NONBLOCK)
                    .build()
            }
            FileOp::DataSync => opcode::Fsync::new($fd).flags(types::FsyncFlags::DATASYNC).build(),
            FileOp::Allocate { mode, offset, length } => {
                opcode::Fallocate::new($fd, length).offset(offset).mode(mode).build()
            }
            FileOp::Discard { .. } => unreachable!("a helper does it"),
        }
    };
}

fn sync_flag(dsync: bool) -> i32 {
    if dsync { libc::RWF_DSYNC } else { 0 }
}

pub(super) fn file_entry(file: RingFile, op: FileOp, memory: Option<u16>) -> squeue::Entry {
    match file {
        RingFile::Fd(fd) => file_entry!(types::Fd(fd), op, memory),
        RingFile::Registered(index) => file_entry!(types::Fixed(index), op, memory),
    }
}
