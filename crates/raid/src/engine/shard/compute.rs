//! Parity of a stripe's blocks.

use crate::engine::roles::Roles;
use crate::ids::Role;
use crate::layout::Row;
use drystone_core::IoBuf;
use drystone_parity::{Parity, Source};

/// The blocks of a stripe, by role; `None` while a block is on its way to or from its member.
pub(super) type Blocks = Vec<Option<IoBuf>>;

/// The most sources for which a short list is enough.
const FEW: usize = 16;

/// Blocks of a stripe, with their roles.
pub(super) struct Arithmetic<'a> {
    pub(super) parity: Parity,
    pub(super) row: Row,
    pub(super) data: Roles,
    pub(super) blocks: &'a mut Blocks,
}

/// Call `with` with a list of the `len` items of `all`. A short list serves if they are few,
/// because the whole list is initialised before it is filled.
pub(super) fn listed<S: Copy + Default, T>(
    len: u32,
    all: impl Iterator<Item = S>,
    with: impl FnOnce(&[S]) -> T,
) -> T {
    match len as usize <= FEW {
        true => listed_in([S::default(); FEW], all, with),
        false => listed_in([S::default(); u128::BITS as usize], all, with),
    }
}

fn listed_in<const N: usize, S, T>(
    mut list: [S; N],
    all: impl Iterator<Item = S>,
    with: impl FnOnce(&[S]) -> T,
) -> T {
    let mut len = 0;
    for (entry, one) in list.iter_mut().zip(all) {
        *entry = one;
        len += 1;
    }
    with(&list[..len])
}

