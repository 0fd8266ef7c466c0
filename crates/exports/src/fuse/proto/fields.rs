//! Numbers out of bytes and into bytes.

/// Reads fields in order. What lies past the end makes everything a failure.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_ne_bytes)
    }

    pub(super) fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    /// A name, which ends with a zero.
    pub(super) fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(name)
    }
}

/// Writes fields in order. What finds no room is left out, and makes the length too great.
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    pub(super) length: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Writer { out, length: 0 }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if let Some(place) = self.out.get_mut(self.length..end) {
            place.copy_from_slice(bytes);
        }
        debug_assert!(end <= self.out.len(), "the room for a reply is known beforehand");
        self.length = end;
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_ne_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_ne_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_ne_bytes());
    }
}
