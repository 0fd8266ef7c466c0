//! The kernel itself, taken out of the compressed image that a package ships.
//!
//! QEMU starts an ELF kernel by its PVH entry. That spares the emulated processor the unpacking,
//! which is a good part of a boot. Offsets are those of Documentation/arch/x86/boot.rst of Linux.

use std::fs;
use std::path::Path;

use crate::command;

const SETUP_SECTORS: usize = 0x1f1;
const HEADER_MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Takes the ELF kernel out of the image `bzimage` and writes it to the file `vmlinux`. The error
/// is one sentence.
pub fn extract(bzimage: &Path, vmlinux: &Path) -> Result<(), String> {
    let image = fs::read(bzimage).map_err(|error| format!("{}: {error}", bzimage.display()))?;
    let packed = payload(&image).ok_or("the kernel is no bzImage with a payload packed by zstd")?;
    let file = vmlinux.with_extension("zst");
    fs::write(&file, packed).map_err(|error| format!("{}: {error}", file.display()))?;
    let words = ["-dqf".as_ref(), "--rm".as_ref(), file.as_os_str(), "-o".as_ref()];
    command::output(Path::new("/"), "zstd", &[&words[..], &[vmlinux.as_os_str()]].concat())?;
    Ok(())
}

/// The packed kernel in an image of boot protocol 2.08 or later.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| {
        let bytes = image.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    if image.get(HEADER_MAGIC..)?.get(..4)? != b"HdrS" {
        return None;
    }
    let start = (usize::from(image[SETUP_SECTORS]) + 1) * 512 + word(PAYLOAD_OFFSET)?;
    // The last four bytes are the unpacked size, which zstd would take for garbage.
    let length = word(PAYLOAD_LENGTH)?.checked_sub(4)?;
    image.get(start..)?.get(..length).filter(|payload| payload.starts_with(&ZSTD_MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(magic: &[u8; 4], length: u32) -> Vec<u8> {
        let mut image = vec![0; 4096];
        image[SETUP_SECTORS] = 1;
        image[HEADER_MAGIC..][..4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET..][..4].copy_from_slice(&16u32.to_le_bytes());
        image[PAYLOAD_LENGTH..][..4].copy_from_slice(&length.to_le_bytes());
        image[1024 + 16..][..4].copy_from_slice(magic);
        image
    }

    #[test]
    fn the_payload_is_found_by_the_header() {
        let found = image(&ZSTD_MAGIC, 104);
        assert_eq!(payload(&found).map(<[u8]>::len), Some(100));
    }

    #[test]
    fn anything_else_is_refused() {
        assert_eq!(payload(&image(b"\xfd7zX", 104)), None);
        assert_eq!(payload(&image(&ZSTD_MAGIC, 1 << 20)), None);
        assert_eq!(payload(&image(&ZSTD_MAGIC, 3)), None);
        assert_eq!(payload(b"\x7fELF"), None);
        assert_eq!(payload(&[0; 4096]), None);
    }
}
