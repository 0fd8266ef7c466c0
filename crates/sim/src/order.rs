//! The order that a scenario gets: which seed to run, and how.

/// I/Os that are done; all others are left out, when a failure is made smaller.
pub type Keep = std::collections::BTreeSet<u64>;

/// Everything that a scenario must do.
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// The seed.
    pub seed: u64,
    /// Do only these I/Os.
    pub keep: Option<Keep>,
    /// Keep what happens, line by line.
    pub trace: bool,
    /// Make this mistake, one of [`crate::MISTAKES`].
    pub mistake: Option<&'static str>,
}
