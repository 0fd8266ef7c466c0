//! Reads Rust source well enough to find names in it: comments, literals and test code are put
//! aside, and imports with braces are written out.
//!
//! This is no parser. It knows exactly as much of the grammar as the checks need: what is a
//! comment, what is a literal, where an item ends.

/// A word or a sign of the source, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token<'a> {
    /// An identifier, `::`, or one other character.
    pub text: &'a str,
    /// Line, from 1.
    pub line: usize,
    /// Byte offset of its first character.
    pub start: usize,
}

/// A path such as `std::sync::Mutex`, imports in braces written out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathUse<'a> {
    /// Its segments.
    pub segments: Vec<&'a str>,
    /// Line of its last segment, from 1.
    pub line: usize,
}

/// Replaces comments and the content of literals by blanks. Lines and offsets stay as they were.
pub fn strip(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match opaque_end(bytes, at) {
            Some(end) => {
                blank(&mut out[at..end]);
                end
            }
            None => word_end(bytes, at),
        };
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Replaces every item under `#[cfg(test)]` by blanks, in source that [`strip`] has cleaned.
/// A file that begins with `#![cfg(test)]` becomes all blank.
pub fn without_tests(stripped: &str) -> String {
    let tokens = tokens(stripped);
    let mut out = stripped.as_bytes().to_vec();
    let mut index = 0;
    while index < tokens.len() {
        let Some((after, inner)) = test_attribute(&tokens, index) else {
            index += 1;
            continue;
        };
        let end = if inner { tokens.len() } else { item_end(&tokens, after) };
        let stop = tokens.get(end).map_or(out.len(), |token| token.start);
        blank(&mut out[tokens[index].start..stop]);
        index = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Names of modules that are declared for tests only and live in files of their own.
pub fn test_modules(stripped: &str) -> Vec<String> {
    let tokens = tokens(stripped);
    let mut modules = Vec::new();
    for index in 0..tokens.len() {
        let Some((after, false)) = test_attribute(&tokens, index) else { continue };
        let end = item_end(&tokens, after);
        let words: Vec<&str> = tokens[after..end].iter().map(|token| token.text).collect();
        if let [.., "mod", name, ";"] = words[..] {
            modules.push(name.to_owned());
        }
    }
    modules
}

/// Splits stripped source into tokens.
pub fn tokens(stripped: &str) -> Vec<Token<'_>> {
    let bytes = stripped.as_bytes();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while at < bytes.len() {
        let end = match bytes[at] {
            b':' if bytes.get(at + 1) == Some(&b':') => at + 2,
            _ => word_end(bytes, at),
        };
        if bytes[at] == b'\n' {
            line += 1;
        } else if !bytes[at].is_ascii_whitespace() {
            let text = stripped.get(at..end).unwrap_or("?");
            tokens.push(Token { text, line, start: at });
        }
        at = end;
    }
    tokens
}

/// Every path in the tokens, `use a::{b, c::d}` written out as `a::b` and `a::c::d`.
pub fn paths<'a>(tokens: &[Token<'a>]) -> Vec<PathUse<'a>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_word(tokens[at].text) {
            at = read_path(tokens, at, &mut Vec::new(), &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one path that starts at `at`, after the segments in `prefix`; returns where it ends.
fn read_path<'a>(
    tokens: &[Token<'a>],
    mut at: usize,
    prefix: &mut Vec<&'a str>,
    found: &mut Vec<PathUse<'a>>,
) -> usize {
    let depth = prefix.len();
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" if depth < prefix.len() => {
                at = read_group(tokens, at + 1, prefix, found);
                break;
            }
            word if is_word(word) || word == "*" => {
                prefix.push(word);
                at += 1;
                if tokens.get(at).map(|next| next.text) != Some("::") {
                    found.push(PathUse { segments: prefix.clone(), line: token.line });
                    break;
                }
                at += 1;
            }
            _ => {
                found.push(PathUse { segments: prefix.clone(), line: token.line });
                break;
            }
        }
    }
    prefix.truncate(depth);
    at
}

/// Reads the paths of a group up to and with its closing brace.
fn read_group<'a>(
    tokens: &[Token<'a>],
    mut at: usize,
    prefix: &mut Vec<&'a str>,
    found: &mut Vec<PathUse<'a>>,
) -> usize {
    while let Some(token) = tokens.get(at) {
        match token.text {
            "}" => return at + 1,
            "as" => at += 2,
            text if is_word(text) || text == "*" => at = read_path(tokens, at, prefix, found),
            _ => at += 1,
        }
    }
    at
}

