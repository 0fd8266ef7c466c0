//! Arrays of the vectors, read in the slow and obvious way.
#![allow(dead_code, reason = "each test uses some of it")]

use drystone_raid::Role;
use drystone_raid::layout::Layout;
use drystone_raid::metadata::MetadataError;
use drystone_raid::metadata::assemble::Candidate;
use drystone_raid::metadata::bitmap::BitmapHeader;
use drystone_raid::metadata::superblock::{DevRole, Features, Minor, Superblock, probe};
use drystone_raid::testing::{self, Image};
use std::convert::Infallible;

/// Sectors and bytes of a stripe on a member.
pub const STRIPE: u64 = 8;
pub const STRIPE_BYTES: usize = 4096;

/// The superblock of a device, looked for in all its places.
pub fn superblock(image: &Image) -> Result<(Minor, Superblock), MetadataError> {
    let read = |sector| Ok::<_, Infallible>(image.read_sectors(sector, 8));
    let Ok(found) = probe(image.sectors(), read);
    found
}

/// The members of a vector, as they are found on disk.
pub fn candidates(vector: &str) -> Vec<Candidate> {
    let images = testing::members(vector);
    let candidate = |(index, image): (usize, &testing::Image)| {
        let found = superblock(image);
        let header = |own: &Superblock| {
            let at = own.super_offset.checked_add_signed(own.bitmap_offset()?.into())?;
            Some(BitmapHeader::parse(&image.read_sectors(at, 8)))
        };
        let bitmap = found.as_ref().ok().and_then(|(_, own)| header(own));
        Candidate {
            name: format!("m{index}"),
            found,
            bitmap,
            damage: None,
            log_damage: None,
            device_sectors: 1 << 20,
            journal: None,
        }
    };
    images.iter().enumerate().map(candidate).collect()
}

/// Changes a member's superblock.
pub fn change(candidates: &mut [Candidate], device: usize, change: impl FnOnce(&mut Superblock)) {
    let Ok((_, found)) = &mut candidates[device].found else { panic!("m{device} is broken") };
    change(found);
}

pub fn meta(vector: &str) -> serde_json::Value {
    serde_json::from_str(&testing::text(vector, "meta.json")).expect("meta.json")
}

pub fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An array: a member for each role that has one in sync.
pub struct Array {
    pub layout: Layout,
    pub used: u64,
    pub members: Vec<Option<(Image, u64)>>,
}

impl Array {
    pub fn open(vector: &str) -> Self {
        Self::of(testing::members(vector))
    }

    /// By the freshest superblock; a device that is stale or not in sync is left out.
    pub fn of(images: Vec<Image>) -> Self {
        let found: Vec<_> =
            images.into_iter().map(|i| (superblock(&i).expect("superblock").1, i)).collect();
        let fresh = found.iter().map(|(s, _)| s).max_by_key(|s| s.events).expect("member").clone();
        let layout = fresh.geometry().expect("geometry");
        let mut members: Vec<_> = (0..layout.disks()).map(|_| None).collect();
        for (own, image) in found {
            let in_sync = !own.feature_map.contains(Features::RECOVERY_OFFSET);
            if let DevRole::Active(role) = fresh.role_of(own.dev_number)
                && in_sync
                && own.events + 1 >= fresh.events
            {
                members[usize::from(role)] = Some((image, own.data_offset));
            }
        }
        Array { layout, used: fresh.size, members }
    }

    /// The 4 KiB of a member at a member sector.
    pub fn block(&self, role: Role, sector: u64) -> Option<Vec<u8>> {
        let (image, data_offset) = self.members[role.index()].as_ref()?;
        Some(image.read_sectors(data_offset + sector, STRIPE))
    }

    /// The data that a member has there, or should have: computed from the others if it is lost.
    pub fn block_or_computed(&self, role: Role, sector: u64) -> Vec<u8> {
        self.block(role, sector).unwrap_or_else(|| self.computed(role, sector))
    }

    fn computed(&self, role: Role, sector: u64) -> Vec<u8> {
        let row = self.layout.row_at(sector);
        if Some(role) == row.q {
            return self.q(sector);
        }
        let others = (0..self.layout.disks()).map(Role).filter(|r| *r != role && Some(*r) != row.q);
        match others.map(|r| self.block(r, sector)).collect::<Option<Vec<_>>>() {
            Some(others) => xor(&others),
            None => self.computed_with_q(role, sector),
        }
    }

