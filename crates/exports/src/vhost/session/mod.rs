//! The session of one front end as a state machine: a message in, a reply and an action out.
//!
//! ```text
//!                     a message with an action
//!        +--------+ ----------------------------> +---------+
//!        | ready  |                               | waiting |   no message is taken
//!        +--------+ <---------------------------- +---------+
//!                     the outcome, with the reply
//! ```
//!
//! Invariants:
//! * One message is served at a time: replies go out in the order of the messages.
//! * A refused message changes nothing, and neither does an action that failed.
//! * A change that has an action counts only when the action is done.
//! * A queue runs only with a size, with aligned addresses that lay in memory when it started, with
//!   a kick descriptor, and with features that do not change but for [`Features::LOG_ALL`].
//! * A queue that runs has room in the in-flight region, if there is one.
//! * Regions share no guest addresses and no user addresses, and there are at most [`SLOTS_MAX`].
//! * Features, protocol features and queues are among those offered.

#![forbid(unsafe_code)]

use super::proto::{
    Features, Frame, Inflight, InflightReply, Message, ProtocolFeatures, Reply, Request,
};

mod action;
mod areas;
mod memory;
mod negotiation;
mod offer;
mod queues;
mod refusal;
mod region_table;
mod ring;
mod served;
mod shape;
mod step;
#[cfg(test)]
mod tests;

use region_table::RegionTable;
use ring::Ring;
use served::{Asked, Pending, Served, Waiting};

pub use action::{Action, QueueIndex, QueueStart};
pub use offer::{Offer, QUEUE_SIZE_MAX, QUEUES_MAX, SLOTS_MAX};
pub use refusal::{AddressSpace, Refusal, RingPart};
pub use shape::InflightShape;
pub use step::Step;

/// The session of one front end. `F` is a descriptor: `OwnedFd`, or a number in tests. Owned by the
/// thread that serves the connection.
#[derive(Debug)]
pub struct Session<F> {
    offer: Offer,
    /// The choice of the guest's driver; `None` before it is made.
    features: Option<Features>,
    protocol_features: ProtocolFeatures,
    /// The device status, which the back end only keeps.
    status: u8,
    regions: RegionTable,
    /// The in-flight region that the server uses, if there is one.
    inflight: Option<Inflight>,
    /// One for each offered queue.
    rings: Vec<Ring<F>>,
    waiting: Option<Waiting<F>>,
}

impl<F> Session<F> {
    /// The session of a front end that has sent nothing yet.
    pub fn new(offer: Offer) -> Self {
        Self {
            features: None,
            protocol_features: ProtocolFeatures::empty(),
            status: 0,
            regions: RegionTable::default(),
            inflight: None,
            rings: (0..offer.queues()).map(|_| Ring::default()).collect(),
            waiting: None,
            offer,
        }
    }

    /// The chosen features; none before they are chosen.
    pub fn features(&self) -> Features {
        self.features.unwrap_or_default()
    }

    /// The chosen protocol features.
    pub fn protocol_features(&self) -> ProtocolFeatures {
        self.protocol_features
    }

    /// True while the session waits for the outcome of an action. Then it takes no message.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// True if the queue was started and not stopped.
    pub fn is_started(&self, queue: QueueIndex) -> bool {
        self.ring(queue).is_started()
    }

    /// Takes a message. `config` is the configuration space, of which `GET_CONFIG` tells a part.
    ///
    /// # Panics
    /// When the session waits for an outcome: a mistake of the server.
    pub fn receive(&mut self, frame: Frame<'_, F>, config: &[u8]) -> Step<F> {
        assert!(self.waiting.is_none(), "a message before the outcome of the last");
        let asked = Asked { number: frame.number(), need_reply: frame.needs_reply() };
        let served = self.allow(frame.request()).and_then(|()| {
            let message = Message::read(frame)?;
            self.serve(message, config)
        });
        match served {
            Ok(Served::Done) => self.acknowledge(asked),
            Ok(Served::Reply(reply)) => Step::Reply(reply),
            Ok(Served::Refused(reason, reply)) => Step::Refused { reason, reply },
            Ok(Served::Act(action, pending)) => {
                self.waiting = Some(Waiting { asked, pending });
                Step::Act(action)
            }
            Err(reason) => self.refuse(asked, reason),
        }
    }

