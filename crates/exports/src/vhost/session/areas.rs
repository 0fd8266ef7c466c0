//! Messages about the configuration space and the in-flight region.

use super::super::blk_config::WRITEBACK_OFFSET;
use super::super::proto::{ConfigRange, Features, Inflight, Reply, Request};
use super::Session;
use super::action::Action;
use super::refusal::Refusal;
use super::served::{Pending, Served};

impl<F> Session<F> {
    pub(super) fn write_config(
        &self,
        range: &ConfigRange,
        bytes: &[u8],
    ) -> Result<Served<F>, Refusal> {
        let ConfigRange { offset, size, .. } = *range;
        let [value] = *bytes else { return Err(Refusal::ConfigWrite { offset, size }) };
        if offset != WRITEBACK_OFFSET {
            return Err(Refusal::ConfigWrite { offset, size });
        }
        if !self.features().contains(Features::CONFIG_WCE) {
            return Err(Refusal::WritebackNotNegotiated);
        }
        if value > 1 {
            return Err(Refusal::WritebackValue(value));
        }
        Ok(Served::Act(Action::SetWriteback(value == 1), Pending::Nothing))
    }

    pub(super) fn make_inflight(&self, inflight: Inflight) -> Served<F> {
        if let Err(reason) = self.check_inflight(Request::GetInflightFd, &inflight) {
            return Served::Refused(reason, Reply::inflight(&inflight, None));
        }
        let Inflight { queues, queue_size, .. } = inflight;
        let packed = self.features().contains(Features::RING_PACKED);
        let action = Action::MakeInflight { queues, queue_size, packed };
        Served::Act(action, Pending::MadeInflight(inflight))
    }

    pub(super) fn set_inflight(&self, inflight: Inflight, file: F) -> Result<Served<F>, Refusal> {
        self.check_inflight(Request::SetInflightFd, &inflight)?;
        if let Some(queue) = self.running_queue() {
            return Err(Refusal::QueueRuns { request: Request::SetInflightFd, queue });
        }
        Ok(Served::Act(Action::SetInflight { inflight, file }, Pending::Nothing))
    }

    fn check_inflight(&self, request: Request, inflight: &Inflight) -> Result<(), Refusal> {
        let Inflight { queues, queue_size, .. } = *inflight;
        let (queues_max, size_max) = (self.offer.queues(), self.offer.queue_size_max());
        if (1..=queues_max).contains(&queues) && (1..=size_max).contains(&queue_size) {
            return Ok(());
        }
        Err(Refusal::InflightShape { request, queues, queue_size, queues_max, size_max })
    }
}
