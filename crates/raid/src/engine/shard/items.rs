//! The items of a shard, and the line of those that wait for a stripe.
//!
//! Invariants:
//! * An item keeps its number until all of it is attached and no stripe has a piece of it. Then it
//!   ends, once, with the first error of its pieces.
//! * Pieces are attached in the order of the item's sectors. Each piece lies in one block.
//! * An item is in the line at most once. The line is first come, first served; an item whose
//!   pieces are all attached leaves it.

use super::piece::{Piece, Work};
use crate::ids::Role;
use crate::layout::{BLOCK_BYTES, Layout, STRIPE_SECTORS};
use drystone_core::{Bio, BioList, Op, PortId, SECTOR_SIZE, Slab, Status};
use std::collections::VecDeque;

/// A bio, or a part of one, that lies in one region of the members.
struct Item {
    bio: Box<Bio>,
    /// The item asks for synchronisation of member sectors, not for I/O on array sectors.
    is_sync: bool,
    /// Bytes that are attached, or done.
    attached: u64,
    /// Pieces that stripes have.
    pieces: u32,
}

impl Item {
    /// A part of it has no stripe yet.
    fn has_more(&self) -> bool {
        self.attached < self.bio.bytes
    }
}

/// See the module's text.
pub(super) struct Items {
    items: Slab<Item>,
    waiting: VecDeque<u32>,
}

impl Items {
    pub(super) fn new() -> Self {
        Items { items: Slab::new(), waiting: VecDeque::new() }
    }

    /// Take in a bio, of which nothing is attached yet.
    pub(super) fn insert(&mut self, bio: Box<Bio>, is_sync: bool) -> u32 {
        self.items.insert(Item { bio, is_sync, attached: 0, pieces: 0 })
    }

    /// The number of items.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// The item asks for synchronisation.
    pub(super) fn is_sync(&self, number: u32) -> bool {
        self.items[number].is_sync
    }

    /// The port that an item came through.
    pub(super) fn port(&self, number: u32) -> PortId {
        self.items[number].bio.port
    }

    pub(super) fn bio(&self, number: u32) -> &Bio {
        &self.items[number].bio
    }

    /// Copy the data of a piece into its read.
    pub(super) fn fill(&mut self, piece: &Piece, data: &[u8]) {
        self.items[piece.item].bio.fill_data_at(piece.at, data);
    }

    /// The next piece of an item, with the member sector of its stripe.
    pub(super) fn next_piece(&self, layout: &Layout, number: u32) -> Option<(u64, Piece)> {
        let item = &self.items[number];
        let left = item.bio.bytes - item.attached;
        if left == 0 {
            return None;
        }
        let sector = item.bio.sector.0 + item.attached / SECTOR_SIZE;
        let (role, sector) = match item.is_sync {
            true => (Role(0), sector),
            false => {
                let address = layout.map_sector(sector);
                (address.role, address.sector)
            }
        };
        let start = (sector % STRIPE_SECTORS * SECTOR_SIZE) as u32;
        let bytes = left.min(BLOCK_BYTES as u64 - u64::from(start)) as u32;
        let piece = Piece { item: number, role, at: item.attached, start, bytes };
        Some((sector - sector % STRIPE_SECTORS, piece))
    }

    /// An item that writes data, of which nothing is attached yet.
    pub(super) fn fresh_write(&self, number: u32) -> Option<&Bio> {
        let item = &self.items[number];
        let is_fresh = item.attached == 0 && !item.is_sync && item.bio.op == Op::Write;
        is_fresh.then_some(&*item.bio)
    }

    /// Count all of a fresh item as attached, in one piece.
    pub(super) fn attach_whole(&mut self, number: u32) {
        let item = &mut self.items[number];
        (item.attached, item.pieces) = (item.bio.bytes, 1);
    }

    /// Take back [`Items::attach_whole`].
    pub(super) fn detach(&mut self, number: u32) {
        let item = &mut self.items[number];
        debug_assert!(item.pieces == 1 && !item.has_more());
        (item.attached, item.pieces) = (0, 0);
    }

    /// Count the next piece of an item as attached. Returns the work that the piece asks for, and
    /// the item's port.
    pub(super) fn attach(&mut self, piece: &Piece) -> (Work, PortId) {
        let item = &mut self.items[piece.item];
        debug_assert_eq!(piece.at, item.attached, "pieces are attached in order");
        item.attached += u64::from(piece.bytes);
        item.pieces += 1;
        let work = match item.bio.op {
            _ if item.is_sync => Work::Sync,
            Op::Read => Work::Read,
            _ => Work::Write,
        };
        (work, item.bio.port)
    }

    /// Note that a stripe is done with a piece of an item. The item ends if this was its last
    /// piece.
    pub(super) fn piece_done(&mut self, number: u32, status: Status, done: &mut BioList) {
        let item = &mut self.items[number];
        item.pieces -= 1;
        if item.bio.status.is_ok() {
            item.bio.status = status;
        }
        self.end_if_done(number, done);
    }

    /// End an item if all of it is attached and done.
    pub(super) fn end_if_done(&mut self, number: u32, done: &mut BioList) {
        let item = &self.items[number];
        if item.pieces == 0
            && !item.has_more()
            && let Some(item) = self.items.remove(number)
        {
            done.push(item.bio);
        }
    }

