//! The status of an I/O. Names and numbers follow Linux's `blk_status_t`
//! (`include/linux/blk_types.h`); each status maps to one errno and back.

/// The outcome of a bio or request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Status {
    /// Done.
    #[default]
    Ok = 0,
    /// The device cannot do this operation (EOPNOTSUPP).
    NotSupported = 1,
    /// The device did not answer in time (ETIMEDOUT).
    Timeout = 2,
    /// No space left on the device below (ENOSPC).
    NoSpace = 3,
    /// The way to the device failed (ENOLINK).
    Transport = 4,
    /// The target refused for good (EREMOTEIO).
    Target = 5,
    /// Reservation conflict (EBADE).
    Reservation = 6,
    /// The medium is damaged here (ENODATA).
    Medium = 7,
    /// Integrity check failed (EILSEQ).
    Protection = 8,
    /// A system resource ran out (ENOMEM).
    Resource = 9,
    /// Anything else that went wrong (EIO).
    IoError = 10,
    /// The bio asked not to wait and would have had to (EAGAIN).
    Again = 12,
    /// The device is gone (ENODEV).
    Offline = 16,
    /// The bio makes no sense for this device (EINVAL).
    Invalid = 19,
    /// The caller may not do this, such as a write to a read-only device (EPERM).
    Permission = 20,
    /// The bio was cancelled before the driver had it (ECANCELED).
    Cancelled = 21,
}

/// Every status with its errno, the one table both directions use.
const TABLE: &[(Status, i32)] = &[
    (Status::NotSupported, libc::EOPNOTSUPP),
    (Status::Timeout, libc::ETIMEDOUT),
    (Status::NoSpace, libc::ENOSPC),
    (Status::Transport, libc::ENOLINK),
    (Status::Target, libc::EREMOTEIO),
    (Status::Reservation, libc::EBADE),
    (Status::Medium, libc::ENODATA),
    (Status::Protection, libc::EILSEQ),
    (Status::Resource, libc::ENOMEM),
    (Status::IoError, libc::EIO),
    (Status::Again, libc::EAGAIN),
    (Status::Offline, libc::ENODEV),
    (Status::Invalid, libc::EINVAL),
    (Status::Permission, libc::EPERM),
    (Status::Cancelled, libc::ECANCELED),
];

impl Status {
    /// True for [`Status::Ok`].
    #[inline]
    pub const fn is_ok(self) -> bool {
        matches!(self, Status::Ok)
    }

    /// True where the device, or the way to it, has failed; not where a bio was only refused as one
    /// that this device does not take, or was given up.
    pub const fn is_failure(self) -> bool {
        use Status::*;
        !matches!(self, Ok | NotSupported | Again | Invalid | Permission | Cancelled)
    }

    /// The status with this number, that of `status as u8`.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let known = TABLE.iter().map(|(status, _)| *status).chain([Status::Ok]);
        known.into_iter().find(|status| *status as u8 == number)
    }

    /// The errno (positive) that stands for this status; 0 for [`Status::Ok`].
    pub fn errno(self) -> i32 {
        TABLE.iter().find(|(s, _)| *s == self).map_or(0, |(_, e)| *e)
    }

    /// The status for a positive errno; unknown ones are [`Status::IoError`], 0 is
    /// [`Status::Ok`]. A full quota or file-size limit counts as no space.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            0 => Status::Ok,
            libc::EDQUOT | libc::EFBIG => Status::NoSpace,
            libc::EROFS | libc::EACCES => Status::Permission,
            e => TABLE.iter().find(|(_, t)| *t == e).map_or(Status::IoError, |(s, _)| *s),
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.errno() {
            0 => f.write_str("ok"),
            e => std::io::Error::from_raw_os_error(e).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_round_trips() {
        for (status, errno) in TABLE {
            assert_eq!(status.errno(), *errno);
            assert_eq!(Status::from_errno(*errno), *status);
            assert_eq!(Status::from_number(*status as u8), Some(*status));
        }
        assert_eq!(Status::from_errno(0), Status::Ok);
        assert_eq!(Status::from_errno(9999), Status::IoError);
        assert_eq!(Status::from_errno(libc::EDQUOT), Status::NoSpace);
    }
}
