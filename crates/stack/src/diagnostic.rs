//! Faults of a text: the fault, its place, and what would be right.
//!
//! Checks collect [`Finding`]s by byte range in a [`Findings`]; at the end a [`Report`] turns
//! them into [`Diagnostic`]s with line and column and draws them.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{
    AnnotationKind, Group, Level, Renderer, Snippet, normalize_untrusted_str as printable,
};

use crate::lines::one_line;

/// A byte range of the text that a finding points at.
pub type Span = Range<usize>;

/// Errors reported for one text; warnings have the same bound of their own.
pub const MAX_FINDINGS: usize = 20;

/// Characters of a wrong word that a message quotes.
const MAX_WORD_CHARS: usize = 64;

/// A text with the name that messages give it (a path, or `--device`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name that the user gives the text.
    pub name: String,
    /// The text itself.
    pub text: String,
}

impl Source {
    /// Line and column, from 1, in characters, of a byte offset.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let before = &self.text[..self.boundary(offset)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        (line, before[line_start..].chars().count() + 1)
    }

    /// The first line of what `span` covers, shortened to what fits a message.
    pub fn word(&self, span: &Span) -> String {
        let span = self.clamp(span);
        shorten(self.text[span].lines().next().unwrap_or(""))
    }

    /// `span` made to lie in the text, on character boundaries.
    fn clamp(&self, span: &Span) -> Span {
        let start = self.boundary(span.start);
        start..self.boundary(span.end).max(start)
    }

    fn boundary(&self, offset: usize) -> usize {
        self.text.floor_char_boundary(offset.min(self.text.len()))
    }
}

/// `word` with at most as many characters as a message quotes.
pub fn shorten(word: &str) -> String {
    if word.chars().nth(MAX_WORD_CHARS).is_none() {
        return word.to_owned();
    }
    word.chars().take(MAX_WORD_CHARS).chain(['…']).collect()
}

/// The severity of a finding: only an error stops the stack from being served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The text is refused.
    Error,
    /// The text is accepted, but probably not as meant.
    Warning,
}

/// One thing found, by byte range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Error or warning.
    pub severity: Severity,
    /// Where.
    pub span: Span,
    /// The fault, in one sentence.
    pub message: String,
    /// The right form.
    pub hint: String,
    /// A second place of the same fault (the first use, the first definition), with its label.
    pub also: Option<(Span, String)>,
}

/// Collects findings up to [`MAX_FINDINGS`] errors and as many warnings.
#[derive(Debug, Default)]
pub struct Findings {
    items: Vec<Finding>,
    errors: usize,
    warnings: usize,
}

impl Findings {
    /// Adds an error.
    pub fn error(&mut self, span: &Span, message: impl Into<String>, hint: impl Into<String>) {
        self.push(Severity::Error, span, message.into(), hint.into(), None);
    }

    /// Adds an error that has a second place.
    pub fn error_also(
        &mut self,
        span: &Span,
        message: impl Into<String>,
        hint: impl Into<String>,
        also: (&Span, &str),
    ) {
        let also = Some((also.0.clone(), also.1.to_owned()));
        self.push(Severity::Error, span, message.into(), hint.into(), also);
    }

    /// Adds a warning.
    pub fn warning(&mut self, span: &Span, message: impl Into<String>, hint: impl Into<String>) {
        self.push(Severity::Warning, span, message.into(), hint.into(), None);
    }

    /// The number of errors, those beyond the bound included.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// True if further errors are only counted, so that callers need not build their messages.
    pub fn is_full(&self) -> bool {
        self.errors >= MAX_FINDINGS
    }

    fn push(
        &mut self,
        severity: Severity,
        span: &Span,
        message: String,
        hint: String,
        also: Option<(Span, String)>,
    ) {
        let count = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        *count += 1;
        if *count <= MAX_FINDINGS {
            self.items.push(Finding { severity, span: span.clone(), message, hint, also });
        }
    }

