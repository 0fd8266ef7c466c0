//! Counts of the events of a run, by name: they show whether the simulation meets every case.

use std::collections::BTreeMap;

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// Add `n` to a count.
    pub fn add(&mut self, name: &str, n: u64) {
        match self.0.get_mut(name) {
            Some(count) => *count += n,
            None => _ = self.0.insert(name.to_owned(), n),
        }
    }

    /// Add all counts of another run.
    pub fn add_all(&mut self, other: &Counts) {
        other.0.iter().for_each(|(name, n)| self.add(name, *n));
    }

    /// One count; 0 if no event had this name.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// All counts, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, n)| (name.as_str(), *n))
    }
}
