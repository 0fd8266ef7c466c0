//! Questions that a helper thread asks, because the answer may take long.

use super::Buffers;
use crate::extent::ExtentQuery;

/// A question for [`super::Ring::query`].
#[derive(Debug)]
pub enum Query {
    /// Which ranges of a device hold data. The answer comes as [`Buffers::Extents`].
    Extents(ExtentQuery),
    /// Anything with yes or no as its answer: the event's result is 1 or 0.
    Whether {
        /// Called once, with `of`, on a thread that may block for a short time. At most one call of
        /// the function runs at a time.
        ask: fn(u32) -> bool,
        /// The argument of `ask`.
        of: u32,
    },
}

impl From<ExtentQuery> for Query {
    fn from(query: ExtentQuery) -> Self {
        Query::Extents(query)
    }
}

impl Query {
    /// Ask: for threads that may block. The result of the event, and what it carries.
    pub fn run(&self) -> (i32, Buffers) {
        match self {
            Query::Extents(query) => (0, Buffers::Extents(query.run())),
            Query::Whether { ask, of } => (i32::from(ask(*of)), Buffers::None),
        }
    }

    /// Tells queries of one device, or function, from those of others.
    pub(super) fn lane(&self) -> usize {
        match self {
            Query::Extents(query) => query.lane(),
            Query::Whether { ask, .. } => *ask as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_is_one_and_no_is_zero() {
        let is_odd = |of: u32| of % 2 == 1;
        for of in 0..4 {
            let (result, buffers) = Query::Whether { ask: is_odd, of }.run();
            assert_eq!(result, i32::from(of % 2 == 1));
            assert!(matches!(buffers, Buffers::None));
        }
    }
}
