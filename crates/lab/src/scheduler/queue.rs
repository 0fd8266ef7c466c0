//! The state that both schedulers guard with their main lock: the algorithm's, and counts of the
//! requests in flight.

use drystone_core::{Bio, BioList, PortId};
use drystone_queue::scheduler::deadline::{CLASSES, Deadline, Inserted, Position};
use drystone_queue::scheduler::{InsertAt, Port};

use super::counts::Counts;
use super::host::Host;

/// Why nothing was dispatched, or that something was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A unit is on its way.
    Granted,
    /// There is a unit, but no tag.
    NoTag,
    /// Nothing is kept, or what is may not go while stronger classes are in flight.
    NoUnit,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Queue {
    trees: Deadline,
    position: Position,
    counts: Counts,
    /// Ports of channels other than the one that inserted, whose bios may be kept without their
    /// knowledge.
    arrivals: Vec<PortId>,
}

/// The requests that had ended when a dispatcher looked, to see whether that has changed.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    ended: [u64; CLASSES],
    closed: [u64; CLASSES],
}

impl Seen {
    /// True if requests have ended since.
    pub(super) fn is_old(&self, host: &mut impl Host) -> bool {
        (0..CLASSES).any(|class| self.closed[class] + host.ended(class) != self.ended[class])
    }
}

impl Queue {
    /// Units kept.
    pub(super) fn kept(&self) -> u32 {
        self.trees.len() as u32
    }

    pub(super) fn seen(&self) -> Seen {
        Seen { ended: self.counts.ended, closed: self.counts.ended_closed }
    }

    /// Insert `bios` (emptied).
    pub(super) fn insert(&mut self, host: &impl Host, bios: &mut BioList, place: InsertAt) {
        for bio in bios.iter().filter(|bio| bio.port != host.port_id()) {
            if self.arrivals.last() != Some(&bio.port) {
                self.arrivals.push(bio.port);
            }
        }
        match place {
            InsertAt::Tail => self.insert_sorted(host, bios),
            InsertAt::Head => self.trees.insert_all_at_head(bios, &host.insertion()),
        }
    }

    #[inline]
    fn insert_sorted(&mut self, host: &impl Host, bios: &mut BioList) {
        let how = host.insertion();
        while let Some(bio) = bios.pop() {
            let group = bio.op.group();
            if self.trees.insert(bio.port, bio, &how) != Inserted::Kept {
                host.count_merged(group);
            }
        }
    }

    /// Let a kept unit take `bio` in.
    ///
    /// # Errors
    /// The bio, if nothing took it.
    pub(super) fn merge(&mut self, host: &impl Host, bio: Box<Bio>) -> Result<(), Box<Bio>> {
        let group = bio.op.group();
        self.trees.merge(bio.port, bio, &host.insertion())?;
        host.count_merged(group);
        Ok(())
    }

    /// Grant one unit; `tag` says whether the host has found a tag.
    #[inline]
    pub(super) fn dispatch_one(&mut self, host: &mut impl Host, tag: bool) -> Outcome {
        if self.trees.is_empty() {
            self.arrivals.clear();
            return Outcome::NoUnit;
        }
        if !tag {
            return self.no_tag(host);
        }
        let Queue { trees, position, counts, .. } = self;
        let Some((port, lane)) = host.place_next(trees, position, counts) else {
            return Outcome::NoUnit;
        };
        if let Err(mut unit) = host.grant_placed() {
            trees.insert_at_head(port, unit.bios.take(), &host.insertion());
            self.arrivals.push(port);
            return self.no_tag(host);
        }
        self.counts.dispatched[lane / 2] += 1;
        Outcome::Granted
    }

    /// Channels whose bios are kept for want of tags must know it; those whose bios came before
    /// were told before.
    #[cold]
    fn no_tag(&mut self, host: &mut impl Host) -> Outcome {
        host.starve(host.port_id());
        for port in self.arrivals.drain(..) {
            host.starve(port);
        }
        Outcome::NoTag
    }

    /// Take out the bios of `port`.
    pub(super) fn expel(&mut self, host: &impl Host, port: PortId) -> BioList {
        let (mut out, mut others) = (BioList::new(), BioList::new());
        self.trees.take_all(|owner, mut unit| match owner == port {
            true => out.append(&mut unit.bios),
            false => others.append(&mut unit.bios),
        });
        self.insert_sorted(host, &mut others);
        self.arrivals.retain(|arrival| *arrival != port);
        out
    }

    /// The channel of `port` is closed: what ended of it stays ended.
    pub(super) fn closed(&mut self, port: &Port) {
        self.arrivals.retain(|arrival| *arrival != port.id());
        for class in 0..CLASSES {
            let lanes = [2 * class, 2 * class + 1];
            self.counts.ended_closed[class] +=
                lanes.map(|lane| port.ended(lane)).iter().sum::<u64>();
        }
    }
}
