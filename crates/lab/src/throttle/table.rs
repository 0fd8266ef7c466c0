//! Groups by their numbers.

use drystone_throttle::{Bounds, GroupId};

/// A value for each existing group.
pub(super) struct Table<G>(Vec<Option<(GroupId, G)>>);

impl<G> Default for Table<G> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<G> Table<G> {
    /// The number of slots; all groups have smaller numbers.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(super) fn get(&mut self, group: GroupId) -> Option<&mut G> {
        let place = self.0.get_mut(group.slot())?.as_mut();
        place.filter(|(id, _)| *id == group).map(|(_, value)| value)
    }

    /// Rebuild the table for the root and the groups of `all`; `make` gets the previous value of
    /// each.
    pub(super) fn rebuild(
        &mut self,
        all: Vec<Bounds>,
        mut make: impl FnMut(Bounds, Option<G>) -> G,
    ) {
        let root = Bounds { group: GroupId::ROOT, reads: Vec::new(), writes: Vec::new() };
        let mut before = std::mem::take(self);
        for bounds in std::iter::once(root).chain(all) {
            let (id, slot) = (bounds.group, bounds.group.slot());
            if self.0.len() <= slot {
                self.0.resize_with(slot + 1, || None);
            }
            let known = before.0.get_mut(slot).and_then(Option::take);
            let known = known.filter(|(was, _)| *was == id).map(|(_, value)| value);
            self.0[slot] = Some((id, make(bounds, known)));
        }
    }
}
