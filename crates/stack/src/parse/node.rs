//! A parsed text before it is checked: values with their places.
//!
//! Stack files (TOML) and device specifications on the command line (`file,path=disk.img`) become
//! the same tree, so that one schema checks both.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Findings, Source, Span};

/// A value and the bytes that it was written as.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its place in the text.
    pub span: Span,
    /// The value.
    pub value: Raw,
}

/// An unchecked value.
#[derive(Debug, Clone, PartialEq)]
pub enum Raw {
    /// A quoted text.
    Text(String),
    /// A word of a command line: text, number or switch, as the schema wants it.
    Word(String),
    /// An integer; `None` if it does not fit.
    Integer(Option<i128>),
    /// A number with a fraction, as written.
    Float(String),
    /// A switch.
    Bool(bool),
    /// A date or time, which nothing here takes.
    Date,
    /// A list.
    List(Vec<Node>),
    /// A table, in the order of the text.
    Table(Vec<Entry>),
}

/// One key of a table with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The place of the key.
    pub key_span: Span,
    /// Its value.
    pub node: Node,
}

impl Node {
    /// The kind of value that was written, for messages.
    pub fn written(&self) -> &'static str {
        match &self.value {
            Raw::Text(_) | Raw::Word(_) => "a text",
            Raw::Integer(_) => "a whole number",
            Raw::Float(_) => "a number with a fraction",
            Raw::Bool(_) => "true or false",
            Raw::Date => "a date",
            Raw::List(_) => "a list",
            Raw::Table(_) => "a table",
        }
    }

    /// The keys of a table; of another value none.
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Raw::Table(entries) => entries,
            _ => &[],
        }
    }

    /// The text of a quoted text or a word.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Raw::Text(text) | Raw::Word(text) => Some(text),
            _ => None,
        }
    }

    /// The place of `part` (a byte range of this node's text) in the source: exact when the text
    /// was written without escapes, else the whole node.
    pub fn part(&self, source: &Source, part: Span) -> Span {
        let written = source.text.get(self.span.clone()).unwrap_or("");
        match self.text().and_then(|text| begin(written, text)) {
            Some(start) => self.span.start + start + part.start..self.span.start + start + part.end,
            None => self.span.clone(),
        }
    }
}

/// The begin of `text` in its source: behind the quotes, if it has no escapes. These places are
/// tried first, because a table's text is long and this is called for each word.
fn begin(written: &str, text: &str) -> Option<usize> {
    const QUOTES_MAX: usize = 5; // three, and a line end of two bytes
    let at = |start: &usize| written.get(*start..).is_some_and(|rest| rest.starts_with(text));
    (0..=QUOTES_MAX).find(at).or_else(|| written.find(text))
}

/// Parses a TOML document; syntax errors go to `findings`, and then there is no tree.
pub fn parse_toml(source: &Source, findings: &mut Findings) -> Option<Vec<Entry>> {
    let (document, errors) = DeTable::parse_recoverable(&source.text);
    for error in &errors {
        let span = widen(source, error.span().unwrap_or(0..0));
        let hint = match findings.is_full() {
            true => String::new(),
            false => syntax_hint(source, &span),
        };
        findings.error(&span, format!("not TOML: {}", error.message()), hint);
    }
    errors.is_empty().then(|| entries(document.into_inner()))
}

/// Extends an empty span, where something is missing, to the word before it on its line.
fn widen(source: &Source, span: Span) -> Span {
    let before = source.text.get(..span.start).filter(|_| span.is_empty()).unwrap_or("");
    let start = before.rfind([' ', '\t', '\n', '=', ',', '[', '{']).map_or(0, |at| at + 1);
    if span.is_empty() { start..span.end } else { span }
}

fn entries(table: DeTable<'_>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = table
        .into_iter()
        .map(|(key, value)| Entry {
            key_span: key.span(),
            key: key.into_inner().into_owned(),
            node: node(value),
        })
        .collect();
    entries.sort_by_key(|entry| entry.key_span.start);
    entries
}

fn node(value: Spanned<DeValue<'_>>) -> Node {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::String(text) => Raw::Text(text.into_owned()),
        DeValue::Integer(number) => {
            Raw::Integer(i128::from_str_radix(number.as_str(), number.radix()).ok())
        }
        DeValue::Float(number) => Raw::Float(number.as_str().to_owned()),
        DeValue::Boolean(switch) => Raw::Bool(switch),
        DeValue::Datetime(_) => Raw::Date,
        DeValue::Array(items) => Raw::List(items.into_iter().map(node).collect()),
        DeValue::Table(table) => Raw::Table(entries(table)),
    };
    Node { span, value }
}

/// The right form at a syntax error: most often quotes are missing.
fn syntax_hint(source: &Source, span: &Span) -> String {
    let (line, _) = source.position(span.start);
    let text = source.text.lines().nth(line - 1).unwrap_or("");
    let bare = text.split_once('=').map(|(_, value)| value.trim());
    match bare.and_then(|value| value.split([' ', ',', '#', '\t']).next()) {
        Some(word) if word.starts_with(char::is_alphanumeric) => {
            format!(
                "texts and sizes stand in quotes: \"{}\"",
                crate::diagnostic::shorten(word.trim_end_matches('"'))
            )
        }
        _ => "write KEY = VALUE lines below [device.NAME], [export.NAME] or [server]".to_owned(),
    }
}

