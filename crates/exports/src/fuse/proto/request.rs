//! The kernel's requests.

use super::init::InitAsk;
use super::wire::{
    FallocateIn, FsyncIn, InHeader, InterruptIn, LseekIn, OpenIn, ReadIn, ReleaseIn, SetattrIn,
    WriteIn, read,
};

/// Length of the header of every request.
pub const IN_HEADER_BYTES: usize = size_of::<InHeader>();
/// Length of everything before the data of a write.
pub const WRITE_HEAD_BYTES: usize = IN_HEADER_BYTES + size_of::<WriteIn>();

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The number by which the reply names it.
    pub unique: u64,
    /// The inode it is about.
    pub node: u64,
    /// User id of the asker.
    pub uid: u32,
    /// The id of the asking thread in the PID namespace in which the mount was made; 0 if that
    /// namespace does not show it.
    pub task: u32,
    /// The operation.
    pub operation: Operation<'a>,
}

/// An operation. Offsets and lengths are bytes, and may have any value; a handle is the one that an
/// open was answered with, or anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// The inode of a name in a folder.
    Lookup {
        /// The name, without its zero.
        name: &'a [u8],
    },
    /// The kernel has forgotten an inode. Has no reply.
    Forget,
    /// The attributes of an inode.
    GetAttributes,
    /// Change attributes. Times are left out, because the server ignores them.
    SetAttributes {
        /// Other permissions.
        mode: bool,
        /// Another owner or group.
        owner: bool,
        /// Another size.
        size: Option<u64>,
        /// Through which handle the size is changed; none where the file was named by a path.
        handle: Option<u64>,
    },
    /// Open a file.
    Open {
        /// The flags of `open`.
        flags: u32,
    },
    /// Read a file.
    Read {
        /// Through which handle.
        handle: u64,
        /// From where.
        offset: u64,
        /// How much.
        length: u32,
    },
    /// Write a file. The data follows the first [`WRITE_HEAD_BYTES`] bytes, and there is as much as
    /// it says.
    Write {
        /// Through which handle.
        handle: u64,
        /// To where.
        offset: u64,
        /// How much.
        length: u32,
        /// The flags of the file ([`super::open_flags`]), and of this write.
        flags: u32,
    },
    /// The statistics that `statfs` shows.
    Statistics,
    /// A handle is closed.
    Release {
        /// Which.
        handle: u64,
    },
    /// Make a file durable.
    Sync {
        /// Through which handle.
        handle: u64,
    },
    /// The first request.
    Init(InitAsk),
    /// Open a folder.
    OpenFolder,
    /// Read a folder.
    ReadFolder {
        /// The place that an entry named as the next one; 0 is the beginning.
        offset: u64,
        /// Room for the answer.
        length: u32,
        /// With the attributes of each file.
        plus: bool,
    },
    /// A folder is closed.
    ReleaseFolder,
    /// The asker of a request was interrupted. Has no reply.
    Interrupt {
        /// The number of that request.
        unique: u64,
    },
    /// The mount ends.
    Destroy,
    /// `fallocate`.
    Allocate {
        /// Through which handle.
        handle: u64,
        /// First byte.
        offset: u64,
        /// Their number.
        length: u64,
        /// How ([`super::falloc`]).
        mode: u32,
    },
    /// `lseek` to data or a hole.
    Seek {
        /// The open file.
        handle: u64,
        /// From where.
        offset: u64,
        /// To which ([`super::seek`]).
        whence: u32,
    },
    /// Makes, removes or renames something in a folder.
    ChangeFolder,
    /// Something else.
    Unknown {
        /// Its number.
        opcode: u32,
    },
}

/// The reason why bytes are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The header is incomplete, so no answer is possible.
    Header,
    /// The request with this number is shorter than its kind is, or says another length than it
    /// has.
    Body {
        /// Its number.
        unique: u64,
    },
}

/// `setattr`: which attributes.
mod wanted {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const OWNER: u32 = 1 << 1 | 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const HANDLE: u32 = 1 << 6;
}

impl<'a> Request<'a> {
    /// Reads a request of `length` bytes, which begins with `bytes`: all of it, or, for a write, at
    /// least its first [`WRITE_HEAD_BYTES`] bytes, so that its data may lie elsewhere.
    ///
    /// # Errors
    /// When the bytes are no request.
    pub fn parse(bytes: &'a [u8], length: usize) -> Result<Self, Malformed> {
        let header: InHeader = read(bytes).ok_or(Malformed::Header)?;
        let malformed = Malformed::Body { unique: header.unique };
        if header.len as usize != length || bytes.len() > length {
            return Err(malformed);
        }
        let operation =
            read_operation(header.opcode, &bytes[IN_HEADER_BYTES..]).ok_or(malformed)?;
        if let Operation::Write { length: data, .. } = operation
            && length != WRITE_HEAD_BYTES + data as usize
        {
            return Err(malformed);
        }
        // Extensions (`total_extlen`): none that we asked for.
        let InHeader { unique, nodeid: node, uid, pid: task, .. } = header;
        Ok(Request { unique, node, uid, task, operation })
    }
}

fn read_operation(opcode: u32, body: &[u8]) -> Option<Operation<'_>> {
    Some(match opcode {
        1 => Operation::Lookup { name: name(body)? },
        2 | 42 => Operation::Forget,
        3 => Operation::GetAttributes,
        4 => set_attributes(&read(body)?),
        14 => Operation::Open { flags: read::<OpenIn>(body)?.flags },
        15 => {
            let ReadIn { fh: handle, offset, size: length, .. } = read(body)?;
            Operation::Read { handle, offset, length }
        }
        16 => {
            let WriteIn { fh: handle, offset, size: length, flags, .. } = read(body)?;
            Operation::Write { handle, offset, length, flags }
        }
        17 => Operation::Statistics,
        18 => Operation::Release { handle: read::<ReleaseIn>(body)?.fh },
        20 => Operation::Sync { handle: read::<FsyncIn>(body)?.fh },
        26 => Operation::Init(InitAsk::read(body)?),
        27 => Operation::OpenFolder,
        28 | 44 => {
            let ReadIn { offset, size: length, .. } = read(body)?;
            Operation::ReadFolder { offset, length, plus: opcode == 44 }
        }
        29 => Operation::ReleaseFolder,
        36 => Operation::Interrupt { unique: read::<InterruptIn>(body)?.unique },
        38 => Operation::Destroy,
        43 => {
            let FallocateIn { fh: handle, offset, length, mode, .. } = read(body)?;
            Operation::Allocate { handle, offset, length, mode }
        }
        46 => {
            let LseekIn { fh: handle, offset, whence, .. } = read(body)?;
            Operation::Seek { handle, offset, whence }
        }
        // Symlink, mknod, mkdir, unlink, rmdir, rename, link, create, rename2, tmpfile.
        6 | 8..=13 | 35 | 45 | 51 => Operation::ChangeFolder,
        opcode => Operation::Unknown { opcode },
    })
}

/// A name, which ends with a zero.
fn name(body: &[u8]) -> Option<&[u8]> {
    let end = body.iter().position(|byte| *byte == 0)?;
    Some(&body[..end])
}

fn set_attributes(ask: &SetattrIn) -> Operation<'static> {
    let SetattrIn { valid, fh, size, .. } = *ask;
    Operation::SetAttributes {
        mode: valid & wanted::MODE != 0,
        owner: valid & wanted::OWNER != 0,
        size: (valid & wanted::SIZE != 0).then_some(size),
        handle: (valid & wanted::HANDLE != 0).then_some(fh),
    }
}