    /// A block of RAID-6 of which P does not tell alone: P is lost too, or another data block is.
    fn computed_with_q(&self, role: Role, sector: u64) -> Vec<u8> {
        let row = self.layout.row_at(sector);
        let q = self.block(row.q.expect("RAID-6"), sector).expect("Q");
        let data: Vec<Role> = (0..self.layout.data_disks()).map(|slot| row.data(slot)).collect();
        if role == row.p {
            let data: Vec<_> = data.iter().map(|r| self.block_or_computed(*r, sector)).collect();
            return xor(&data);
        }
        let known: Vec<_> =
            data.iter().filter_map(|r| Some((*r, self.block(*r, sector)?))).collect();
        // The share of the lost blocks in Q, and in P if that is there.
        let mut q_left = q;
        for (r, block) in &known {
            add_product(&mut q_left, power(row.power(*r)), block);
        }
        let other = data.iter().find(|r| **r != role && self.block(**r, sector).is_none());
        let own = power(row.power(role));
        let Some(other) = other else {
            return scaled(inverse(own), &q_left);
        };
        let mut parts: Vec<_> = known.into_iter().map(|(_, block)| block).collect();
        parts.push(self.block(row.p, sector).expect("P"));
        let p_left = xor(&parts);
        // own * x + other * y = q, x + y = p; so x = (q + other * p) / (own + other).
        let other = power(row.power(*other));
        add_product(&mut q_left, other, &p_left);
        scaled(inverse(own ^ other), &q_left)
    }

    /// P of a row of stripes, from its data.
    pub fn p(&self, sector: u64) -> Vec<u8> {
        let row = self.layout.row_at(sector);
        let data = (0..self.layout.data_disks()).map(|slot| row.data(slot));
        xor(&data.map(|role| self.block_or_computed(role, sector)).collect::<Vec<_>>())
    }

    /// Q of a row of stripes, from its data.
    pub fn q(&self, sector: u64) -> Vec<u8> {
        let row = self.layout.row_at(sector);
        let mut q = vec![0; STRIPE_BYTES];
        for role in (0..self.layout.data_disks()).map(|slot| row.data(slot)) {
            let block = self.block_or_computed(role, sector);
            add_product(&mut q, power(row.power(role)), &block);
        }
        q
    }

    /// Blocks of 4 KiB.
    pub fn blocks(&self) -> u64 {
        self.layout.array_sectors(self.used).expect("size") / STRIPE
    }

    /// SHA-256 of what the array holds.
    pub fn logical_sha256(&self, blocks: u64) -> String {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        for block in 0..blocks {
            let address = self.layout.map_sector(block * STRIPE);
            context.update(&self.block_or_computed(address.role, address.sector));
        }
        context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Member sectors of the stripes whose parity is wrong.
    pub fn wrong_parity(&self) -> Vec<u64> {
        let wrong = |sector: &u64| {
            let row = self.layout.row_at(*sector);
            self.block(row.p, *sector).is_some_and(|p| p != self.p(*sector))
                || row.q.is_some_and(|q| self.block(q, *sector) != Some(self.q(*sector)))
        };
        (0..self.used).step_by(STRIPE as usize).filter(wrong).collect()
    }
}

/// GF(2^8) with the polynomial 0x11D, bit by bit.
pub fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        product ^= if b & 1 == 1 { a } else { 0 };
        a = (a << 1) ^ if a & 0x80 == 0 { 0 } else { 0x1D };
        b >>= 1;
    }
    product
}

/// The generator's power.
pub fn power(exponent: u32) -> u8 {
    (0..exponent).fold(1, |value, _| multiply(value, 2))
}

pub fn inverse(value: u8) -> u8 {
    (1..=255).find(|other| multiply(value, *other) == 1).expect("zero has no inverse")
}

pub fn xor(blocks: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![0; STRIPE_BYTES];
    for block in blocks {
        add_product(&mut out, 1, block);
    }
    out
}

/// `to ^= factor * block`. Eight bytes at a time: it is not optimised, and does much.
pub fn add_product(to: &mut [u8], factor: u8, block: &[u8]) {
    for (to, from) in to.as_chunks_mut().0.iter_mut().zip(block.as_chunks().0) {
        let sum = u64::from_ne_bytes(*to) ^ product(factor, u64::from_ne_bytes(*from));
        *to = sum.to_ne_bytes();
    }
}

/// Each byte of `word` times `factor`, by long multiplication.
fn product(mut factor: u8, mut word: u64) -> u64 {
    const HIGHEST: u64 = 0x8080_8080_8080_8080;
    let mut sum = 0;
    while factor > 0 {
        if factor & 1 == 1 {
            sum ^= word;
        }
        // Twice the word: a bit that leaves its byte is reduced by the polynomial 0x11D.
        let leaving = word & HIGHEST;
        word = ((word ^ leaving) << 1) ^ ((leaving >> 7) * 0x1D);
        factor >>= 1;
    }
    sum
}

fn scaled(factor: u8, block: &[u8]) -> Vec<u8> {
    let mut out = vec![0; STRIPE_BYTES];
    add_product(&mut out, factor, block);
    out
}
