//! A cache line of the simulations: it serves one core after the other, each at the cost of a
//! transfer. The core that has the line pays nothing.

use super::design::Ps;

/// See the module's text.
#[derive(Clone, Default)]
pub struct Line {
    /// The core that has it.
    owner: Option<usize>,
    free_at: Ps,
}

impl Line {
    /// The time that `core` waits for it from `now` on.
    pub fn fetch(&mut self, core: usize, now: Ps, line_ps: Ps) -> Ps {
        let moves = self.owner.replace(core).is_some_and(|owner| owner != core);
        if moves {
            self.free_at = self.free_at.max(now) + line_ps;
        }
        self.free_at.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_serves_one_core_after_the_other() {
        let mut line = Line::default();
        assert_eq!((line.fetch(0, 5, 100), line.fetch(0, 6, 100)), (0, 0), "it has it");
        assert_eq!(line.fetch(1, 10, 100), 100);
        assert_eq!(line.fetch(2, 50, 100), 160, "the first is served until 110");
        assert_eq!(line.fetch(2, 300, 100), 0);
    }
}
