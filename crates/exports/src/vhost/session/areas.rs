//! Messages about the configuration space and the in-flight region.

use super::super::blk_config::WRITEBACK_OFFSET;
use super::super::proto::{ConfigRange, Features, Inflight, Reply, Request};
use super::Session;
use super::action::{Action, QueueStart};
use super::refusal::Refusal;
use super::served::{Pending, Served};
use super::shape::InflightShape;

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
        // Before the driver chooses, the front end may restore what it knows of the offer.
        let features = self.features.unwrap_or(self.offer.features());
        if !features.contains(Features::CONFIG_WCE) {
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
        let packed = self.features().contains(Features::RING_PACKED);
        let action = Action::MakeInflight { shape: (&inflight).into(), packed };
        Served::Act(action, Pending::MadeInflight(inflight))
    }

    pub(super) fn set_inflight(&self, inflight: Inflight, file: F) -> Result<Served<F>, Refusal> {
        let request = Request::SetInflightFd;
        self.check_inflight(request, &inflight)?;
        check_length(request, &inflight, self.features())?;
        if let Some(queue) = self.running_queue() {
            return Err(Refusal::QueueRuns { request, queue });
        }
        Ok(Served::Act(Action::SetInflight { inflight, file }, Pending::Inflight(inflight)))
    }

    fn check_inflight(&self, request: Request, inflight: &Inflight) -> Result<(), Refusal> {
        let Inflight { queues, queue_size, .. } = *inflight;
        let (queues_max, size_max) = (self.offer.queues(), self.offer.queue_size_max());
        if (1..=queues_max).contains(&queues) && (1..=size_max).contains(&queue_size) {
            return Ok(());
        }
        let shape = inflight.into();
        Err(Refusal::InflightShape { request, shape, queues_max, size_max })
    }

    /// Fails unless a queue that is to start has room in the in-flight region, if there is one.
    /// Features may have changed since it came, and with them the bytes that it needs.
    pub(super) fn check_room(&self, start: &QueueStart<F>) -> Result<(), Refusal> {
        let Some(inflight) = &self.inflight else { return Ok(()) };
        check_length(Request::SetVringKick, inflight, start.features)?;
        let (queue, size) = (start.queue, start.size);
        let shape = InflightShape::from(inflight);
        match shape.has(queue.number(), size) {
            true => Ok(()),
            false => Err(Refusal::OutsideInflight { queue, size, shape }),
        }
    }
}

/// Fails if an in-flight region has fewer bytes than its shape needs.
fn check_length(request: Request, inflight: &Inflight, features: Features) -> Result<(), Refusal> {
    let shape = InflightShape::from(inflight);
    let needed = shape.bytes(features.contains(Features::RING_PACKED));
    if inflight.bytes < needed {
        return Err(Refusal::InflightLength { request, shape, bytes: inflight.bytes, needed });
    }
    Ok(())
}