    /// The action is done. For [`Action::StopQueue`] and [`Action::MakeInflight`] see
    /// [`Self::queue_stopped`] and [`Self::inflight_made`].
    ///
    /// # Panics
    /// When no action is under way, or one of those two: a mistake of the server.
    pub fn action_done(&mut self) -> Step<F> {
        let Waiting { asked, pending } = self.end_waiting();
        let reply = match &pending {
            Pending::Log(log) => Some(Reply::log(log.bytes, log.offset)),
            _ => None,
        };
        self.commit(pending);
        reply.map_or_else(|| self.acknowledge(asked), Step::Reply)
    }

    /// The queue of [`Action::StopQueue`] has stopped, and nothing of it is in flight. `base` says
    /// from where on it is to be served (see [`QueueStart::base`]).
    ///
    /// # Panics
    /// When no queue was to stop: a mistake of the server.
    pub fn queue_stopped(&mut self, base: u32) -> Step<F> {
        let Pending::Stopped(queue) = self.end_waiting().pending else {
            panic!("no queue was to stop");
        };
        self.ring_mut(queue).stop(base);
        Step::Reply(Reply::vring_state(queue.number().into(), base))
    }

    /// The region of [`Action::MakeInflight`] is there. It is in use only after a
    /// [`Action::SetInflight`].
    ///
    /// # Panics
    /// When no region was asked for: a mistake of the server.
    pub fn inflight_made(&mut self, region: InflightReply<F>) -> Step<F> {
        let Pending::MadeInflight(asked) = self.end_waiting().pending else {
            panic!("no in-flight region was asked for");
        };
        Step::Reply(Reply::inflight(&asked, Some(region)))
    }

    /// The action could not be carried out, and changed nothing. `why` is one sentence's end, for
    /// the log.
    ///
    /// # Panics
    /// When no action is under way: a mistake of the server.
    pub fn action_failed(&mut self, why: String) -> Step<F> {
        let Waiting { asked, pending } = self.end_waiting();
        let reason = Refusal::NotDone { request: asked.request(), why };
        match pending {
            Pending::MadeInflight(inflight) => {
                Step::Refused { reason, reply: Reply::inflight(&inflight, None) }
            }
            _ => self.refuse(asked, reason),
        }
    }

    fn end_waiting(&mut self) -> Waiting<F> {
        self.waiting.take().expect("an action is under way")
    }

    /// Makes the change of an action that is done.
    fn commit(&mut self, pending: Pending<F>) {
        match pending {
            Pending::Nothing | Pending::Log(_) => {}
            Pending::Features(features) => self.features = Some(features),
            Pending::Regions(regions) => self.regions = regions,
            Pending::Inflight(inflight) => self.inflight = Some(inflight),
            Pending::Started(queue) => self.ring_mut(queue).set_started(),
            Pending::Addresses(queue, addresses) => self.ring_mut(queue).set_addresses(addresses),
            Pending::Enabled(queue, enabled) => self.ring_mut(queue).set_enabled(enabled),
            Pending::Call(queue, call) => self.ring_mut(queue).set_call(call),
            Pending::Err(queue, err) => self.ring_mut(queue).set_err(err),
            Pending::Reset => self.reset(),
            Pending::Stopped(_) | Pending::MadeInflight(_) => {
                panic!("the outcome lacks what it is to tell the front end")
            }
        }
    }

    /// Forgets what belongs to the guest's driver. What belongs to the connection stays: protocol
    /// features, memory, and the descriptors that queues signal.
    fn reset(&mut self) {
        (self.features, self.status, self.inflight) = (None, 0, None);
        self.rings.iter_mut().for_each(Ring::reset);
    }