impl Arithmetic<'_> {
    fn take(&mut self, role: Role) -> IoBuf {
        self.blocks[role.index()].take().expect("the block is in the cache")
    }

    fn put(&mut self, role: Role, block: IoBuf) {
        self.blocks[role.index()] = Some(block);
    }

    fn block(&self, role: Role) -> &[u8] {
        self.blocks[role.index()].as_deref().expect("the block is in the cache")
    }

    /// Call `with` with the data blocks of `roles`, with falling powers.
    fn sources<T>(&self, roles: Roles, with: impl FnOnce(&[Source<'_>]) -> T) -> T {
        let by_power = self.row.by_power().filter(|role| roles.has(*role));
        let all = by_power.map(|role| (self.row.power(role) as u8, self.block(role)));
        listed(roles.len(), all, with)
    }

    /// The exclusive or of the blocks `roles`.
    pub(super) fn xor_of(&self, dst: &mut [u8], roles: Roles) {
        let all = roles.iter().map(|role| self.block(role));
        listed(roles.len(), all, |blocks| self.parity.xor_of(dst, blocks));
    }

    /// Compute P, and Q if there is one, of all data into `p` and `q`.
    pub(super) fn parity_into(&self, p: &mut [u8], q: Option<&mut [u8]>) {
        match q {
            Some(q) => self.sources(self.data, |sources| self.parity.pq_of(p, q, sources)),
            None => self.xor_of(p, self.data),
        }
    }

    /// Compute the parity blocks from all data.
    pub(super) fn rcw(&mut self) {
        let mut p = self.take(self.row.p);
        let mut q = self.row.q.map(|q| self.take(q));
        self.parity_into(&mut p, q.as_deref_mut());
        self.put(self.row.p, p);
        if let (Some(role), Some(q)) = (self.row.q, q) {
            self.put(role, q);
        }
    }

    /// Add the data blocks `roles` to the parity blocks `parity`, or take them out again: both are
    /// the same exclusive or.
    pub(super) fn toggle(&mut self, roles: Roles, parity: Roles) {
        if parity.has(self.row.p) {
            let mut p = self.take(self.row.p);
            for role in roles.iter() {
                let block = self.block(role);
                self.parity.xor_into(&mut p, &[block]);
            }
            self.put(self.row.p, p);
        }
        let Some(q_role) = self.row.q.filter(|q| parity.has(*q)) else { return };
        let mut q = self.take(q_role);
        for role in roles.iter() {
            let block = self.block(role);
            self.parity.q_add(&mut q, self.row.power(role) as u8, block);
        }
        self.put(q_role, q);
    }

    /// Compute the blocks `lost` from the blocks `uptodate`; the plan made sure that these suffice.
    pub(super) fn reconstruct(&mut self, lost: Roles, uptodate: Roles) {
        let lost_data = lost & self.data;
        let mut data = lost_data.iter();
        match (data.next(), data.next()) {
            (Some(x), Some(y)) => self.two_data(x, y),
            (Some(x), None) if uptodate.has(self.row.p) => self.data_from_p(x),
            (Some(x), None) => self.data_from_q(x),
            _ => {}
        }
        // Lost parity is computed too: a member may have to be given it.
        if !(lost - self.data).is_empty() {
            self.lost_parity(lost - self.data);
        }
    }

    fn lost_parity(&mut self, lost: Roles) {
        if lost.has(self.row.p) && self.row.q.is_none_or(|q| lost.has(q)) {
            return self.rcw();
        }
        let kept = if lost.has(self.row.p) { self.row.q } else { Some(self.row.p) };
        let before = kept.map(|role| {
            (role, IoBuf::from_slice(self.blocks[role.index()].as_deref().unwrap_or(&[])))
        });
        self.rcw();
        if let Some((role, block)) = before {
            self.put(role, block);
        }
    }

    fn data_from_p(&mut self, x: Role) {
        let mut block = self.take(x);
        self.xor_of(&mut block, self.data - Roles::one(x));
        let p = self.block(self.row.p);
        self.parity.xor_into(&mut block, &[p]);
        self.put(x, block);
    }

    /// Q + T, of all data but `lost`, into `block`; P + S into `p_and_s`.
    fn sums(&self, lost: Roles, p_and_s: &mut [u8], block: &mut [u8]) {
        self.sources(self.data - lost, |sources| self.parity.pq_of(p_and_s, block, sources));
        let q = self.row.q.and_then(|q| self.blocks[q.index()].as_deref());
        self.parity.xor_into(block, &[q.expect("it is in the cache")]);
    }

    fn data_from_q(&mut self, x: Role) {
        let (mut block, mut scratch) = (self.take(x), self.take(self.row.p));
        self.sums(Roles::one(x), &mut scratch, &mut block);
        self.parity.one_data_in_place(self.row.power(x) as u8, &mut block);
        self.put(self.row.p, scratch);
        self.put(x, block);
    }

    fn two_data(&mut self, x: Role, y: Role) {
        let (mut first, mut second) = (self.take(x), self.take(y));
        self.sums([x, y].into_iter().collect(), &mut first, &mut second);
        let p = self.block(self.row.p);
        self.parity.xor_into(&mut first, &[p]);
        let powers = (self.row.power(x) as u8, self.row.power(y) as u8);
        self.parity.two_data(powers, &mut first, &mut second);
        self.put(x, first);
        self.put(y, second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::data_of;
    use crate::layout::{Layout, Level};

    const NUMBERS: [u32; 14] = [0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20];

    fn blocks(disks: u32) -> Blocks {
        let block = |role: Role| {
            let mut rng = fastrand(u64::from(role.0) + 1);
            let bytes: Vec<u8> = (0..4096).map(|_| rng()).collect();
            Some(IoBuf::from_slice(&bytes))
        };
        (0..disks).map(Role).map(block).collect()
    }

    fn fastrand(mut seed: u64) -> impl FnMut() -> u8 {
        move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        }
    }

    fn copy(blocks: &Blocks) -> Blocks {
        blocks.iter().map(|b| b.as_ref().map(|b| IoBuf::from_slice(b))).collect()
    }

    fn equal(a: &Blocks, b: &Blocks, roles: Roles) -> bool {
        roles.iter().all(|r| a[r.index()].as_deref() == b[r.index()].as_deref())
    }

    #[test]
    fn all_pairs_of_losses_come_back_in_every_layout() {
        for (number, row) in NUMBERS.iter().flat_map(|n| (0..6).map(|row| (*n, row))) {
            let layout = Layout::new(Level::Raid6, number, 6, 8).unwrap();
            let row = layout.row(row);
            let data = data_of(&layout, &row);
            let mut whole = blocks(6);
            let mut on = Arithmetic { parity: Parity::detect(), row, data, blocks: &mut whole };
            on.rcw();
            for lost in (0..6).flat_map(|x| (0..6).map(move |y| [x, y])) {
                let lost: Roles = lost.into_iter().collect();
                let mut now = copy(&whole);
                lost.iter().for_each(|r| now[r.index()].as_deref_mut().unwrap().fill(9));
                let mut on = Arithmetic { parity: Parity::detect(), row, data, blocks: &mut now };
                on.reconstruct(lost, Roles::below(6) - lost);
                assert!(equal(&now, &whole, data | lost), "layout {number}, lost {lost:?}");
            }
        }
    }

    #[test]
    fn toggling_out_and_in_is_reconstruction() {
        for (level, disks) in [(Level::Raid5, 4), (Level::Raid6, 20)] {
            let layout = Layout::new(level, 2, disks, 8).unwrap();
            let row = layout.row(1);
            let data = data_of(&layout, &row);
            let parity = Roles::below(disks) - data;
            let mut some = blocks(disks);
            let changed: Roles = data.iter().take(2).collect();
            let mut on = Arithmetic { parity: Parity::detect(), row, data, blocks: &mut some };
            on.rcw();
            on.toggle(changed, parity);
            for role in changed.iter() {
                on.blocks[role.index()].as_deref_mut().unwrap().fill(role.0 as u8);
            }
            on.toggle(changed, parity);
            let mut again = copy(&some);
            Arithmetic { parity: Parity::detect(), row, data, blocks: &mut again }.rcw();
            assert!(equal(&some, &again, Roles::below(disks)));
        }
    }
}