/// Recognises `#[cfg(test)]` and its like at `index`: returns the index after the attribute and
/// whether it is an inner one (`#![...]`), which speaks of the whole file.
fn test_attribute(tokens: &[Token<'_>], index: usize) -> Option<(usize, bool)> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    if text(index) != "#" {
        return None;
    }
    let inner = text(index + 1) == "!";
    let open = index + 1 + usize::from(inner);
    if text(open) != "[" || text(open + 1) != "cfg" {
        return None;
    }
    let end = matching_end(tokens, open);
    let condition: Vec<&str> = tokens[open + 2..end].iter().map(|token| token.text).collect();
    test_only(&condition).then_some((end, inner))
}

/// Whether a condition such as `(test)` or `(all(loom, test))` holds in tests only.
fn test_only(condition: &[&str]) -> bool {
    match condition {
        ["(", "test", ")", "]"] => true,
        ["(", "all", "(", members @ .., ")", ")", "]"] => {
            top_level_words(members).contains(&"test")
        }
        _ => false,
    }
}

fn top_level_words<'a>(members: &[&'a str]) -> Vec<&'a str> {
    let (mut depth, mut words) = (0_usize, Vec::new());
    for member in members {
        match *member {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            word if depth == 0 => words.push(word),
            _ => {}
        }
    }
    words
}

/// Index after the item (or statement, field, variant) that starts at `index`.
fn item_end(tokens: &[Token<'_>], mut index: usize) -> usize {
    while tokens.get(index).is_some_and(|token| token.text == "#") {
        index = matching_end(tokens, index + 1);
    }
    let is_item = tokens.get(index).is_some_and(|token| ITEM_WORDS.contains(&token.text));
    while let Some(token) = tokens.get(index) {
        match token.text {
            "(" | "[" => index = matching_end(tokens, index),
            "{" => {
                let end = matching_end(tokens, index);
                let goes_on = tokens.get(end).is_some_and(|next| [";", ","].contains(&next.text));
                return if goes_on { end + 1 } else { end };
            }
            ";" => return index + 1,
            "," if !is_item => return index + 1,
            "}" => return index,
            _ => index += 1,
        }
    }
    index
}

/// Words that begin an item or statement in which a comma does not end it.
const ITEM_WORDS: [&str; 16] = [
    "pub", "fn", "mod", "impl", "struct", "enum", "union", "use", "static", "const", "type",
    "trait", "unsafe", "extern", "async", "let",
];

/// Index after the bracket that matches the opening one at `open`.
fn matching_end(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Offset after the word at `at`, or after the one byte if no word starts there.
fn word_end(bytes: &[u8], at: usize) -> usize {
    let length = bytes[at..].iter().take_while(|byte| is_word_byte(**byte)).count();
    at + length.max(1)
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

/// If a comment or a literal with hidden content starts at `at`, the offset after it.
fn opaque_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes[at] {
        b'/' if bytes.get(at + 1) == Some(&b'/') => Some(line_end(bytes, at)),
        b'/' if bytes.get(at + 1) == Some(&b'*') => Some(block_comment_end(bytes, at)),
        b'"' => Some(string_end(bytes, at + 1)),
        b'\'' => char_end(bytes, at),
        b'r' | b'b' | b'c' => prefixed_string_end(bytes, at),
        _ => None,
    }
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| at + length)
}

fn block_comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Offset after a string with escapes, whose content starts at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Offset after a character literal; nothing for a lifetime or label.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        let close = bytes[(at + 3).min(bytes.len())..].iter().position(|byte| *byte == b'\'')?;
        return Some(at + 3 + close + 1);
    }
    let first = std::str::from_utf8(&bytes[at + 1..(at + 5).min(bytes.len())])
        .or_else(|error| std::str::from_utf8(&bytes[at + 1..at + 1 + error.valid_up_to()]))
        .ok()?
        .chars()
        .next()?;
    let close = at + 1 + first.len_utf8();
    (bytes.get(close) == Some(&b'\'')).then_some(close + 1)
}

/// Offset after `r"..."`, `r#"..."#`, `b"..."`, `br"..."`, `c"..."`, `cr"..."`, `b'...'`.
fn prefixed_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let letters = bytes[at..].iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let prefix = &bytes[at..at + letters];
    let after = at + letters;
    match prefix {
        b"b" if bytes.get(after) == Some(&b'\'') => char_end(bytes, after),
        b"b" | b"c" if bytes.get(after) == Some(&b'"') => Some(string_end(bytes, after + 1)),
        b"r" | b"br" | b"cr" => raw_string_end(bytes, after),
        _ => None,
    }
}

fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(at + hashes) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let content = at + hashes + 1;
    let length = bytes[content..].windows(close.len()).position(|window| window == close);
    Some(length.map_or(bytes.len(), |length| content + length + close.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        let stripped = strip(source);
        assert_eq!(stripped.len(), source.len(), "offsets must stay");
        tokens(&stripped).iter().map(|token| token.text.to_owned()).collect()
    }

    fn paths_of(source: &str) -> Vec<String> {
        let stripped = strip(source);
        paths(&tokens(&stripped)).iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn comments_of_every_kind_disappear() {
        assert_eq!(words("a // b\n/* c /* d */ e */ f /// g\n//! h"), ["a", "f"]);
        assert_eq!(words("a /* never closed"), ["a"]);
        assert_eq!(words("a / b"), ["a", "/", "b"]);
    }

    #[test]
    fn strings_of_every_kind_disappear() {
        assert_eq!(words(r#"a "b \" c" d"#), ["a", "d"]);
        assert_eq!(words(r##"a r"b\" c r#"d " e"# f"##), ["a", "c", "f"]);
        assert_eq!(words(r##"b"x" br#"y"# c"z" cr"w" k"##), ["k"]);
        assert_eq!(words(r#"a "never closed"#), ["a"]);
        assert_eq!(words("\"// no comment\" a"), ["a"]);
    }

    #[test]
    fn characters_disappear_and_lifetimes_stay() {
        assert_eq!(words(r"'a' b '\'' c '\u{1F600}' d b'e' f 'é' g"), ["b", "c", "d", "f", "g"]);
        assert_eq!(words("&'a str"), ["&", "'", "a", "str"]);
        assert_eq!(words("'\"' a '\"' b"), ["a", "b"]);
    }

    #[test]
    fn raw_identifiers_and_words_that_end_in_prefix_letters_are_words() {
        assert_eq!(words("r#type bar\"x\" rb"), ["r", "#", "type", "bar", "rb"]);
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let stripped = strip("/* \n */ \"\n\" word");
        assert_eq!(tokens(&stripped)[0].line, 3);
    }

    #[test]
    fn groups_of_imports_are_written_out() {
        let found = paths_of("use std::{sync::{Arc, Mutex as M}, thread::{self, spawn}, fmt};");
        for path in
            ["std::sync::Arc", "std::sync::Mutex", "std::thread::self", "std::thread::spawn"]
        {
            assert!(found.contains(&path.to_owned()), "{path} in {found:?}");
        }
        assert!(paths_of("use std::sync::*;").contains(&"std::sync::*".to_owned()));
        assert!(paths_of("let x = Instant::now();").contains(&"Instant::now".to_owned()));
        assert!(paths_of("Vec::<Mutex>::new()").contains(&"Mutex".to_owned()));
        assert!(paths_of("if x { Mutex::new() }").contains(&"Mutex::new".to_owned()));
    }

    fn kept(source: &str) -> String {
        without_tests(&strip(source)).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn test_items_disappear_and_others_stay() {
        assert_eq!(kept("a #[cfg(test)] mod tests { fn f() { {} } } b"), "a b");
        assert_eq!(kept("#[cfg(all(test, not(loom)))] #[x] fn f(a: A, b: B) -> C { } b"), "b");
        assert_eq!(kept("#[cfg(test)] use a::{b, c}; d"), "d");
        assert_eq!(kept("struct S { #[cfg(test)] a: A, b: B }"), "struct S { b: B }");
        assert_eq!(kept("#[cfg(test)] mod tests; b"), "b");
        assert_eq!(kept("#![cfg(test)] a { b }"), "");
    }

    #[test]
    fn conditions_that_hold_outside_tests_keep_the_item() {
        for source in
            ["#[cfg(not(test))] a", "#[cfg(any(test, x))] a", "#[cfg(all(x, not(test)))] a"]
        {
            assert_eq!(kept(source), source);
        }
    }

    #[test]
    fn test_modules_in_files_of_their_own_are_named() {
        let source = strip("#[cfg(test)] mod tests; #[cfg(test)] pub(crate) mod fake; mod real;");
        assert_eq!(test_modules(&source), ["tests", "fake"]);
    }
}
