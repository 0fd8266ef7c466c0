//! Reads Rust source well enough to find names in it: comments, literals and test code are left
//! out, and imports with braces are written out. `proc_macro2` cuts the source into tokens.
//!
//! This is no parser. It knows exactly as much of the grammar as the checks need: where an item
//! ends, and which items are for tests.

use proc_macro2::{Spacing, Span, TokenStream, TokenTree};

/// A word or a sign of the source, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token<'a> {
    /// An identifier, `::`, or one other character.
    pub text: &'a str,
    /// Line, from 1.
    pub line: usize,
}

/// A path such as `std::sync::Mutex`, imports in braces written out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathUse<'a> {
    /// Its segments.
    pub segments: Vec<&'a str>,
}

/// Splits a file into tokens, without comments and literals.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let stream: TokenStream = source.parse().expect("the compiler reads it, too");
    let mut tokens = Vec::new();
    add_all(stream, source, &mut tokens);
    proc_macro2::extra::invalidate_current_thread_spans();
    tokens
}

fn add_all<'a>(stream: TokenStream, source: &'a str, tokens: &mut Vec<Token<'a>>) {
    let mut was_colon = false;
    for tree in stream {
        let text = &source[tree.span().byte_range()];
        // The lexer makes an attribute of each comment that documents an item.
        if text.starts_with("//") || text.starts_with("/*") {
            continue;
        }
        let is_joint_colon = matches!(&tree, TokenTree::Punct(sign)
            if sign.as_char() == ':' && sign.spacing() == Spacing::Joint);
        match tree {
            TokenTree::Group(group) => {
                tokens.push(token(group.span_open(), source));
                add_all(group.stream(), source, tokens);
                tokens.push(token(group.span_close(), source));
            }
            TokenTree::Punct(sign) if was_colon && sign.as_char() == ':' => {
                tokens.last_mut().expect("the colon before").text = "::";
                was_colon = false;
                continue;
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => tokens.push(token(tree.span(), source)),
            TokenTree::Literal(_) => {}
        }
        was_colon = is_joint_colon;
    }
}

fn token(span: Span, source: &str) -> Token<'_> {
    Token { text: &source[span.byte_range()], line: span.start().line }
}

/// The tokens but those of items under `#[cfg(test)]`. Nothing is left of a file that begins with
/// `#![cfg(test)]`.
pub fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let (mut kept, mut index) = (Vec::new(), 0);
    while index < tokens.len() {
        match test_attribute(tokens, index) {
            Some((_, true)) => break,
            Some((after, false)) => index = item_end(tokens, after),
            None => {
                kept.push(tokens[index].clone());
                index += 1;
            }
        }
    }
    kept
}

/// Names of modules that are declared for tests only and live in files of their own.
pub fn test_modules<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let mut modules = Vec::new();
    for index in 0..tokens.len() {
        let Some((after, false)) = test_attribute(tokens, index) else { continue };
        let end = item_end(tokens, after);
        let words: Vec<&'a str> = tokens[after..end].iter().map(|token| token.text).collect();
        if let [.., "mod", name, ";"] = words[..] {
            modules.push(name);
        }
    }
    modules
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
                    found.push(PathUse { segments: prefix.clone() });
                    break;
                }
                at += 1;
            }
            _ => {
                found.push(PathUse { segments: prefix.clone() });
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

/// True if a condition such as `(test)` or `(all(loom, test))` holds in tests only.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    fn paths_of(source: &str) -> Vec<String> {
        paths(&tokens(source)).iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn comments_of_every_kind_disappear() {
        assert_eq!(words("a // b\n/* c /* d */ e */ f /// g\n/** h */ fn"), ["a", "f", "fn"]);
        assert_eq!(words("//! a\nb"), ["b"]);
        assert_eq!(words("a / b /* ä */ c"), ["a", "/", "b", "c"]);
    }

    #[test]
    fn literals_disappear_and_lifetimes_stay() {
        assert_eq!(
            words(r##"a "b \" c" d r#"e " // f"# g b"h" 7 'i' '\'' j"##),
            ["a", "d", "g", "j"]
        );
        assert_eq!(words("&'a str"), ["&", "'", "a", "str"]);
    }

    #[test]
    fn colons_belong_together_in_pairs() {
        assert_eq!(words("a::b: ::c"), ["a", "::", "b", ":", "::", "c"]);
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        assert_eq!(tokens("/* \n */ \"\n\" word")[0].line, 3);
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
        let tokens = tokens(source);
        let kept: Vec<&str> = without_tests(&tokens).iter().map(|token| token.text).collect();
        kept.join(" ")
    }

    #[test]
    fn test_items_disappear_and_others_stay() {
        assert_eq!(kept("a #[cfg(test)] mod tests { fn f() { {} } } b"), "a b");
        assert_eq!(kept("#[cfg(all(test, not(loom)))] #[x] fn f(a: A, b: B) -> C { } b"), "b");
        assert_eq!(kept("#[cfg(test)] use a::{b, c}; d"), "d");
        assert_eq!(kept("struct S { #[cfg(test)] a: A, b: B }"), "struct S { b : B }");
        assert_eq!(kept("#[cfg(test)] mod tests; b"), "b");
        assert_eq!(kept("#![cfg(test)] a { b }"), "");
    }

    #[test]
    fn conditions_that_hold_outside_tests_keep_the_item() {
        for source in
            ["#[cfg(not(test))] a", "#[cfg(any(test, x))] a", "#[cfg(all(x, not(test)))] a"]
        {
            assert_eq!(kept(source), words(source).join(" "));
        }
    }

    #[test]
    fn test_modules_in_files_of_their_own_are_named() {
        let source = "#[cfg(test)] mod tests; #[cfg(test)] pub(crate) mod fake; mod real;";
        assert_eq!(test_modules(&tokens(source)), ["tests", "fake"]);
    }
}
