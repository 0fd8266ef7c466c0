//! Requests out of the stream, and the data of writes.

use super::{Connection, Payload, Phase, Taken};
use crate::nbd::server::service::{Service, queue_refusal};
use crate::nbd::transmission::{Item, Transmission};
use drystone_core::BioList;

impl Connection {
    /// Parses and starts one request, or takes more of a write's data. True if there may be more.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        mut transmission: Box<Transmission>,
        mut service: Box<Service>,
        bios: &mut BioList,
    ) -> bool {
        let more = match self.payload.take() {
            Some(payload) => self.take_payload(payload, &mut service, bios),
            None => match self.held.take() {
                Some(taken) => self.begin(taken, &mut service, bios),
                None => self.next_request(&mut transmission, &mut service, bios),
            },
        };
        self.phase = Some(Phase::Transmission(transmission, service));
        more
    }

    #[inline]
    fn next_request(
        &mut self,
        transmission: &mut Transmission,
        service: &mut Service,
        bios: &mut BioList,
    ) -> bool {
        let Ok(input) = self.stream.input() else {
            self.drain();
            return false;
        };
        let parsed = transmission.next(input);
        self.stream.consume(parsed.consumed);
        match parsed.item {
            Item::NeedMore => parsed.consumed > 0 && self.stream.may_have_more(),
            Item::Request(request) => {
                self.coalesce.request();
                self.begin(Taken::Request(request), service, bios)
            }
            Item::Refused(refusal) => self.begin(Taken::Refused(refusal), service, bios),
            Item::Close(_) => {
                self.drain();
                true
            }
        }
    }

    /// Begins a parsed message if its window has room, else holds it. True if there may be more.
    #[inline]
    fn begin(&mut self, taken: Taken, service: &mut Service, bios: &mut BioList) -> bool {
        let cost = taken.cost();
        let bytes = match &taken {
            Taken::Request(request) => service.buffer_bytes(request),
            Taken::Refused(_) => 0,
        };
        if !self.windows.has_room(cost) || bytes > 0 && !self.pool.reserve(bytes) {
            self.held = Some(taken);
            return false;
        }
        self.windows.begin(cost);
        match taken {
            Taken::Request(request) => {
                if request.payload_bytes() > 0 {
                    let (buf, at) = (self.pool.take(bytes), service.payload_at(&request));
                    self.payload = Some(Payload { request, buf, at, got: 0 });
                } else {
                    service.start(request, None, &mut self.pool, &mut self.stream, bios);
                }
            }
            Taken::Refused(refusal) => {
                queue_refusal(service.style(), &refusal, &mut self.pool, &mut self.stream);
            }
        }
        true
    }

    /// Moves received bytes into a write's data; starts the write when it is whole.
    #[inline]
    fn take_payload(
        &mut self,
        mut payload: Payload,
        service: &mut Service,
        bios: &mut BioList,
    ) -> bool {
        let wanted = payload.request.length as usize - payload.got;
        if wanted > 0 {
            let Ok(input) = self.stream.input() else {
                self.drain();
                return false;
            };
            let n = input.len().min(wanted);
            if let Some(buf) = &mut payload.buf {
                let at = payload.at + payload.got;
                buf[at..at + n].copy_from_slice(&input[..n]);
            }
            payload.got += n;
            self.stream.consume(n);
            if n < wanted {
                self.payload = Some(payload);
                return n > 0;
            }
        }
        service.start(payload.request, payload.buf, &mut self.pool, &mut self.stream, bios);
        true
    }
}
