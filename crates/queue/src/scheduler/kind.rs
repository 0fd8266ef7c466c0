//! The names of the schedulers.

/// The schedulers that `queue/scheduler` names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulerKind {
    /// First in, first out.
    #[default]
    None,
    /// Deadlines and priorities.
    MqDeadline,
}

impl SchedulerKind {
    /// All of them, in the order of listings.
    pub const ALL: [SchedulerKind; 2] = [SchedulerKind::None, SchedulerKind::MqDeadline];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            SchedulerKind::None => "none",
            SchedulerKind::MqDeadline => "mq-deadline",
        }
    }

    /// The scheduler of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
