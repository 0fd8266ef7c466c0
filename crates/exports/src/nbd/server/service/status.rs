//! Block status: the device tells which ranges hold data.
//!
//! ```text
//!   request -> bio of no bytes -> queue -> query (a helper thread asks the device) -> reply
//! ```
//!
//! The bio lets the throttle group count each query as an I/O. Nothing here asks a file system itself,
//! which may block.
//!
//! Invariant: at most one query of a connection is under way. The others wait in the order in which
//! their bios came back.

use super::Service;
use crate::nbd::extents::{Extent as StatusExtent, StatusQuery};
use crate::nbd::request::Request;
use crate::nbd::server::op::{Op, OpId};
use crate::nbd::server::stream::Stream;
use crate::nbd::server::window::Cost;
use crate::server::Pool;
use drystone_core::extent::{Extent, ExtentQuery};
use drystone_core::{BioFlags, BioList, Op as BioOp, Sector};
use std::collections::VecDeque;

/// Most extents that one query asks the device for: a file system is asked twice for each, about 1 us
/// a time on ext4. The client asks on from where the answer ends.
const EXTENTS_MAX: usize = 256;

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
    fn begin(&mut self) -> Option<OpId> {
        if self.asked.is_none() {
            self.asked = self.waiting.pop_front();
            return self.asked;
        }
        None
    }

    /// Ends the query under way.
    fn end(&mut self) -> Option<OpId> {
        self.asked.take()
    }

    /// Takes a query out that has not begun.
    fn pop(&mut self) -> Option<OpId> {
        self.waiting.pop_front()
    }
}

impl Service {
    /// Lets the query pass the limits of its group, as an I/O of no bytes.
    pub(super) fn block_status(&mut self, request: Request, pool: &mut Pool, bios: &mut BioList) {
        let id = self.ops.add(Op::new(request));
        let mut bio = pool.bio();
        (bio.op, bio.flags) = (BioOp::Read, BioFlags::empty());
        (bio.sector, bio.bytes) = (Sector::from_bytes(self.blocks(&request).all().start), 0);
        bio.user_data = self.ops.user_data(id);
        bios.push(bio);
    }

    /// Begins the next query, if one is due and none is under way: [`Service::end_query`] takes its
    /// answer.
    pub(in crate::nbd::server) fn begin_query(&mut self) -> Option<ExtentQuery> {
        let id = self.queries.begin()?;
        let blocks = self.blocks(&self.ops.op(id)?.request);
        let (offset, length) = (blocks.all().start, blocks.all_bytes() as u64);
        Some(ExtentQuery { device: self.device.clone(), offset, length, max: EXTENTS_MAX })
    }

    /// Takes the device's answer to the query; nothing if there was no thread to ask it.
    pub(in crate::nbd::server) fn end_query(
        &mut self,
        found: &[Extent],
        pool: &mut Pool,
        stream: &mut Stream,
    ) {
        let Some(id) = self.queries.end() else { return };
        let Some(op) = self.remove(id) else { return };
        let mut before = self.blocks(&op.request).skip() as u64;
        let convert = |e: &Extent| {
            let cut = before.min(e.length);
            before -= cut;
            StatusExtent { length: e.length - cut, data: e.allocated, zero: e.zero }
        };
        let extents: Vec<_> = found.iter().map(convert).collect();
        self.reply_status(&op.request, &extents, pool, stream);
    }

    /// Ends the operations whose query has not begun: nobody waits for the answers.
    pub(in crate::nbd::server) fn drop_queries(&mut self) {
        while let Some(id) = self.queries.pop() {
            self.remove(id);
        }
    }

    fn reply_status(
        &mut self,
        request: &Request,
        extents: &[StatusExtent],
        pool: &mut Pool,
        stream: &mut Stream,
    ) {
        let whole = self.blocks(request).is_whole();
        let query = StatusQuery::new(request, if whole { self.block as u32 } else { 1 });
        let most = self.style.status_bytes(EXTENTS_MAX);
        let last = request.contexts.len();
        for (n, place) in request.contexts.iter().enumerate() {
            let (id, done) = (self.context_ids[place], n + 1 == last);
            stream.queue_small(pool, most, |out| {
                self.style.status_chunk(out, request.tag(), id, extents, query, done)
            });
        }
        stream.reply_queued(Cost::of(request));
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