    fn serve(&mut self, message: Message<F>, config: &[u8]) -> Result<Served<F>, Refusal> {
        match message {
            Message::GetFeatures => {
                Ok(Served::number(Request::GetFeatures, self.offer.features().bits()))
            }
            Message::SetFeatures(features) => self.set_features(features),
            Message::GetProtocolFeatures => {
                let bits = self.offer.protocol_features().bits();
                Ok(Served::number(Request::GetProtocolFeatures, bits))
            }
            Message::SetProtocolFeatures(features) => self.set_protocol_features(features),
            // The first has no effect here, and nobody need be told of a log's change.
            Message::SetOwner | Message::SetLogFd(_) => Ok(Served::Done),
            Message::GetQueueNum => {
                Ok(Served::number(Request::GetQueueNum, self.offer.queues().into()))
            }
            Message::GetMaxMemSlots => {
                Ok(Served::number(Request::GetMaxMemSlots, SLOTS_MAX as u64))
            }
            Message::SetMemTable(regions) => self.set_regions(regions),
            Message::AddMemReg(region) => self.add_region(region),
            Message::RemMemReg(region) => self.remove_region(&region),
            Message::SetLogBase(log, file) => {
                Ok(Served::Act(Action::SetLog { log, file }, Pending::Log(log)))
            }
            Message::SetVringNum { queue, size } => self.set_size(queue, size),
            Message::SetVringAddr { queue, addresses } => self.set_addresses(queue, addresses),
            Message::SetVringBase { queue, base } => self.set_base(queue, base),
            Message::GetVringBase { queue } => self.stop_queue(queue),
            Message::SetVringKick { queue, kick } => self.set_kick(queue, kick),
            Message::SetVringCall { queue, call } => self.set_call(queue, call),
            Message::SetVringErr { queue, err } => self.set_err(queue, err),
            Message::SetVringEnable { queue, enable } => self.enable_queue(queue, enable),
            Message::SetBackendReqFd(channel) => {
                Ok(Served::Act(Action::SetBackendChannel(channel), Pending::Nothing))
            }
            Message::GetConfig(range) => Ok(Served::Reply(Reply::config(&range, config))),
            Message::SetConfig(range, bytes) => self.write_config(&range, &bytes),
            Message::GetInflightFd(inflight) => Ok(self.make_inflight(inflight)),
            Message::SetInflightFd(inflight, file) => self.set_inflight(inflight, file),
            Message::ResetOwner | Message::ResetDevice => {
                Ok(Served::Act(Action::Reset, Pending::Reset))
            }
            Message::SetStatus(status) => self.set_status(status),
            Message::GetStatus => Ok(Served::number(Request::GetStatus, self.status.into())),
        }
    }

    /// The reply that says that a message was served, if one was asked for.
    fn acknowledge(&self, asked: Asked) -> Step<F> {
        match self.is_reply_wanted(asked) {
            true => Step::Reply(Reply::number(asked.number, 0)),
            false => Step::Done,
        }
    }

    /// The reply that says that a message was refused; without one the connection ends.
    fn refuse(&self, asked: Asked, reason: Refusal) -> Step<F> {
        let request = Request::from_number(asked.number);
        if request == Some(Request::GetConfig) {
            return Step::Refused { reason, reply: Reply::config_refused() };
        }
        let has_own_reply = request.is_some_and(served::has_own_reply);
        if has_own_reply || !self.is_reply_wanted(asked) {
            return Step::Close(reason);
        }
        Step::Refused { reason, reply: Reply::number(asked.number, 1) }
    }

    fn is_reply_wanted(&self, asked: Asked) -> bool {
        asked.need_reply && self.protocol_features.contains(ProtocolFeatures::REPLY_ACK)
    }

    fn ring(&self, queue: QueueIndex) -> &Ring<F> {
        &self.rings[usize::from(queue.number())]
    }

    fn ring_mut(&mut self, queue: QueueIndex) -> &mut Ring<F> {
        &mut self.rings[usize::from(queue.number())]
    }

    /// The first queue that runs.
    fn running_queue(&self) -> Option<QueueIndex> {
        let first = self.rings.iter().position(Ring::is_started);
        first.map(|index| QueueIndex::new(index as u16))
    }
}
