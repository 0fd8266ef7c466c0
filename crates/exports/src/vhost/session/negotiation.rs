//! Messages about features, and which messages need which.

use super::super::proto::{Features, ProtocolFeatures, Request};
use super::Session;
use super::action::Action;
use super::refusal::Refusal;
use super::served::{Pending, Served};

/// The protocol feature that a message belongs to.
struct Needed {
    feature: ProtocolFeatures,
    name: &'static str,
    /// True if the protocol text ties the message to the offer, and not to the choice.
    is_offer_enough: bool,
}

fn needed(request: Request) -> Option<Needed> {
    use ProtocolFeatures as P;
    let (feature, name, is_offer_enough) = match request {
        Request::GetQueueNum => (P::MQ, "MQ", true),
        Request::SetBackendReqFd => (P::BACKEND_REQ, "BACKEND_REQ", true),
        Request::ResetDevice => (P::RESET_DEVICE, "RESET_DEVICE", true),
        Request::SetLogBase => (P::LOG_SHMFD, "LOG_SHMFD", false),
        Request::GetConfig | Request::SetConfig => (P::CONFIG, "CONFIG", false),
        Request::GetInflightFd | Request::SetInflightFd => {
            (P::INFLIGHT_SHMFD, "INFLIGHT_SHMFD", false)
        }
        Request::GetMaxMemSlots | Request::AddMemReg | Request::RemMemReg => {
            (P::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS", false)
        }
        Request::SetStatus | Request::GetStatus => (P::STATUS, "STATUS", false),
        _ => return None,
    };
    Some(Needed { feature, name, is_offer_enough })
}

impl<F> Session<F> {
    /// Fails if a message belongs to a feature that was not negotiated.
    pub(super) fn allow(&self, request: Option<Request>) -> Result<(), Refusal> {
        let Some(request) = request else { return Ok(()) };
        let Some(Needed { feature, name, is_offer_enough }) = needed(request) else {
            return self.allow_enable(request);
        };
        let has = match is_offer_enough {
            true => self.offer.protocol_features(),
            false => self.protocol_features,
        };
        if has.contains(feature) { Ok(()) } else { Err(Refusal::NotNegotiated { request, name }) }
    }

    /// `SET_VRING_ENABLE` needs `PROTOCOL_FEATURES`. Before the choice the offer counts, which has
    /// it: front ends disable queues after a reset, too, and what is enabled early only tells how
    /// the queue starts.
    fn allow_enable(&self, request: Request) -> Result<(), Refusal> {
        let features = self.features.unwrap_or(self.offer.features());
        let is_chosen = features.contains(Features::PROTOCOL_FEATURES);
        if request == Request::SetVringEnable && !is_chosen {
            return Err(Refusal::NotNegotiated { request, name: "PROTOCOL_FEATURES" });
        }
        Ok(())
    }

    pub(super) fn set_features(&mut self, features: Features) -> Result<Served<F>, Refusal> {
        let offered = self.offer.features();
        let unknown = features - offered;
        if !unknown.is_empty() {
            let (bits, offered) = (unknown.bits(), offered.bits());
            return Err(Refusal::FeaturesNotOffered { bits, offered });
        }
        let Some(queue) = self.running_queue() else {
            self.features = Some(features);
            return Ok(Served::Done);
        };
        if (features ^ self.features()) - Features::LOG_ALL != Features::empty() {
            return Err(Refusal::FeaturesOfRunningQueue { queue });
        }
        let logging = features.contains(Features::LOG_ALL);
        Ok(Served::Act(Action::SetLogging(logging), Pending::Features(features)))
    }

    pub(super) fn set_protocol_features(
        &mut self,
        features: ProtocolFeatures,
    ) -> Result<Served<F>, Refusal> {
        let offered = self.offer.protocol_features();
        let unknown = features - offered;
        if !unknown.is_empty() {
            let (bits, offered) = (unknown.bits(), offered.bits());
            return Err(Refusal::ProtocolFeaturesNotOffered { bits, offered });
        }
        self.protocol_features = features;
        Ok(Served::Done)
    }

    /// Status 0 is a reset (virtio 1.3, section 2.1). The other bits concern front end and driver.
    pub(super) fn set_status(&mut self, status: u64) -> Result<Served<F>, Refusal> {
        let bits = u8::try_from(status).map_err(|_| Refusal::Status(status))?;
        if bits == 0 {
            return Ok(Served::Act(Action::Reset, Pending::Reset));
        }
        self.status = bits;
        Ok(Served::Done)
    }
}
