//! The stamp that a write puts into a sector, so that it can be recognised byte by byte.
//!
//! A sector is 64 little-endian words: the id of the write, the place (volume and sector), and 62
//! words that follow from both. So a check detects data of another place, of another volume or of
//! two writes, and the data itself tells where it belongs. Filling and checking are plain loops
//! over words that the compiler turns into vector code.

use std::fmt;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
const WORDS: usize = SECTOR / 8;
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits of the second word that hold the sector number; the others hold the volume.
const SECTOR_BITS: u32 = 40;

/// The step of each word, which is added to the seed of the sector.
const STEPS: [u64; WORDS] = {
    let mut steps = [0; WORDS];
    let mut i = 0;
    while i < WORDS {
        steps[i] = GOLDEN.wrapping_mul(i as u64 + 1);
        i += 1;
    }
    steps
};

/// The content that was found in a sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeroes.
    Zero,
    /// The whole stamp of a write to this very sector.
    Stamp {
        /// The write.
        id: u64,
    },
    /// The whole stamp of a write to another sector.
    Elsewhere {
        /// The write.
        id: u64,
        /// Its volume.
        volume: u32,
        /// Its sector.
        sector: u64,
    },
    /// Neither zeroes nor a whole stamp.
    Foreign {
        /// The first 16 bytes: of a stamp, id and place.
        first: [u8; 16],
        /// How many of the 64 words match a stamp with these first 16 bytes.
        good_words: u32,
    },
}

fn place(volume: u32, sector: u64) -> u64 {
    sector | u64::from(volume) << SECTOR_BITS
}

/// Mixes the bits of a word (the end of SplitMix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[inline]
fn seed(id: u64, place: u64) -> u64 {
    mix(mix(id.wrapping_add(GOLDEN)) ^ place)
}

/// Fills whole sectors with the stamp of write `id` (not 0), of which the first lies at
/// `first_sector` of the volume. Volumes below 2^24, sectors below 2^40.
pub fn fill(data: &mut [u8], volume: u32, first_sector: u64, id: u64) {
    debug_assert!(id > 0 && data.len().is_multiple_of(SECTOR));
    for (bytes, sector) in data.chunks_exact_mut(SECTOR).zip(first_sector..) {
        let place = place(volume, sector);
        let seed = seed(id, place);
        for (word, step) in bytes.chunks_exact_mut(8).zip(&STEPS) {
            word.copy_from_slice(&seed.wrapping_add(*step).to_le_bytes());
        }
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        bytes[8..16].copy_from_slice(&place.to_le_bytes());
    }
}

/// A word of a sector.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes([
        bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
    ])
}

/// The id that a sector's stamp claims; 0 if the sector may be zeroes.
#[inline]
pub(super) fn claimed(bytes: &[u8]) -> u64 {
    word(bytes)
}

/// True if a sector is the whole stamp of write `id` at this place.
#[inline]
pub(super) fn is_stamp(bytes: &[u8], volume: u32, sector: u64, id: u64) -> bool {
    let place = place(volume, sector);
    word(bytes) == id && word(&bytes[8..]) == place && follows(bytes, seed(id, place))
}

#[inline]
fn follows(bytes: &[u8], seed: u64) -> bool {
    let rest = bytes[16..SECTOR].chunks_exact(8).zip(&STEPS[2..]);
    rest.fold(0, |wrong, (bytes, step)| wrong | (word(bytes) ^ seed.wrapping_add(*step))) == 0
}

/// True if a sector is all zeroes.
#[inline]
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks_exact(8).fold(0, |wrong, bytes| wrong | word(bytes)) == 0
}

/// The content of a sector (512 bytes) of a volume.
pub fn identify(bytes: &[u8], volume: u32, sector: u64) -> Content {
    if is_zero(bytes) {
        return Content::Zero;
    }
    let (id, found) = (word(bytes), word(&bytes[8..]));
    let seed = seed(id, found);
    if !follows(bytes, seed) {
        let words = bytes.chunks_exact(8).zip(&STEPS).skip(2);
        let good = words.filter(|(bytes, step)| word(bytes) == seed.wrapping_add(**step)).count();
        let mut first = [0; 16];
        first.copy_from_slice(&bytes[..16]);
        let own = 2 * u32::from(good > 0);
        return Content::Foreign { first, good_words: good as u32 + own };
    }
    if found == place(volume, sector) {
        return Content::Stamp { id };
    }
    let volume = (found >> SECTOR_BITS) as u32;
    Content::Elsewhere { id, volume, sector: found & ((1 << SECTOR_BITS) - 1) }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Zero => f.write_str("zeroes"),
            Content::Stamp { id } => write!(f, "write {id}"),
            Content::Elsewhere { id, volume, sector } => {
                write!(f, "write {id} of sector {sector} of volume {volume}: a wrong place")
            }
            Content::Foreign { first, good_words } => {
                let (id, place) = (word(first), word(&first[8..]));
                let (volume, sector) = (place >> SECTOR_BITS, place & ((1u64 << SECTOR_BITS) - 1));
                if *good_words == 0 {
                    return write!(f, "bytes of no write, that begin with {first:02x?}");
                }
                write!(f, "{good_words} of 64 words of write {id} of sector {sector} ")?;
                write!(f, "of volume {volume}, the others not")
            }
        }
    }
}
