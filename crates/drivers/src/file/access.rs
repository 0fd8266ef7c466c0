//! How I/O reaches a file: the size of its logical blocks, and direct I/O or the page cache.
//!
//! A block device has the logical blocks of the host, whatever the options say: it zeroes and
//! discards no smaller range. A file has blocks of 512 bytes, so that its contents mean the same on
//! every disk. Some file systems (for example on a disk of 4096-byte sectors) need larger blocks
//! for direct I/O; only a user that asks for direct I/O gets those.

use super::options::{Direct, FileOptions};
use super::system::{is_in_memory, stat};
use drystone_core::error::ErrorKind;
use drystone_core::{Error, Result};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The largest logical block that a device can have.
const BLOCK_MAX: u32 = 4096;
const SECTOR: u32 = 512;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// Bytes of a logical block.
    pub(super) block_size: u32,
    /// Alignment of memory for direct I/O; `None` means that I/O uses the page cache.
    pub(super) direct: Option<u32>,
    /// A notice of a restriction: one sentence without its subject, which is the file.
    pub(super) notice: Option<String>,
}

/// The access, or the reason why none is possible.
type Choice = std::result::Result<Access, String>;

/// The host's facts about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    /// Logical block of a block device.
    device_block: Option<u32>,
    /// The alignment that direct I/O needs, if the file system reports it.
    alignment: Option<Alignment>,
    /// True if the file system keeps its files in memory.
    in_memory: bool,
}

/// The alignment that direct I/O needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alignment {
    memory: u32,
    /// The alignment of offsets and lengths; 0 where there is no direct I/O.
    offset: u32,
}

impl Alignment {
    /// The assumption for older kernels, which report nothing: a file system may demand up to its
    /// block size.
    const UNTOLD: Alignment = Alignment { memory: 4096, offset: 4096 };
}

/// Chooses the access to the open file.
///
/// # Errors
/// One sentence that says which option is not possible for this file.
pub(super) fn choose(options: &FileOptions, fd: &OwnedFd, block_device: bool) -> Result<Access> {
    let host = Host {
        device_block: block_device.then(|| logical_block_size(fd)),
        alignment: statx_alignment(fd),
        in_memory: !block_device && is_in_memory(fd),
    };
    let chosen = match host.device_block {
        Some(block) => of_device(block, host, options),
        None => of_file(host, options),
    };
    chosen.map_err(|why| {
        Error::new(ErrorKind::NotSupported, format!("{}: {why}", options.path.display()))
    })
}

fn of_device(block: u32, host: Host, options: &FileOptions) -> Choice {
    if block > BLOCK_MAX {
        return Err(format!(
            "it has logical blocks of {block} bytes, and at most {BLOCK_MAX} are supported"
        ));
    }
    if let Some(asked) = options.logical_block_size.filter(|asked| *asked < block) {
        return Err(format!(
            "it has logical blocks of {block} bytes, so logical_block_size cannot be {asked}: \
             leave that out"
        ));
    }
    let own = Alignment { memory: SECTOR, offset: block };
    let alignment = host.alignment.unwrap_or(own);
    let is_direct = (1..=block).contains(&alignment.offset);
    match options.direct {
        Direct::Yes if !is_direct => Err(no_direct(alignment)),
        Direct::Auto | Direct::Yes if is_direct => Ok(Access::direct(block, alignment)),
        _ => Ok(Access::buffered(block)),
    }
}

fn of_file(host: Host, options: &FileOptions) -> Choice {
    let asked = options.logical_block_size;
    let block = asked.unwrap_or(SECTOR);
    let alignment = host.alignment.unwrap_or(Alignment::UNTOLD);
    let needed = alignment.offset;
    let fits = |block: u32| (1..=block).contains(&needed);
    match options.direct {
        Direct::No => Ok(Access::buffered(block)),
        Direct::Yes if host.in_memory => {
            Err("it lies in memory, where direct I/O means nothing: leave direct out".to_owned())
        }
        Direct::Auto if fits(block) && host.alignment.is_some() => {
            Ok(Access::direct(block, alignment))
        }
        Direct::Auto => Ok(Access { notice: why_buffered(host), ..Access::buffered(block) }),
        Direct::Yes if fits(block) => Ok(Access::direct(block, alignment)),
        Direct::Yes if !fits(BLOCK_MAX) => Err(no_direct(alignment)),
        Direct::Yes => match asked {
            None => Ok(Access {
                notice: Some(format!(
                    "has logical blocks of {needed} bytes, which direct I/O needs on its file \
                     system"
                )),
                ..Access::direct(needed, alignment)
            }),
            Some(asked) => Err(format!(
                "direct I/O needs blocks of {needed} bytes on its file system, and \
                 logical_block_size is {asked}: make that {needed}, or leave direct out"
            )),
        },
    }
}

fn no_direct(alignment: Alignment) -> String {
    match alignment.offset {
        0 => "its file system does no direct I/O on it".to_owned(),
        needed => format!(
            "direct I/O needs blocks of {needed} bytes on it, and a device has at most {BLOCK_MAX}"
        ),
    }
}

