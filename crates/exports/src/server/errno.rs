//! The error numbers that servers check or return, as Linux has them on every architecture that we
//! build for (asm-generic/errno.h).

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EINTR: i32 = 4;
pub(crate) const EIO: i32 = 5;
pub(crate) const ENXIO: i32 = 6;
pub(crate) const ENOMEM: i32 = 12;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const ENODEV: i32 = 19;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENFILE: i32 = 23;
pub(crate) const EMFILE: i32 = 24;
pub(crate) const EFBIG: i32 = 27;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const EROFS: i32 = 30;
pub(crate) const ENOSYS: i32 = 38;
pub(crate) const EPROTO: i32 = 71;
pub(crate) const EOPNOTSUPP: i32 = 95;
pub(crate) const ECONNABORTED: i32 = 103;
pub(crate) const ENOBUFS: i32 = 105;
pub(crate) const ENOTCONN: i32 = 107;
pub(crate) const ECANCELED: i32 = 125;
