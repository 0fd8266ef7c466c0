//! The simulator: the whole stack in one thread, on simulated disks and a simulated clock, in an
//! order that a seed decides.

pub mod disk;
pub mod oracle;
