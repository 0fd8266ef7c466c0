//! A batch of bios that are inserted while nothing is kept, and may all go: with a FIFO and a sort
//! order of its own, which last as long as the call.
//!
//! Its order is that of an empty [`super::Deadline`] that gets the bios and is then dispatched
//! until it is empty. It takes only bios for which that holds without a look at others: bios of
//! best effort, all in one direction, none of which touches another.
//!
//! Invariants: between calls there are no bios in it. During one, bit `n` of `fifo` is set while
//! the bio that came as number `n` is there, and bit `r` of `order` while that of rank `r` is.

use super::{BEST_EFFORT, Insertion, Position, READ, WRITE, class_of, lane_of};
use drystone_core::context::PLUG_MAX_BIOS;
use drystone_core::{Bio, BioFlags, BioList, Op};

/// Most bios of one: a full plug.
pub(super) const BATCH_MAX: usize = PLUG_MAX_BIOS;

/// So many are sorted by comparing each with all others, which leaves the processor nothing to
/// guess wrong.
const FEW: usize = 8;

/// Such bios are parts of a sequence of their own.
const UNSORTED: BioFlags = BioFlags::FUA.union(BioFlags::PREFLUSH);

/// At most 32 bios. Any thread may use it, one at a time.
#[derive(Default)]
pub struct Batch {
    /// By arrival: the FIFO.
    items: [Item; BATCH_MAX],
    /// Arrivals by sector: the sort order.
    sorted: [u8; BATCH_MAX],
}

#[derive(Default)]
struct Item {
    sector: u64,
    /// The first sector behind it.
    end: u64,
    bio: Option<Box<Bio>>,
}

/// The bios that have not gone yet.
struct Left {
    fifo: u64,
    order: u64,
    /// The rank of the first bio at or behind the position.
    cursor: u32,
}

impl Batch {
    /// Bring `bios` into the order in which they go at `now`, in ns on the clock of `start_ns`.
    /// False if this is no such batch as this is for: then nothing has changed.
    pub fn order(
        &mut self,
        bios: &mut BioList,
        position: &mut Position,
        now: u64,
        how: &Insertion,
    ) -> bool {
        let Some(lane) = self.sort(bios) else { return false };
        let len = bios.len();
        for item in &mut self.items[..len] {
            item.bio = bios.pop();
        }
        let below = |place: &&u8| self.items[usize::from(**place)].sector < position.pos[lane];
        let cursor = self.sorted[..len].iter().filter(below).count() as u32;
        let all = (1 << len) - 1;
        let mut left = Left { fifo: all, order: all, cursor };
        while left.order != 0 {
            let place = self.pick(&mut left, position, lane, now, how);
            bios.extend(self.items[place].bio.take());
        }
        true
    }

    /// Sort them. `None` if it is no batch for this, else their lane.
    #[inline]
    fn sort(&mut self, bios: &BioList) -> Option<usize> {
        let first = bios.front()?;
        let lane = lane_of(first.op, first.priority);
        let len = bios.len();
        if len > BATCH_MAX || class_of(first.priority) != BEST_EFFORT {
            return None;
        }
        let mut same = true;
        for (item, bio) in self.items.iter_mut().zip(bios.iter()) {
            let plain = bio.op != Op::Flush && !bio.flags.intersects(UNSORTED);
            same &= plain && lane_of(bio.op, bio.priority) == lane;
            item.sector = bio.sector.0;
            // Nobody has checked yet where it ends.
            item.end = bio.sector.0.saturating_add(bio.bytes >> 9);
        }
        if !same {
            return None;
        }
        if len <= FEW {
            self.rank(len)
        } else {
            self.sort_many(len)
        }
        let item = |place: u8| &self.items[usize::from(place)];
        let apart = |two: &[u8]| item(two[0]).end < item(two[1]).sector;
        self.sorted[..len].windows(2).all(apart).then_some(lane)
    }

    #[inline]
    fn rank(&mut self, len: usize) {
        let mut ranks = [0; FEW];
        for later in 1..len.min(FEW) {
            for earlier in 0..later {
                let below = self.items[later].sector < self.items[earlier].sector;
                ranks[earlier] += u8::from(below);
                ranks[later] += u8::from(!below);
            }
        }
        for (place, rank) in ranks[..len.min(FEW)].iter().enumerate() {
            self.sorted[usize::from(*rank) % BATCH_MAX] = place as u8;
        }
    }

    #[inline(never)]
    fn sort_many(&mut self, len: usize) {
        for (place, sorted) in self.sorted[..len].iter_mut().enumerate() {
            *sorted = place as u8;
        }
        self.sorted[..len].sort_unstable_by_key(|place| self.items[usize::from(*place)].sector);
    }

    /// Choose the bio that goes next; returns when it came.
    #[inline]
    fn pick(
        &self,
        left: &mut Left,
        position: &mut Position,
        lane: usize,
        now: u64,
        how: &Insertion,
    ) -> usize {
        let direction = lane % 2;
        let above = left.order & u64::MAX << left.cursor;
        let goes_on = above != 0
            && usize::from(position.last_dir) == direction
            && position.batching < how.tunables.fifo_batch;
        let rank = match goes_on {
            true => above.trailing_zeros(),
            false => {
                position.begin(direction);
                self.first_of_batch(left, above, now, how)
            }
        };
        let place = usize::from(self.sorted[rank as usize % BATCH_MAX]) % BATCH_MAX;
        position.batching += 1;
        position.pos[lane] = self.items[place].sector;
        left.cursor = rank + 1;
        left.order &= !(1 << rank);
        left.fifo &= !(1 << place);
        place
    }

    /// The rank of the bio that a new batch in the same direction begins with.
    #[inline]
    fn first_of_batch(&self, left: &Left, above: u64, now: u64, how: &Insertion) -> u32 {
        let oldest = left.fifo.trailing_zeros();
        let bio = self.items[oldest as usize].bio.as_ref().expect("it has not gone");
        let deadline = bio.start_ns.saturating_add(how.tunables.expire_ns(bio.op));
        if above != 0 && deadline > now {
            return above.trailing_zeros();
        }
        let rank = self.sorted.iter().position(|place| u32::from(*place) == oldest);
        rank.expect("it is in order") as u32
    }
}

impl Position {
    /// A batch in `direction` begins, with nothing in the other.
    #[inline]
    fn begin(&mut self, direction: usize) {
        debug_assert!(direction == READ || direction == WRITE);
        if direction == WRITE {
            self.starved = 0;
        }
        (self.last_dir, self.batching) = (direction as u8, 0);
    }
}