    /// Items wait for a stripe.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The items that wait, in their order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.waiting.iter().copied()
    }

    /// The item at a position of the line, from 0.
    pub(super) fn waiting_at(&self, position: usize) -> Option<u32> {
        self.waiting.get(position).copied()
    }

    /// Put an item at the end of the line.
    pub(super) fn wait_last(&mut self, number: u32) {
        self.waiting.push_back(number);
    }

    /// Put an item back at the head of the line, where it was.
    pub(super) fn wait_first(&mut self, number: u32) {
        self.waiting.push_front(number);
    }

    /// Take the item that has waited longest out of the line.
    pub(super) fn next_waiting(&mut self) -> Option<u32> {
        self.waiting.pop_front()
    }

    /// Take the items whose pieces all have stripes out of the line.
    pub(super) fn drop_attached_from_line(&mut self) {
        let items = &self.items;
        self.waiting.retain(|number| items[*number].has_more());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::Level;
    use drystone_core::{IoBuf, Sector};

    fn layout() -> Layout {
        Layout::new(Level::Raid5, 2, 3, 8).unwrap()
    }

    fn read(sector: u64, sectors: u64) -> Box<Bio> {
        Bio::read(Sector(sector), IoBuf::zeroed((sectors * SECTOR_SIZE) as usize))
    }

    /// Attach all of an item. Each piece with the member sector of its stripe.
    fn attach_all(items: &mut Items, number: u32) -> Vec<(u64, Piece)> {
        std::iter::from_fn(|| {
            let (sector, piece) = items.next_piece(&layout(), number)?;
            items.attach(&piece);
            Some((sector, piece))
        })
        .collect()
    }

    #[test]
    fn pieces_lie_in_one_block_each_and_cover_the_item() {
        let mut items = Items::new();
        let number = items.insert(read(5, 20), false);
        let pieces = attach_all(&mut items, number);
        let ranges: Vec<_> = pieces.iter().map(|(_, p)| (p.at, p.start, p.bytes)).collect();
        assert_eq!(ranges, [(0, 2560, 1536), (1536, 0, 4096), (5632, 0, 4096), (9728, 0, 512)]);
        for (sector, piece) in &pieces {
            let address = layout().map_sector(5 + piece.at / SECTOR_SIZE);
            assert_eq!((address.role, address.sector / 8 * 8), (piece.role, *sector));
        }
        // A synchronisation asks for sectors of members.
        let number = items.insert(read(8, 16), true);
        let sectors: Vec<_> = attach_all(&mut items, number).iter().map(|(s, _)| *s).collect();
        assert_eq!(sectors, [8, 16]);
    }

    #[test]
    fn an_item_ends_once_with_its_first_error() {
        let (mut items, mut done) = (Items::new(), BioList::new());
        let number = items.insert(read(0, 24), false);
        let (_, first) = items.next_piece(&layout(), number).unwrap();
        assert_eq!(items.attach(&first), (Work::Read, items.port(number)));
        items.piece_done(number, Status::Ok, &mut done);
        assert_eq!((done.len(), items.len()), (0, 1), "a part of it is not attached yet");
        assert_eq!(attach_all(&mut items, number).len(), 2);
        items.piece_done(number, Status::NoSpace, &mut done);
        assert_eq!((done.len(), items.len()), (0, 1), "a stripe has a piece of it");
        items.piece_done(number, Status::IoError, &mut done);
        assert_eq!((done.pop().unwrap().status, done.len(), items.len()), (Status::NoSpace, 0, 0));
    }

    #[test]
    fn the_kind_of_work_is_that_of_the_bio_unless_it_synchronises() {
        let mut items = Items::new();
        let write = || Bio::write(Sector(0), IoBuf::zeroed(512));
        for (bio, is_sync, work) in [
            (read(0, 1), false, Work::Read),
            (write(), false, Work::Write),
            (write(), true, Work::Sync),
        ] {
            let number = items.insert(bio, is_sync);
            let (_, piece) = items.next_piece(&layout(), number).unwrap();
            assert_eq!(items.attach(&piece).0, work);
            assert_eq!(items.is_sync(number), is_sync);
        }
    }

    #[test]
    fn the_line_is_served_in_order_and_without_the_items_that_joined() {
        let mut items = Items::new();
        let numbers: Vec<_> = (0..3).map(|n| items.insert(read(n * 8, 8), false)).collect();
        assert!(!items.has_waiting());
        numbers.iter().for_each(|number| items.wait_last(*number));
        attach_all(&mut items, numbers[1]);
        items.drop_attached_from_line();
        assert_eq!((items.waiting_at(1), items.waiting_at(2)), (Some(numbers[2]), None));
        assert_eq!(items.next_waiting(), Some(numbers[0]));
        items.wait_first(numbers[0]);
        assert_eq!(items.next_waiting(), Some(numbers[0]));
        assert_eq!(items.next_waiting(), Some(numbers[2]));
        assert_eq!((items.next_waiting(), items.has_waiting()), (None, false));
    }
}
