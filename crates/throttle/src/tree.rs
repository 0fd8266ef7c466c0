//! Waiting bios in the order of their dispatch: a tree of the groups that have any.
//!
//! Each node is a group, with a queue of its own bios and with children. The bios of a group go in
//! their order of arrival. If several queues of a node have bios that may go, the one goes first
//! that was served least, by the cost of its I/Os at the limit that they share. So a group's own
//! bios and each of its children get equal shares, however many bios each has (Linux serves them
//! round robin, by I/Os). A child that waits for a limit of its own does not hold up its siblings.
//!
//! Invariants:
//! * Every node has bios in its queue or below it.
//! * A node is in one of its parent's sets: in `ready` if its next bio may go as far as is known,
//!   otherwise in `later`, with the time of the next check. The same holds for its own queue, which
//!   is in the node's own sets under the node's number.
//! * A bio goes when every meter from its group to the top permits it, and is charged at all of
//!   them at once: no group reserves future capacity of a parent.

use crate::budget::Ticks;
use crate::group::GroupId;
use crate::limits::charged_bytes;
use crate::meter::{Meter, Step};
use drystone_core::{Bio, BioList, Slab};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The time if no time is known.
pub(crate) const NEVER: Ticks = Ticks::MAX;

/// The set of its parent in which a node or a queue is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InSet {
    Neither,
    Ready,
    Later(Ticks),
}

/// A competitor for the service of a node: a child, or the node's own queue.
struct Competitor {
    in_set: InSet,
    /// The service that it has had.
    served: Ticks,
}

impl Competitor {
    fn new() -> Self {
        Competitor { in_set: InSet::Neither, served: 0 }
    }
}

struct Node {
    group: GroupId,
    parent: Option<u32>,
    meter: Option<Arc<Meter>>,
    children: usize,
    queue: BioList,
    as_child: Competitor,
    as_queue: Competitor,
    ready: BTreeSet<(Ticks, u32)>,
    later: BTreeSet<(Ticks, u32)>,
    /// The service that the last served competitor had before that.
    reached: Ticks,
    /// Children that have left although they were served more than `reached`. They get this service
    /// back when they return.
    left: BTreeMap<GroupId, Ticks>,
}

impl Node {
    fn new(step: &Step, parent: Option<u32>) -> Self {
        Node {
            group: step.group,
            parent,
            meter: step.meter.clone(),
            children: 0,
            queue: BioList::new(),
            as_child: Competitor::new(),
            as_queue: Competitor::new(),
            ready: BTreeSet::new(),
            later: BTreeSet::new(),
            reached: 0,
            left: BTreeMap::new(),
        }
    }

    /// Note that a child leaves that has had the service `served`.
    fn leaves(&mut self, group: GroupId, served: Ticks) {
        self.children -= 1;
        if self.left.len() > LEFT_MIN + 2 * self.children {
            let reached = self.reached;
            self.left.retain(|_, served| *served > reached);
        }
        if served > self.reached {
            self.left.insert(group, served);
        }
    }
}

/// The number of left children that are always remembered; only beyond it are outdated ones
/// removed.
const LEFT_MIN: usize = 16;

/// A bio that may go, and its charge.
struct Next {
    leaf: u32,
    bytes: u64,
    /// The earliest time at which another competitor may be ready that comes first.
    others: Ticks,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Tree {
    nodes: Slab<Node>,
    by_group: BTreeMap<GroupId, u32>,
    top: Option<u32>,
    len: usize,
    /// True while the bios that leave go on to wait in another tree.
    moves: bool,
}

impl Tree {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn node(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index]
    }

    /// Add `bio`, which waits from `now` on; `steps` are its group's path to the top.
    pub(crate) fn push(&mut self, steps: &[Step], bio: Box<Bio>, now: Ticks) {
        let index = self.ensure(steps, now);
        let node = self.node(index);
        node.queue.push(bio);
        self.len += 1;
        if self.node(index).as_queue.in_set == InSet::Neither {
            self.make_ready(index, index);
            self.reconsider(index);
        }
    }