/// Parses `KIND,key=value,key.inner=value,...`; `,,` stands for a comma inside a value, and a key
/// given more than once makes a list. The kind becomes the key `type`; a key of which `inside`
/// knows the table that it belongs to may be written without it.
pub fn parse_words(
    source: &Source,
    inside: impl Fn(&str) -> Option<&'static str>,
    findings: &mut Findings,
) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (index, (start, word)) in split_commas(&source.text).into_iter().enumerate() {
        let span = start..start + word.len();
        match word.split_once('=') {
            None if index == 0 => {
                entries.push(Entry {
                    key: "type".to_owned(),
                    key_span: span.clone(),
                    node: bare(word, span),
                });
            }
            Some((key, value)) if !key.is_empty() => {
                let value_start = start + key.len() + 1;
                let node = bare(value, value_start..span.end);
                let table = inside(key).map_or(String::new(), |table| format!("{table}."));
                let place = KeyPosition { start, implied: table.len() };
                insert(&mut entries, &format!("{table}{key}"), &place, node, findings);
            }
            _ => findings.error(
                &span,
                format!("`{}` is not KEY=VALUE", source.word(&span)),
                "write KIND,KEY=VALUE,KEY=VALUE, as in file,path=disk.img,direct=true",
            ),
        }
    }
    entries
}

fn bare(word: &str, span: Span) -> Node {
    Node { span, value: Raw::Word(word.replace(",,", ",")) }
}

/// Start and text of each comma-separated word; `,,` does not separate.
fn split_commas(text: &str) -> Vec<(usize, &str)> {
    let bytes = text.as_bytes();
    let (mut words, mut start, mut at) = (Vec::new(), 0, 0);
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b',', Some(b',')) => at += 2,
            (b',', _) => {
                words.push((start, &text[start..at]));
                at += 1;
                start = at;
            }
            _ => at += 1,
        }
    }
    words.push((start, &text[start..]));
    words
}

/// Where a key stands in the text.
struct KeyPosition {
    start: usize,
    /// Bytes at the key's begin that were not written.
    implied: usize,
}

/// Puts `value` at a dotted key, making the tables on the way.
fn insert(
    entries: &mut Vec<Entry>,
    key: &str,
    place: &KeyPosition,
    value: Node,
    findings: &mut Findings,
) {
    let (head, rest) = match key.split_once('.') {
        // `latency.p99.9` names the percentile 99.9: what follows a table's name is one key.
        Some((head, rest)) if !rest.is_empty() => (head, Some(rest)),
        _ => (key, None),
    };
    let written = if place.implied > 0 { key.len() - place.implied } else { head.len() };
    let key_span = place.start..place.start + written;
    let found = entries.iter_mut().find(|entry| entry.key == head);
    let rest_start = place.start + head.len() + 1 - place.implied;
    match (found, rest) {
        (None, None) => entries.push(Entry { key: head.to_owned(), key_span, node: value }),
        (None, Some(rest)) => {
            let inner_span = rest_start..rest_start + rest.len();
            let span = key_span.start..value.span.end;
            let inner = vec![Entry { key: rest.to_owned(), key_span: inner_span, node: value }];
            let node = Node { span, value: Raw::Table(inner) };
            entries.push(Entry { key: head.to_owned(), key_span, node });
        }
        (Some(Entry { node: Node { value: Raw::Table(inner), .. }, .. }), Some(rest)) => {
            let inner_span = rest_start..rest_start + rest.len();
            if inner.iter().any(|entry| entry.key == rest) {
                findings.error(&inner_span, format!("`{key}` is given twice"), "give it once");
                return;
            }
            inner.push(Entry { key: rest.to_owned(), key_span: inner_span, node: value });
        }
        (Some(entry), None) => match &mut entry.node.value {
            Raw::List(items) => items.push(value),
            Raw::Table(_) => {
                findings.error(&key_span, format!("`{head}` is given twice"), "give it once");
            }
            _ => {
                let first = entry.node.clone();
                entry.node = Node { span: key_span, value: Raw::List(vec![first, value]) };
            }
        },
        (Some(_), Some(_)) => {
            findings.error(&key_span, format!("`{head}` is given twice"), "give it once");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { name: "t".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn toml_keys_and_values_keep_their_places() {
        let source = source("[device.d0]\nsize = \"10GiB\"\n");
        let mut findings = Findings::default();
        let entries = parse_toml(&source, &mut findings).unwrap();
        let Raw::Table(devices) = &entries[0].node.value else { panic!("device is a table") };
        let Raw::Table(keys) = &devices[0].node.value else { panic!("d0 is a table") };
        assert_eq!(source.word(&devices[0].key_span), "d0");
        assert_eq!(source.word(&keys[0].key_span), "size");
        assert_eq!(source.word(&keys[0].node.span), "\"10GiB\"");
        assert_eq!(source.word(&keys[0].node.part(&source, 2..5)), "GiB");
    }

    #[test]
    fn a_bare_size_is_told_to_stand_in_quotes() {
        let mut findings = Findings::default();
        let source = source("[device.d0]\nsize = 10GiB\n");
        assert!(parse_toml(&source, &mut findings).is_none());
        let report = findings.into_report(source);
        assert_eq!(report.diagnostics[0].line, 2);
        assert!(report.diagnostics[0].hint.contains("\"10GiB\""), "{report}");
    }

    #[test]
    fn words_nest_repeat_and_keep_doubled_commas() {
        let source =
            source("null,queue.nr_requests=64,badblocks=1-2,badblocks=7,queue.nomerges=1,p=a,,b");
        let mut findings = Findings::default();
        let entries = parse_words(&source, |_| None, &mut findings);
        assert_eq!(findings.errors(), 0);
        let keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(keys, ["type", "queue", "badblocks", "p"]);
        let Raw::Table(queue) = &entries[1].node.value else { panic!("queue is a table") };
        assert_eq!(queue.len(), 2);
        assert_eq!(source.word(&queue[1].node.span), "1");
        assert!(matches!(&entries[2].node.value, Raw::List(items) if items.len() == 2));
        assert_eq!(entries[3].node.text(), Some("a,b"));
    }
}
