//! Figures for more cores than the machine has: a table with a poller on each core.

use super::load::{Figures, Way};

/// A table with a poller on each of `cores`.
pub(super) struct Beyond {
    pub(super) table: &'static str,
    pub(super) depth: usize,
    pub(super) cores: u32,
    pub(super) ways: Vec<(Way, Figures)>,
}

impl Beyond {
    pub(super) fn of(&self, way: Way) -> Option<&Figures> {
        self.ways.iter().find(|(own, _)| *own == way).map(|(_, found)| found)
    }

    /// The time of an interrupt on its submitter's core, ns of an I/O, at which polling is equally
    /// fast.
    pub(super) fn break_even_ns(&self, way: Way) -> Option<f64> {
        let each = |found: &Figures| f64::from(self.cores) * 1e9 / found.iops;
        Some(each(self.of(way)?) - each(self.of(Way::Interrupt)?))
    }

    /// The relative gain in IOPS over interrupts.
    pub(super) fn gain(&self, way: Way) -> Option<f64> {
        Some(self.of(way)?.iops / self.of(Way::Interrupt)?.iops - 1.0)
    }
}
