//! Cuts a stream of bytes into lines of bounded length.

use super::MAX_LINE_BYTES;

/// Collects bytes until a line is whole. Holds at most [`MAX_LINE_BYTES`]; the rest of a longer
/// line is skipped and the line reported once as [`Line::TooLong`].
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    skipping: bool,
}

/// A line without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A whole line; bytes that are not UTF-8 have been replaced.
    Whole(String),
    /// A line that was longer than the bound.
    TooLong,
}

impl LineBuffer {
    /// Adds bytes and gives the lines that they end.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.take(&bytes[..end], &mut lines);
            if !std::mem::take(&mut self.skipping) {
                let line = std::mem::take(&mut self.bytes);
                lines.push(Line::Whole(String::from_utf8_lossy(&line).into_owned()));
            }
            bytes = &bytes[end + 1..];
        }
        self.take(bytes, &mut lines);
        lines
    }

    fn take(&mut self, bytes: &[u8], lines: &mut Vec<Line>) {
        if self.skipping {
            return;
        }
        if self.bytes.len() + bytes.len() > MAX_LINE_BYTES {
            self.bytes = Vec::new();
            self.skipping = true;
            lines.push(Line::TooLong);
            return;
        }
        self.bytes.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Line {
        Line::Whole(text.to_owned())
    }

    #[test]
    fn lines_come_out_whole_however_they_arrive() {
        let mut buffer = LineBuffer::default();
        assert_eq!(buffer.push(b"ab"), []);
        assert_eq!(buffer.push(b"c\nd\n\ne"), [whole("abc"), whole("d"), whole("")]);
        assert_eq!(buffer.push(b"\n"), [whole("e")]);
    }

    #[test]
    fn long_lines_are_reported_once_and_skipped() {
        let mut buffer = LineBuffer::default();
        let long = vec![b'x'; MAX_LINE_BYTES];
        assert_eq!(buffer.push(&long), []);
        assert_eq!(buffer.push(b"y"), [Line::TooLong]);
        assert_eq!(buffer.push(&long), []);
        assert_eq!(buffer.push(b"z\nok\n"), [whole("ok")]);
        assert_eq!(buffer.push(&[&long[..], b"\n"].concat()).len(), 1);
    }
}