    /// The node of the first step. It is made if necessary, with the nodes above it.
    fn ensure(&mut self, steps: &[Step], now: Ticks) -> u32 {
        let (first, above) = steps.split_first().expect("a way has a top");
        if let Some(index) = self.by_group.get(&first.group) {
            return *index;
        }
        let parent = (!above.is_empty()).then(|| self.ensure(above, now));
        first.meter.iter().for_each(|meter| meter.begin_waiting(now));
        let index = self.nodes.insert(Node::new(first, parent));
        self.by_group.insert(first.group, index);
        match parent {
            Some(parent) => {
                let parent = self.node(parent);
                parent.children += 1;
                let served = parent.left.remove(&first.group);
                self.node(index).as_child.served = served.unwrap_or(0);
            }
            None => self.top = Some(index),
        }
        index
    }

    /// Make the node ready in all nodes above, because it has a new bio.
    fn reconsider(&mut self, mut index: u32) {
        while let Some(parent) = self.node(index).parent {
            self.make_ready(parent, index);
            index = parent;
        }
    }

    fn competitor(&mut self, of: u32, which: u32) -> &mut Competitor {
        let node = self.node(which);
        if of == which { &mut node.as_queue } else { &mut node.as_child }
    }

    /// Take competitor `which` out of the sets of node `of`.
    fn take_out(&mut self, of: u32, which: u32) {
        let competitor = self.competitor(of, which);
        let served = competitor.served;
        match std::mem::replace(&mut competitor.in_set, InSet::Neither) {
            InSet::Neither => false,
            InSet::Ready => self.node(of).ready.remove(&(served, which)),
            InSet::Later(at) => self.node(of).later.remove(&(at, which)),
        };
    }

    fn make_ready(&mut self, of: u32, which: u32) {
        if self.competitor(of, which).in_set == InSet::Ready {
            return;
        }
        let reached = self.node(of).reached;
        self.take_out(of, which);
        let competitor = self.competitor(of, which);
        // A competitor that was away, or waited for limits of its own, does not save up service.
        competitor.served = competitor.served.max(reached);
        competitor.in_set = InSet::Ready;
        let served = competitor.served;
        self.node(of).ready.insert((served, which));
    }

    fn put_off(&mut self, of: u32, which: u32, at: Ticks) {
        self.take_out(of, which);
        self.competitor(of, which).in_set = InSet::Later(at);
        self.node(of).later.insert((at, which));
    }

    /// Take and charge a bio that may go at `now`. Fails with the time at which to try again.
    pub(crate) fn pop(&mut self, now: Ticks) -> Result<Box<Bio>, Ticks> {
        let top = self.top.ok_or(NEVER)?;
        let next = self.next(top, now)?;
        self.charge(&next, now);
        let bio = self.node(next.leaf).queue.pop().expect("its queue is ready");
        self.len -= 1;
        self.tidy(next.leaf);
        Ok(bio)
    }

    /// The next bio of node `of` or below, if this node and those below permit it.
    fn next(&mut self, of: u32, now: Ticks) -> Result<Next, Ticks> {
        self.call_due(of, now);
        let mut next = loop {
            let which = self.first_ready(of)?;
            let found = if which == of { Ok(self.head(of)) } else { self.next(which, now) };
            match found {
                Ok(next) => break next,
                Err(at) => {
                    self.put_off(of, which, at.max(now + 1));
                }
            }
        };
        let node = self.node(of);
        next.others = node.later.first().map_or(next.others, |(at, _)| next.others.min(*at));
        let Some(meter) = &node.meter else { return Ok(next) };
        let at = meter.when(next.bytes);
        if at <= now {
            return Ok(next);
        }
        meter.set_blocked();
        Err(at.min(next.others))
    }

    fn call_due(&mut self, of: u32, now: Ticks) {
        while let Some((at, which)) = self.node(of).later.first().copied() {
            if at > now {
                return;
            }
            self.make_ready(of, which);
        }
    }

    fn first_ready(&mut self, of: u32) -> Result<u32, Ticks> {
        let node = self.node(of);
        match node.ready.first() {
            Some((_, which)) => Ok(*which),
            None => Err(node.later.first().map_or(NEVER, |(at, _)| *at)),
        }
    }

