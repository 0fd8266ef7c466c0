//! The nearest known word to a mistyped one.

/// The candidate with the fewest edits to `word`, if it is near enough to be meant: at most a
/// third of the longer word's letters (at least one) differ. Case does not matter.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(MAX_WORD).flat_map(char::to_lowercase).collect();
    let (distance, found, longest) = candidates
        .into_iter()
        .map(|candidate| {
            let letters: Vec<char> = candidate.chars().flat_map(char::to_lowercase).collect();
            (distance(&word, &letters), candidate, word.len().max(letters.len()))
        })
        .min_by_key(|(distance, ..)| *distance)?;
    (distance <= (longest / 3).max(1) && distance < longest).then_some(found)
}

/// Letters of a mistyped word that are looked at; what is longer is no typing mistake.
const MAX_WORD: usize = 64;

/// Damerau-Levenshtein distance with adjacent transpositions (optimal string alignment): the
/// number of letters to insert, delete, replace or swap with their neighbour.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits(a: &str, b: &str) -> usize {
        let letters = |text: &str| text.chars().collect::<Vec<_>>();
        distance(&letters(a), &letters(b))
    }

    #[test]
    fn counts_each_kind_of_edit_once() {
        assert_eq!(edits("size", "size"), 0);
        assert_eq!(edits("size", "sizes"), 1);
        assert_eq!(edits("size", "siz"), 1);
        assert_eq!(edits("size", "bize"), 1);
        assert_eq!(edits("size", "isze"), 1);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("scheduler", "shceduelr"), 2);
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
