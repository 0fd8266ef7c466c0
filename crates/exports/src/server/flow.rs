//! Flow control: the bounds of one client's requests in flight. At a bound the server reads nothing
//! more from the client. So the client's memory is bounded, and only its own requests slow it down.
//!
//! Invariant: a request and its bytes count from when it was read until it was answered.

/// A client's requests and bytes in flight, and their bounds.
#[derive(Debug)]
pub(crate) struct Flow {
    requests: u32,
    bytes: u64,
    requests_max: u32,
    bytes_max: u64,
}

impl Flow {
    /// No requests in flight, and bounds for them: at least one request.
    pub(crate) fn new(requests_max: u32, bytes_max: u64) -> Self {
        Flow { requests: 0, bytes: 0, requests_max: requests_max.max(1), bytes_max }
    }

    /// Counts a request that was read.
    #[inline]
    pub(crate) fn begin(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    /// Counts requests that were answered.
    #[inline]
    pub(crate) fn end(&mut self, requests: u32, bytes: u64) {
        debug_assert!(self.requests >= requests && self.bytes >= bytes);
        self.requests -= requests;
        self.bytes -= bytes;
    }

    /// True if a request of so many bytes fits. One always fits while no bytes are in flight.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let fits = self.bytes == 0 || self.bytes + bytes <= self.bytes_max;
        self.requests < self.requests_max && fits
    }

    /// True when no request is in flight.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.requests == 0
    }

    /// Bytes in flight.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_bound_counts() {
        let mut flow = Flow::new(2, 100);
        assert!(flow.is_idle() && flow.has_room(101), "one request of any length may be");
        flow.begin(60);
        assert!(flow.has_room(40) && !flow.has_room(41));
        flow.begin(40);
        assert!(!flow.has_room(0), "two requests are in flight");
        assert!(!flow.is_idle() && flow.bytes() == 100);
        flow.end(2, 100);
        assert!(flow.is_idle() && flow.has_room(101));
        flow.begin(0);
        assert!(flow.has_room(101), "no bytes are in flight");
        assert!(Flow::new(0, 1).has_room(0), "one request may always be");
    }
}