    fn head(&mut self, of: u32) -> Next {
        let bio = self.node(of).queue.front().expect("a queue that is ready has bios");
        Next { leaf: of, bytes: charged_bytes(bio), others: NEVER }
    }

    /// Charge the bio at every meter on its path, and count the service of the competitors.
    fn charge(&mut self, next: &Next, now: Ticks) {
        let (mut of, mut which) = (next.leaf, next.leaf);
        loop {
            let cost = self.cost(of, next.bytes);
            self.serve(of, which, cost);
            let node = self.node(of);
            if let Some(meter) = &node.meter {
                meter.charge(now, next.bytes);
            }
            let Some(parent) = self.node(of).parent else { return };
            (which, of) = (of, parent);
        }
    }

    /// The cost of an I/O at the nearest limit from node `of` upwards, which the node's competitors
    /// share.
    fn cost(&mut self, mut of: u32, bytes: u64) -> Ticks {
        loop {
            let node = self.node(of);
            match (&node.meter, node.parent) {
                (Some(meter), _) => return meter.cost(bytes),
                (None, Some(parent)) => of = parent,
                (None, None) => return 0,
            }
        }
    }

    fn serve(&mut self, of: u32, which: u32, cost: Ticks) {
        let before = self.competitor(of, which).served;
        self.take_out(of, which);
        let competitor = self.competitor(of, which);
        competitor.served = before.saturating_add(cost);
        competitor.in_set = InSet::Ready;
        let served = competitor.served;
        let node = self.node(of);
        node.ready.insert((served, which));
        node.reached = node.reached.max(before);
    }

    /// Remove empty nodes after a bio has left node `index`.
    fn tidy(&mut self, mut index: u32) {
        if self.node(index).queue.is_empty() {
            self.take_out(index, index);
        }
        while self.node(index).queue.is_empty() && self.node(index).children == 0 {
            let parent = self.node(index).parent;
            if let Some(parent) = parent {
                self.take_out(parent, index);
            }
            let Some((group, served)) = self.remove(index) else { return };
            let Some(parent) = parent else {
                self.top = None;
                return;
            };
            self.node(parent).leaves(group, served);
            index = parent;
        }
    }

    fn remove(&mut self, index: u32) -> Option<(GroupId, Ticks)> {
        let node = self.nodes.remove(index)?;
        if let Some(meter) = &node.meter {
            meter.end_waiting(self.moves);
        }
        self.by_group.remove(&node.group);
        Some((node.group, node.as_child.served))
    }

    /// Take the bios for which `is_one` is true; each group's bios keep their order.
    pub(crate) fn take(&mut self, is_one: impl Fn(&Bio) -> bool) -> BioList {
        let mut taken = BioList::new();
        let all: Vec<u32> = self.by_group.values().copied().collect();
        for index in all {
            let mut queue = self.node(index).queue.take();
            while let Some(bio) = queue.pop() {
                let to = if is_one(&bio) { &mut taken } else { &mut self.node(index).queue };
                to.push(bio);
            }
        }
        self.len -= taken.len();
        self.tidy_all();
        taken
    }

    /// Take all bios, to let them wait elsewhere.
    pub(crate) fn move_all(&mut self) -> BioList {
        self.moves = true;
        let all = self.take(|_| true);
        self.moves = false;
        all
    }

    /// Set every service to 0, because the limits have changed by which it was measured.
    pub(crate) fn forget_service(&mut self) {
        let all: Vec<u32> = self.by_group.values().copied().collect();
        for index in &all {
            let node = self.node(*index);
            (node.as_child, node.as_queue) = (Competitor::new(), Competitor::new());
            node.reached = 0;
            node.ready.clear();
            node.later.clear();
            node.left.clear();
        }
        for index in all {
            if !self.node(index).queue.is_empty() {
                self.make_ready(index, index);
            }
            if let Some(parent) = self.node(index).parent {
                self.make_ready(parent, index);
            }
        }
    }

    fn tidy_all(&mut self) {
        let all: Vec<GroupId> = self.by_group.keys().copied().collect();
        for group in all {
            // The node may have been removed with one of its children.
            if let Some(index) = self.by_group.get(&group) {
                self.tidy(*index);
            }
        }
    }
}
