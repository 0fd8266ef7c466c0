//! The order that a scenario gets: which seed to run, and how.

/// Numbers of the I/Os to do. The simulation leaves out all others, to make a failure smaller.
pub type Keep = std::collections::BTreeSet<u64>;

/// Everything that a scenario must do.
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// The seed.
    pub seed: u64,
    /// Do only these I/Os.
    pub keep: Option<Keep>,
    /// Keep a trace of the events, line by line.
    pub trace: bool,
    /// Make this mistake, one of [`crate::MISTAKES`].
    pub mistake: Option<&'static str>,
}