/// The notice that a file uses the page cache although direct I/O was allowed; `None` for a file in
/// memory, where nobody expects direct I/O.
fn why_buffered(host: Host) -> Option<String> {
    let why = match host.alignment {
        _ if host.in_memory => return None,
        Some(Alignment { offset: needed @ 1..=BLOCK_MAX, .. }) => format!(
            "direct I/O needs blocks of {needed} bytes on its file system (logical_block_size = \
             {needed} makes it direct)"
        ),
        Some(alignment) => no_direct(alignment),
        None => "the kernel does not tell what direct I/O needs on its file system".to_owned(),
    };
    Some(format!("goes through the page cache: {why}"))
}

impl Access {
    fn buffered(block_size: u32) -> Self {
        Access { block_size, direct: None, notice: None }
    }

    fn direct(block_size: u32, alignment: Alignment) -> Self {
        Access { direct: Some(alignment.memory.max(1)), ..Self::buffered(block_size) }
    }

    /// Adds a notice for users.
    pub(super) fn note(&mut self, more: Option<String>) {
        self.notice = match (self.notice.take(), more) {
            (Some(known), Some(more)) => Some(format!("{known}; it {more}")),
            (known, more) => known.or(more),
        };
    }

    /// Adds the notice that the last `rest` bytes of a block device are not a whole block.
    pub(super) fn note_rest(&mut self, rest: u64) {
        if rest > 0 {
            let block = self.block_size;
            self.notice = Some(format!(
                "is used without its last {rest} bytes, which are no whole block of {block} bytes"
            ));
        }
    }
}

/// Switches direct I/O on, or falls back to the page cache if the options do not demand it. The
/// lock belongs to the open file description, so the flag is set on that instead of opening again.
pub(super) fn set_direct(fd: &OwnedFd, options: &FileOptions, access: &mut Access) -> Result<()> {
    if access.direct.is_none() {
        return Ok(());
    }
    // SAFETY: fcntl with integer arguments.
    let set = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_DIRECT) == 0
    };
    match (set, options.direct) {
        (true, _) => {}
        (false, Direct::Yes) => {
            let reason = io::Error::last_os_error();
            return Err(Error::os(format!("{}: no direct I/O", options.path.display()), reason));
        }
        (false, _) => access.direct = None,
    }
    Ok(())
}

fn statx_alignment(fd: &OwnedFd) -> Option<Alignment> {
    /// `statx` field of the alignment for direct I/O (Linux 6.1), and its place in the result.
    const STATX_DIOALIGN: u32 = 0x2000;
    // SAFETY: statx fills the struct of zeroes; an empty path means the descriptor itself.
    let stat = unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        let done = libc::statx(
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            STATX_DIOALIGN,
            &mut stat,
        );
        (done == 0).then_some(stat)?
    };
    (stat.stx_mask & STATX_DIOALIGN != 0)
        .then_some(Alignment { memory: stat.stx_dio_mem_align, offset: stat.stx_dio_offset_align })
}

/// The access to a block device.
pub(super) fn logical_block_size(fd: &OwnedFd) -> u32 {
    const BLKSSZGET: libc::c_ulong = 0x1268;
    let mut bytes: libc::c_int = 0;
    // SAFETY: the ioctl writes one int.
    match unsafe { libc::ioctl(fd.as_raw_fd(), BLKSSZGET, &raw mut bytes) } {
        0 => (bytes as u32).max(SECTOR),
        _ => BLOCK_MAX,
    }
}

