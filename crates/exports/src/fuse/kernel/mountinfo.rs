//! The list of mounts, `/proc/self/mountinfo` (proc(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Its number.
    pub id: u64,
    /// Where it is.
    pub path: PathBuf,
    /// Its type, such as `ext4` or `fuse.drystone`.
    pub file_system: String,
    /// Where it comes from.
    pub source: String,
}

/// The mounts in a list, in the order in which they were mounted; malformed lines are left out.
pub fn parse(list: &[u8]) -> Vec<MountEntry> {
    list.split(|byte| *byte == b'\n').filter_map(entry).collect()
}

fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    // Parent, device, root.
    let path = PathBuf::from(OsString::from_vec(unescape(fields.nth(3)?)));
    // Options and tags end with a dash.
    fields.find(|field| field == b"-")?;
    let text = |field| String::from_utf8_lossy(&unescape(field)).into_owned();
    Some(MountEntry { id, path, file_system: text(fields.next()?), source: text(fields.next()?) })
}

/// Decodes a field: bytes that would end it are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'\\').then(|| after.split_at_checked(3)).flatten();
        match escaped.and_then(|(digits, after)| Some((octal(digits)?, after))) {
            Some((byte, after)) => {
                bytes.push(byte);
                rest = after;
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

fn octal(digits: &[u8]) -> Option<u8> {
    let value = |sum: u32, digit: &u8| {
        matches!(digit, b'0'..=b'7').then(|| sum * 8 + u32::from(digit - b'0'))
    };
    digits.iter().try_fold(0, value).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read() {
        let list = b"29 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            41 29 0:36 / /mnt/a\\040b\\134\\011c rw,nosuid - fuse.drystone vol\\0401 rw,user_id=0\n\
            42 29 0:37 / /x rw shared:2 master:1 - tmpfs tmpfs rw\n\
            no line\n43 29\n44 29 0:1 / /y rw shared:3\n";
        let entries = parse(list);
        let short: Vec<_> = entries
            .iter()
            .map(|e| (e.id, e.path.to_str().unwrap(), &*e.file_system, &*e.source))
            .collect();
        let expected = [
            (29, "/", "ext4", "/dev/sda1"),
            (41, "/mnt/a b\\\tc", "fuse.drystone", "vol 1"),
            (42, "/x", "tmpfs", "tmpfs"),
        ];
        assert_eq!(short, expected);
    }

    #[test]
    fn escapes_are_whole_or_none() {
        let cases: [(&[u8], &[u8]); 5] = [
            (b"\\040", b" "),
            (b"\\04", b"\\04"),
            (b"\\", b"\\"),
            (b"\\999", b"\\999"),
            (b"\\777", b"\\777"),
        ];
        for (escaped, expected) in cases {
            assert_eq!(unescape(escaped), expected);
        }
    }
}
