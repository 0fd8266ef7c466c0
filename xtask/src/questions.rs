//! Questions that act: functions named `is_`, `has_` or `may_` that take `&mut self`.
//!
//! A reader trusts such a name to change nothing. A function that acts bears a verb. The table
//! holds the exceptions: searches that move a cursor or a cache and change nothing that a caller
//! could see.

use crate::product::{is_product_code, test_files};
use crate::report::Report;
use crate::rust_source::{self, Token};
use crate::tree::Tree;

/// Functions that are excused: name, file, why.
const EXCUSED: [(&str, &str, &str); 0] = [];

/// The beginnings of a question's name.
const STARTS: [&str; 3] = ["is_", "has_", "may_"];

/// Fails for each question that takes `&mut self` and is not excused.
pub fn check(tree: &Tree, report: &mut Report) {
    let tests = test_files(tree);
    for file in tree.rust_files().filter(|file| is_product_code(file, &tests)) {
        // Cutting a file into tokens takes time, and most have no such function.
        if !STARTS.iter().any(|start| file.text.contains(&format!("fn {start}"))) {
            continue;
        }
        let tokens = rust_source::without_tests(&rust_source::tokens(&file.text));
        for (name, line) in acting_questions(&tokens) {
            let is_excused =
                EXCUSED.iter().any(|(known, path, _)| *known == name && *path == file.name());
            if !is_excused {
                let message =
                    format!("{name} is a question and takes &mut self: name it by a verb");
                report.fail_at(&file.path, line, &message);
            }
        }
    }
}

/// Names and lines of the functions that ask by name and may act.
fn acting_questions<'a>(tokens: &[Token<'a>]) -> Vec<(&'a str, usize)> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let name = text(at + 1);
        let asks = STARTS.iter().any(|start| name.starts_with(start));
        if text(at) != "fn" || !asks {
            continue;
        }
        let open = (at + 2..tokens.len()).find(|at| text(*at) == "(").unwrap_or(tokens.len());
        let has_mut = [1, 2, 3].iter().any(|after| {
            text(open + 1) == "&" && text(open + after) == "mut" && text(open + after + 1) == "self"
        }) || is_mut_with_lifetime(tokens, open);
        if has_mut {
            found.push((name, tokens[at + 1].line));
        }
    }
    found
}

/// True if `&'a mut self` follows the bracket at `open`.
fn is_mut_with_lifetime(tokens: &[Token<'_>], open: usize) -> bool {
    let words: Vec<&str> = tokens.iter().skip(open + 1).take(5).map(|token| token.text).collect();
    matches!(words[..], ["&", "'", _, "mut", "self"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<String> {
        let tokens = rust_source::tokens(source);
        acting_questions(&tokens).iter().map(|(name, _)| (*name).to_owned()).collect()
    }

    #[test]
    fn questions_that_act_are_found() {
        assert_eq!(found("fn is_on(&mut self) -> bool {}"), ["is_on"]);
        assert_eq!(found("pub(super) fn has_x<T: A>(&mut self, t: T) {}"), ["has_x"]);
        assert_eq!(found("fn may_go<'a>(&'a mut self) {}"), ["may_go"]);
    }

    #[test]
    fn questions_that_only_ask_and_verbs_are_not() {
        assert!(found("fn is_on(&self) {} fn set(&mut self) {}").is_empty());
        assert!(found("fn has_x(self, other: &mut Other) {} fn issue(&mut self) {}").is_empty());
    }
}