    /// The findings with their places in `source`, errors first, each kind in text order.
    pub fn into_report(mut self, source: Source) -> Report {
        self.items.sort_by_key(|f| (f.severity == Severity::Warning, f.span.start));
        let beyond = |count: usize| count.saturating_sub(MAX_FINDINGS);
        let omitted = beyond(self.errors) + beyond(self.warnings);
        let diagnostics =
            self.items.into_iter().map(|finding| Diagnostic::new(&source, finding)).collect();
        Report { source, diagnostics, omitted }
    }
}

/// One finding with its place, as tests and other programs read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The word that it points at, or the first line of a longer range.
    pub word: String,
    /// The fault, in one sentence.
    pub message: String,
    /// The right form; empty if the message says it all.
    pub hint: String,
    span: Span,
    also: Option<(Span, String)>,
}

impl Diagnostic {
    fn new(source: &Source, finding: Finding) -> Self {
        let span = source.clamp(&finding.span);
        let (line, column) = source.position(span.start);
        Self {
            severity: finding.severity,
            line,
            column,
            word: source.word(&span),
            message: finding.message,
            hint: finding.hint,
            span,
            also: finding.also.map(|(span, label)| (source.clamp(&span), label)),
        }
    }

    fn group<'a>(&'a self, source: &'a Source) -> Group<'a> {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut snippet = Snippet::source(source.text.as_str())
            .path(one_line(&source.name))
            .annotation(AnnotationKind::Primary.span(self.span.clone()));
        if let Some((span, label)) = &self.also {
            let also = AnnotationKind::Context.span(span.clone()).label(label.as_str());
            snippet = snippet.annotation(also);
        }
        let group = level.primary_title(printable(&one_line(&self.message))).element(snippet);
        if self.hint.is_empty() {
            return group;
        }
        group.element(Level::HELP.message(printable(&one_line(&self.hint))))
    }
}

/// All findings of one text. `Display` draws them without colour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The text.
    pub source: Source,
    /// The findings, errors first, each kind in text order.
    pub diagnostics: Vec<Diagnostic>,
    /// The number of further ones beyond the bound.
    pub omitted: usize,
}

impl Report {
    /// True if any finding is an error.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|found| found.severity == Severity::Error)
    }

    /// Draws the findings with the lines they point at; `colour` only for a terminal.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut out = String::new();
        for found in &self.diagnostics {
            out.push_str(&renderer.render(&[found.group(&self.source)]));
            out.push_str("\n\n");
        }
        if self.omitted > 0 {
            out.push_str(&format!("and {} more like these\n", self.omitted));
        }
        out.truncate(out.trim_end().len());
        out
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Report {}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { name: "s.toml".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn positions_count_characters_from_one() {
        let source = source("ab\nµµx = 1\n");
        assert_eq!(source.position(0), (1, 1));
        assert_eq!(source.position(3), (2, 1));
        assert_eq!(source.position(7), (2, 3));
        assert_eq!(source.position(9999), (3, 1));
    }

    #[test]
    fn a_report_shows_file_line_column_and_help() {
        let mut findings = Findings::default();
        findings.error(&(3..7), "unknown key `siez`", "did you mean `size`?");
        let text = findings.into_report(source("a\n siez = 1")).render(false);
        assert!(text.contains("error: unknown key `siez`"), "{text}");
        assert!(text.contains("s.toml:2:2"), "{text}");
        assert!(text.contains("help: did you mean `size`?"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn findings_are_bounded_and_errors_come_first() {
        let mut findings = Findings::default();
        findings.warning(&(0..1), "w", "");
        (0..25).for_each(|_| findings.error(&(1..2), "e", ""));
        let report = findings.into_report(source("abc"));
        assert_eq!(report.diagnostics.len(), MAX_FINDINGS + 1);
        assert_eq!(report.omitted, 5);
        assert_eq!(report.diagnostics[0].severity, Severity::Error);
        assert!(report.render(false).ends_with("and 5 more like these"));
    }

    #[test]
    fn a_place_in_the_middle_of_a_letter_is_moved_to_its_start() {
        let mut findings = Findings::default();
        findings.error(&(1..2), "m", "h");
        let report = findings.into_report(source("µµ"));
        assert_eq!(report.diagnostics[0].column, 1);
        assert!(!report.render(false).is_empty());
    }
}
