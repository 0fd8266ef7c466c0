//! Images of md members that Linux wrote, for tests of this crate and of crates that use it.
//!
//! `tests/vectors/README.md` describes their origin and encoding. A wrong vector is a mistake in
//! the repository, and panics.

use crate::metadata::Uuid;
use crate::metadata::ppl::crc32c;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Bytes of a block of the encoding.
const BLOCK: usize = 4096;

/// A member's image: zeroes where nothing was written.
#[derive(Clone, Debug, Default)]
pub struct Image {
    bytes: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

impl Image {
    /// The image that an `mdv1` text describes.
    pub fn decode(text: &str) -> Self {
        let mut lines = text.lines();
        let first = lines.next().and_then(|line| line.strip_prefix("# mdv1 size="));
        let bytes = first.expect("first line").parse().expect("size");
        let mut image = Image { bytes, blocks: BTreeMap::new() };
        lines.for_each(|line| image.record(line));
        image
    }

    /// An image of zeroes.
    pub fn new(bytes: u64) -> Self {
        Image { bytes, blocks: BTreeMap::new() }
    }

    fn record(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["H", offset, hex] => {
                let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex");
                let data: Vec<u8> = (0..hex.len() / 2).map(byte).collect();
                self.write(offset.parse().expect("offset"), &data);
            }
            ["R", block, count, value, step] => {
                let [block, count, step] =
                    [block, count, step].map(|word| word.parse::<u64>().expect("number"));
                let value = u64::from_str_radix(value, 16).expect("value");
                for k in 0..count {
                    let word = value.wrapping_add(k * step).to_le_bytes();
                    self.write((block + k) * BLOCK as u64, &word.repeat(BLOCK / 8));
                }
            }
            _ => panic!("a record that is not known: {line:.40}"),
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its size in sectors.
    pub fn sectors(&self) -> u64 {
        self.bytes / 512
    }

    /// Puts bytes at an offset.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert!(offset + data.len() as u64 <= self.bytes, "beyond the image's end");
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (block, within) = (at / BLOCK as u64, at as usize % BLOCK);
            let len = (BLOCK - within).min(data.len() - done);
            let to = self.blocks.entry(block).or_insert_with(|| Box::new([0; BLOCK]));
            to[within..within + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
    }

    /// The bytes at an offset; zeroes beyond the end.
    pub fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let (block, within) = (at / BLOCK as u64, at as usize % BLOCK);
            let len = (BLOCK - within).min(bytes - done);
            if let Some(from) = self.blocks.get(&block) {
                out[done..done + len].copy_from_slice(&from[within..within + len]);
            }
            done += len;
        }
        out
    }

    /// The bytes from a sector on.
    pub fn read_sectors(&self, sector: u64, sectors: u64) -> Vec<u8> {
        self.read(sector * 512, sectors as usize * 512)
    }
}

/// The folder of the vectors.
pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors"))
}

/// The names of all vectors, sorted.
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).expect("folder of vectors");
    let entries = entries.map(|entry| entry.expect("entry"));
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().into_string().expect("name")).collect();
    names.sort();
    names
}

/// A file of a vector, as text.
pub fn text(vector: &str, file: &str) -> String {
    let path = folder().join(vector).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The image of member `index` of a vector, if there is one.
pub fn member(vector: &str, index: usize) -> Option<Image> {
    let path = folder().join(vector).join(format!("m{index}.mdv"));
    path.exists().then(|| Image::decode(&text(vector, &format!("m{index}.mdv"))))
}

/// The images of all members of a vector, in the order of the devices.
pub fn members(vector: &str) -> Vec<Image> {
    (0..).map_while(|index| member(vector, index)).collect()
}

/// A meta block of an array's journal, at a position of its data, with these payloads.
pub fn journal_block(uuid: Uuid, position: u64, sequence: u64, payloads: &[u8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let size = 32 + payloads.len() as u32;
    let words: [&[u8]; 6] = [
        &0x6433_C509_u32.to_le_bytes(),
        &[0, 0, 0, 0, 1, 0, 0, 0],
        &size.to_le_bytes(),
        &sequence.to_le_bytes(),
        &position.to_le_bytes(),
        payloads,
    ];
    let bytes = words.concat();
    block[..bytes.len()].copy_from_slice(&bytes);
    let sum = journal_sum(uuid, &block).to_le_bytes();
    block[4..8].copy_from_slice(&sum);
    block
}

/// A payload that names a block of data of an array sector.
pub fn journal_data(uuid: Uuid, sector: u64, block: &[u8]) -> Vec<u8> {
    let sum = journal_sum(uuid, block).to_le_bytes();
    [&[0, 0, 0, 0, 8, 0, 0, 0], &sector.to_le_bytes()[..], &sum].concat()
}

/// A payload that says that the members have these stripes, by member sectors.
pub fn journal_flush(stripes: &[u64]) -> Vec<u8> {
    let size = 8 * stripes.len() as u32;
    let stripes: Vec<u8> = stripes.iter().flat_map(|sector| sector.to_le_bytes()).collect();
    [&[2, 0, 0, 0], &size.to_le_bytes()[..], &stripes].concat()
}

fn journal_sum(uuid: Uuid, bytes: &[u8]) -> u32 {
    !crc32c(&[&uuid.0, bytes].concat())
}
