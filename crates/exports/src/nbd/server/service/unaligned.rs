//! Writes and zeroes that do not cover whole blocks ([`Unaligned`]), in the order of
//! [`crate::nbd::server::write_locks`].

use super::Service;
use crate::nbd::request::Request;
use crate::nbd::server::op::Op;
use crate::nbd::server::stream::Stream;
use crate::nbd::server::unaligned::{Next, Unaligned};
use crate::nbd::server::write_locks::Hold;
use crate::server::{Blocks, OpId, Pool};
use drystone_core::{BioList, IoBuf};

impl Service {
    /// Starts a write, or zeroes, of parts of blocks: the edges come first, once it has its turn.
    #[cold]
    pub(super) fn start_unaligned(
        &mut self,
        request: Request,
        blocks: Blocks,
        buf: IoBuf,
        pool: &mut Pool,
        bios: &mut BioList,
    ) {
        let all = blocks.all();
        let (unaligned, bio) = Unaligned::begin(blocks, &request, buf, pool);
        let op = Op { unaligned: Some(Box::new(unaligned)), ..Op::new(request) };
        let id = self.ops.add(op);
        if self.locks.line_up(id) {
            return self.change(id, bio, (Hold::Exclusive, all), bios);
        }
        if let Some(op) = self.ops.op_mut(id) {
            op.blocked = Some(bio);
        }
    }

    /// Begins an unaligned write whose turn has come: it asks for its lock behind earlier waiters.
    #[cold]
    pub(super) fn begin_turn(&mut self, id: OpId) {
        let Some(op) = self.ops.op_mut(id) else { return };
        let (request, Some(bio)) = (op.request, op.blocked.take()) else { return };
        let (all, mut bios) = (self.blocks(&request).all(), BioList::new());
        self.change(id, bio, (Hold::Exclusive, all), &mut bios);
        self.next.append(&mut bios);
    }

    /// Takes the next step of a request for parts of blocks, or replies.
    #[cold]
    pub(super) fn step_unaligned(&mut self, id: OpId, pool: &mut Pool, stream: &mut Stream) {
        let Some(op) = self.ops.op_mut(id) else { return };
        if !op.status.is_ok() {
            // The reply gives the buffer back.
            return self.end(id, pool, stream);
        }
        let (Some(unaligned), Some(buf)) = (&mut op.unaligned, op.data.take()) else {
            unreachable!("each step of it has the buffer");
        };
        match unaligned.next(&op.request, buf, pool) {
            Next::Bio(bio) => self.push_next(id, bio),
            Next::Inside(buf) => {
                op.unaligned = None;
                self.zero_rest(id, buf, pool);
            }
            Next::Done(buf) => {
                op.data = Some(buf);
                self.end(id, pool, stream);
            }
        }
    }
}
