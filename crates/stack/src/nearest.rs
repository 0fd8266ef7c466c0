//! The nearest known word to a mistyped one.

use strsim::osa_distance;

/// Letters of a mistyped word that count; a longer word is no typing mistake.
const WORD_MAX: usize = 64;

/// The candidate with the fewest edits to `word` (letters to insert, delete, replace, or swap with
/// their neighbour), if at most a third of the longer word's letters, and at least one, differ.
/// Case does not matter.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = word.chars().take(WORD_MAX).flat_map(char::to_lowercase).collect();
    let (distance, found, longest) = candidates
        .into_iter()
        .map(|candidate| {
            let letters: String = candidate.chars().flat_map(char::to_lowercase).collect();
            let longest = word.chars().count().max(letters.chars().count());
            (osa_distance(&word, &letters), candidate, longest)
        })
        .min_by_key(|(distance, ..)| *distance)?;
    (distance <= (longest / 3).max(1) && distance < longest).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_a_swap_once() {
        assert_eq!(osa_distance("size", "isze"), 1);
        assert_eq!(nearest("isze", ["size"]), Some("size"));
    }

    #[test]
    fn offers_only_what_is_near() {
        let known = ["scheduler", "nr_requests", "size"];
        assert_eq!(nearest("shceduler", known), Some("scheduler"));
        assert_eq!(nearest("SIZE", known), Some("size"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("x", ["y"]), None);
    }
}
