//! The deadlines of connections.
//!
//! Invariant: a connection has at most one deadline.

use drystone_core::clock::Ns;
use std::collections::BTreeSet;

/// Deadlines by connection, by number.
#[derive(Default)]
pub(super) struct Deadlines {
    due: BTreeSet<(Ns, u32)>,
    /// The deadline of each connection; 0 is none.
    of: Vec<Ns>,
}

impl Deadlines {
    /// Sets the deadline of connection `number`; 0 removes it.
    pub(super) fn set(&mut self, number: u32, at: Ns) {
        if self.of.len() <= number as usize {
            self.of.resize(number as usize + 1, 0);
        }
        let before = std::mem::replace(&mut self.of[number as usize], at);
        if before != 0 {
            self.due.remove(&(before, number));
        }
        if at != 0 {
            self.due.insert((at, number));
        }
    }

    /// True without deadlines.
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// The first deadline.
    pub(super) fn first(&self) -> Option<Ns> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the connection whose deadline passed first, and removes the deadline.
    pub(super) fn take_due(&mut self, now: Ns) -> Option<u32> {
        let (_, number) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.set(number, 0);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_one_deadline() {
        let mut deadlines = Deadlines::default();
        deadlines.set(3, 50);
        deadlines.set(1, 70);
        deadlines.set(3, 90);
        assert_eq!((deadlines.first(), deadlines.take_due(69)), (Some(70), None));
        deadlines.set(0, 80);
        deadlines.set(0, 0);
        deadlines.set(7, 0);
        let due: Vec<u32> = std::iter::from_fn(|| deadlines.take_due(90)).collect();
        assert_eq!((due, deadlines.is_empty()), (vec![1, 3], true));
    }
}
