//! Block status: queries the device for the ranges that hold data.
//!
//! ```text
//!   request -> bio of no bytes -> queue -> query (a helper thread asks the device) -> reply
//! ```
//!
//! The bio makes the throttle group count each query as an I/O. This thread never queries a file
//! system itself, because such a call may block.

use super::Service;
use crate::nbd::extents::{Extent as StatusExtent, StatusQuery};
use crate::nbd::request::Request;
use crate::nbd::server::op::Op;
use crate::nbd::server::stream::Stream;
use crate::nbd::server::window::Cost;
use crate::server::Pool;
use drystone_core::extent::{Extent, ExtentQuery};
use drystone_core::{BioFlags, BioList, Op as BioOp, Sector};

/// The most extents that one query asks the device for: a file system needs two calls for each,
/// about 1 us a call on ext4. The client continues from where the answer ends.
const EXTENTS_MAX: usize = 256;

impl Service {
    /// Lets the query pass the limits of its group, as an I/O of no bytes.
    pub(super) fn block_status(&mut self, request: Request, pool: &mut Pool, bios: &mut BioList) {
        let id = self.ops.add(Op::new(request));
        let mut bio = pool.bio();
        (bio.op, bio.flags) = (BioOp::Read, BioFlags::empty());
        (bio.sector, bio.bytes) = (Sector::from_bytes(self.blocks(&request).all().start), 0);
        bio.user_data = self.ops.user_data(id, 0);
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

    /// Takes the device's answer to the query; an empty one if no helper thread was available.
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
        let query = StatusQuery::new(request, if whole { self.layout.block_bytes() } else { 1 });
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
