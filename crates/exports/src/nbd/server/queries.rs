//! The queries of a connection for block status, one after the other.
//!
//! Invariant: at most one query of a connection is under way. The others wait in the order in which
//! their bios came back.

use crate::server::OpId;
use std::collections::VecDeque;

/// The queries of a connection.
#[derive(Default)]
pub(super) struct Queries {
    /// Operations whose query may begin.
    waiting: VecDeque<OpId>,
    /// The operation whose query is under way.
    asked: Option<OpId>,
}

impl Queries {
    /// Adds the query of an operation.
    pub(super) fn push(&mut self, id: OpId) {
        self.waiting.push_back(id);
    }

    /// Begins the next query, if none is under way.
    pub(super) fn begin(&mut self) -> Option<OpId> {
        if self.asked.is_none() {
            self.asked = self.waiting.pop_front();
            return self.asked;
        }
        None
    }

    /// Ends the query under way.
    pub(super) fn end(&mut self) -> Option<OpId> {
        self.asked.take()
    }

    /// Takes a query out that has not begun.
    pub(super) fn pop(&mut self) -> Option<OpId> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_query_is_under_way_at_a_time() {
        let mut queries = Queries::default();
        assert_eq!((queries.begin(), queries.end()), (None, None));
        (0..3).for_each(|id| queries.push(OpId(id)));
        assert_eq!((queries.begin(), queries.begin()), (Some(OpId(0)), None));
        assert_eq!((queries.end(), queries.begin()), (Some(OpId(0)), Some(OpId(1))));
        assert_eq!((queries.pop(), queries.pop()), (Some(OpId(2)), None), "it goes on alone");
        assert_eq!((queries.end(), queries.end()), (Some(OpId(1)), None));
    }
}
