//! Flow control: how much of one client may be in flight. Whoever is at a bound is not read from, so that what a
//! client can have of a server's memory is known, and it is slowed down by its own requests alone.
//!
//! Invariant: a request counts from when it was read until it was answered, and so do its bytes.

/// What a client has in flight, and may have.
#[derive(Debug)]
pub(crate) struct Flow {
    requests: u32,
    bytes: u64,
    requests_max: u32,
    bytes_max: u64,
}

impl Flow {
    /// Nothing is in flight. So much may be, at least one request.
    pub(crate) fn new(requests_max: u32, bytes_max: u64) -> Self {
        Flow { requests: 0, bytes: 0, requests_max: requests_max.max(1), bytes_max }
    }

    /// A request was read.
    #[inline]
    pub(crate) fn begin(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    /// So many were answered.
    #[inline]
    pub(crate) fn end(&mut self, requests: u32, bytes: u64) {
        debug_assert!(self.requests >= requests && self.bytes >= bytes);
        self.requests -= requests;
        self.bytes -= bytes;
    }

    /// At a bound: nothing new is read.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.requests >= self.requests_max || self.bytes >= self.bytes_max
    }

    /// A request of so many bytes fits; one always does where no bytes are in flight.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let fits = self.bytes == 0 || self.bytes + bytes <= self.bytes_max;
        self.requests < self.requests_max && fits
    }

    /// Nothing is in flight.
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
        assert!(flow.is_idle() && !flow.is_full());
        flow.begin(0);
        assert!(!flow.is_full());
        flow.begin(0);
        assert!(flow.is_full());
        flow.end(2, 0);
        assert!(flow.has_room(101), "one request of any length may be");
        flow.begin(60);
        assert!(flow.has_room(40) && !flow.has_room(41) && !flow.is_full());
        flow.begin(40);
        assert!(!flow.has_room(0), "two requests are in flight");
        assert!(flow.is_full() && !flow.is_idle() && flow.bytes() == 100);
        flow.end(2, 100);
        assert!(flow.is_idle() && !flow.is_full());
        assert!(!Flow::new(0, 1).is_full(), "one request may always be");
    }
}