pub(super) fn physical_block_size(fd: &OwnedFd, block_device: bool) -> u32 {
    const BLKPBSZGET: libc::c_ulong = 0x127B;
    let mut bytes: libc::c_uint = 0;
    // SAFETY: the ioctl writes one unsigned int.
    if block_device && unsafe { libc::ioctl(fd.as_raw_fd(), BLKPBSZGET, &raw mut bytes) } == 0 {
        return bytes.clamp(512, 1 << 20).next_power_of_two();
    }
    stat(fd.as_raw_fd())
        .map_or(4096, |s| (s.st_blksize as u32).clamp(512, 65536).next_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: Option<Alignment> = Some(Alignment { memory: 0, offset: 0 });

    const fn needs(offset: u32) -> Option<Alignment> {
        Some(Alignment { memory: 4, offset })
    }

    fn chosen(
        device_block: Option<u32>,
        alignment: Option<Alignment>,
        direct: Direct,
        logical_block_size: Option<u32>,
    ) -> Choice {
        let options = FileOptions { direct, logical_block_size, ..FileOptions::default() };
        let host = Host { device_block, alignment, in_memory: false };
        match device_block {
            Some(block) => of_device(block, host, &options),
            None => of_file(host, &options),
        }
    }

    /// The logical block, whether I/O is direct, and a part of the notice; or a part of the
    /// refusal.
    type Wanted = std::result::Result<(u32, bool, &'static str), &'static str>;

    fn check(found: Choice, wanted: Wanted, what: &str) {
        match (found, wanted) {
            (Ok(access), Ok((block, is_direct, says))) => {
                assert_eq!(
                    (access.block_size, access.direct.is_some()),
                    (block, is_direct),
                    "{what}"
                );
                let notice = access.notice.unwrap_or_default();
                assert_eq!(notice.is_empty(), says.is_empty(), "{what}: {notice}");
                assert!(notice.contains(says), "{what}: {notice}");
            }
            (Err(why), Err(says)) => assert!(why.contains(says), "{what}: {why}"),
            (found, wanted) => panic!("{what}: {found:?}, expected {wanted:?}"),
        }
    }

    /// The options, and the access that they lead to.
    type Case = (u32, Option<Alignment>, Direct, Option<u32>, Wanted);

    #[test]
    fn a_block_device_has_the_blocks_of_the_host() {
        use Direct::*;
        let cases: [Case; 11] = [
            (512, needs(512), Auto, None, Ok((512, true, ""))),
            (4096, needs(4096), Auto, None, Ok((4096, true, ""))),
            (4096, needs(4096), Yes, None, Ok((4096, true, ""))),
            (4096, needs(4096), No, None, Ok((4096, false, ""))),
            (4096, needs(4096), Yes, Some(4096), Ok((4096, true, ""))),
            // A user may ask for larger blocks than the host's.
            (512, needs(512), Auto, Some(4096), Ok((512, true, ""))),
            (
                4096,
                needs(4096),
                No,
                Some(512),
                Err("logical blocks of 4096 bytes, so logical_block_size cannot be 512"),
            ),
            // A kernel that reports no alignment.
            (4096, None, Yes, None, Ok((4096, true, ""))),
            (4096, NO, Auto, None, Ok((4096, false, ""))),
            (4096, NO, Yes, None, Err("no direct I/O")),
            (
                16384,
                needs(16384),
                Auto,
                None,
                Err("logical blocks of 16384 bytes, and at most 4096"),
            ),
        ];
        for (block, alignment, direct, asked, wanted) in cases {
            let what = format!("{block} {alignment:?} {direct:?} {asked:?}");
            check(chosen(Some(block), alignment, direct, asked), wanted, &what);
        }
    }

    #[test]
    fn a_file_has_larger_blocks_only_where_somebody_asked_for_what_needs_them() {
        use Direct::*;
        let cases: [(Option<Alignment>, Direct, Option<u32>, Wanted); 17] = [
            (needs(512), Auto, None, Ok((512, true, ""))),
            (needs(512), Yes, Some(4096), Ok((4096, true, ""))),
            (needs(512), No, None, Ok((512, false, ""))),
            (
                needs(4096),
                Auto,
                None,
                Ok((512, false, "logical_block_size = 4096 makes it direct")),
            ),
            (needs(4096), Auto, Some(512), Ok((512, false, "needs blocks of 4096 bytes"))),
            (needs(4096), Auto, Some(4096), Ok((4096, true, ""))),
            (
                needs(4096),
                Yes,
                None,
                Ok((4096, true, "has logical blocks of 4096 bytes, which direct I/O needs")),
            ),
            (needs(4096), Yes, Some(4096), Ok((4096, true, ""))),
            (
                needs(4096),
                Yes,
                Some(512),
                Err("needs blocks of 4096 bytes on its file system, and logical_block_size is 512"),
            ),
            (needs(4096), No, None, Ok((512, false, ""))),
            (needs(16384), Auto, None, Ok((512, false, "needs blocks of 16384 bytes"))),
            (needs(16384), Yes, None, Err("needs blocks of 16384 bytes")),
            (NO, Auto, None, Ok((512, false, "does no direct I/O"))),
            (NO, Yes, Some(4096), Err("does no direct I/O")),
            (None, Auto, Some(4096), Ok((4096, false, "does not tell"))),
            (None, Yes, None, Ok((4096, true, "blocks of 4096 bytes"))),
            (None, Yes, Some(512), Err("logical_block_size is 512")),
        ];
        for (alignment, direct, asked, wanted) in cases {
            let what = format!("{alignment:?} {direct:?} {asked:?}");
            check(chosen(None, alignment, direct, asked), wanted, &what);
        }
    }

    #[test]
    fn nobody_is_told_that_memory_is_not_gone_past() {
        let host = Host { device_block: None, alignment: None, in_memory: true };
        let of = |direct| of_file(host, &FileOptions { direct, ..FileOptions::default() });
        check(of(Direct::Auto), Ok((512, false, "")), "auto");
        check(of(Direct::Yes), Err("lies in memory"), "demanded");
    }

    #[test]
    fn a_rest_of_a_block_is_told() {
        let mut access = Access::buffered(4096);
        access.note_rest(0);
        assert_eq!(access.notice, None);
        access.note_rest(512);
        assert!(access.notice.is_some_and(|text| text.contains("without its last 512 bytes")));
    }
}
