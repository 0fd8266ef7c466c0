//! Replies into the stream.

use super::Service;
use crate::nbd::proto::{Command, ErrorCode};
use crate::nbd::reply::{ReplyStyle, ReplyTag};
use crate::nbd::request::{Refusal, Request};
use crate::nbd::server::op::Op;
use crate::nbd::server::stream::Stream;
use crate::nbd::server::window::Cost;
use crate::server::{DATA_AT, Pool};
use drystone_core::ring::SendPart;
use drystone_core::{IoBuf, Pipe, Status};
use std::ops::Range;

impl Service {
    /// Replies to an operation that is over.
    #[inline]
    pub(super) fn reply(&mut self, op: Op, pool: &mut Pool, stream: &mut Stream) {
        let (style, tag) = (self.style, op.request.tag());
        let cost = Cost::of(&op.request);
        if !op.status.is_ok() {
            self.reply_error(op, pool, stream);
        } else if op.request.command != Command::Read {
            op.data.into_iter().for_each(|buf| pool.give(buf));
            stream.queue_small(pool, style.success_bytes(), |out| style.success(out, tag));
        } else if let Some(buf) = op.data {
            let start = DATA_AT + self.blocks(&op.request).skip();
            let data = start..start + op.request.length as usize;
            queue_data((style, tag), data, buf, op.pipe, stream);
        }
        stream.reply_queued(cost);
    }

    #[cold]
    fn reply_error(&mut self, op: Op, pool: &mut Pool, stream: &mut Stream) {
        op.data.into_iter().for_each(|buf| pool.give(buf));
        debug_assert!(op.pipe.is_none(), "only a read that succeeds has its data there");
        let error = match op.status {
            Status::Cancelled if self.stopping => ErrorCode::Eshutdown,
            status => ErrorCode::from_errno(status.errno()),
        };
        let message = op.status.to_string();
        queue_error(self.style, op.request.tag(), error, &message, pool, stream);
    }

    /// Refuses a request for which there is no memory.
    pub(super) fn out_of_memory(&mut self, request: Request, pool: &mut Pool, stream: &mut Stream) {
        self.refuse(request, (ErrorCode::Enomem, "memory is short"), pool, stream);
    }

    /// Refuses a request that was not started.
    pub(super) fn refuse(
        &mut self,
        request: Request,
        (error, message): (ErrorCode, &str),
        pool: &mut Pool,
        stream: &mut Stream,
    ) {
        queue_error(self.style, request.tag(), error, message, pool, stream);
        stream.reply_queued(Cost::of(&request));
    }
}

/// Queues the reply of a read: header and data stand in one buffer, unless the data is in a pipe.
#[inline]
fn queue_data(
    (style, tag): (ReplyStyle, ReplyTag),
    data: Range<usize>,
    mut buf: IoBuf,
    pipe: Option<Box<Pipe>>,
    stream: &mut Stream,
) {
    let start = data.start - style.read_header_bytes();
    style.read_header(&mut buf[start..data.start], tag, data.len() as u32);
    let end = if pipe.is_some() { data.start } else { data.end };
    stream.queue_part(SendPart { buf, range: start..end, pipe });
}

/// Queues an error reply.
fn queue_error(
    style: ReplyStyle,
    tag: ReplyTag,
    error: ErrorCode,
    message: &str,
    pool: &mut Pool,
    stream: &mut Stream,
) {
    let most = style.error_bytes(message);
    stream.queue_small(pool, most, |out| style.error(out, tag, error, message));
}

/// Queues the reply to a request that the parser refused.
pub(in crate::nbd::server) fn queue_refusal(
    style: ReplyStyle,
    refusal: &Refusal,
    pool: &mut Pool,
    stream: &mut Stream,
) {
    queue_error(style, refusal.tag, refusal.error, refusal.message, pool, stream);
    stream.reply_queued(Cost::REFUSAL);
}
