//! Quoting of foreign text in one of our lines.

use std::borrow::Cow;

/// `text` with its control characters written as in Rust (`
/// `, `\u{1b}`), so that it stays on its line and does not control a terminal: for paths and names,
/// which may hold any. All other characters stay, backslashes too.
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match letter.is_control() {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
    }
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        let cases = [
            ("/a b/ü\\x.img", "/a b/ü\\x.img"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{1b}[31m\u{7f}\u{85}", "\\u{1b}[31m\\u{7f}\\u{85}"),
            ("", ""),
        ];
        for (text, line) in cases {
            assert_eq!(one_line(text), line);
        }
    }
}
