//! The scenario `crash` cuts the power at every moment of a run and tries the images that the cut
//! may leave.
//!
//! ```text
//!   one run      write begins   write ends   flush ends   ...      on simulated disks
//!                |              |            |
//!   moments      disks + what   disks +      disks +               just before each change
//!                is known       ...          ...
//!                |
//!   images       all that a cut may leave there, or many of it
//!                |
//!   restarts     the same stack on each image: is what it holds allowed?
//! ```
//!
//! A moment is just before a disk begins or ends an operation that is not a read. The contents of
//! the disks change only then. So the moments cover each state of the disks, each with the most
//! knowledge that exists while the state lasts.

mod enumerate;
mod subsets;

pub use enumerate::run;

use crate::counts::Counts;
use crate::disk::Disk;
use crate::fiber::Body;
use crate::world::World;

/// The system that loses its power: disks with a stack on them, a workload, and a judge. The same
/// calls give the same results.
pub trait Subject: 'static {
    /// The knowledge at one moment of what the disks must hold.
    type Known: Clone + 'static;

    /// The disks of the first start, switched on.
    fn disks(&self) -> Vec<Disk>;

    /// The workload: the body of the first fiber in `world`, which has the disks. The body ends
    /// when all work is done and durable. Called once.
    fn work(&self, world: &World) -> Body;

    /// The knowledge of this instant. The caller may be a fiber that pauses or submits to a disk,
    /// so this function must need nothing that is borrowed then.
    fn known(&self) -> Self::Known;

    /// The judge: the body of the first fiber in `world`, which has the disks after a cut. It
    /// starts the stack on them and compares their contents with the knowledge at the cut. If
    /// `then_use` is set, it then uses the stack and compares again. [`World::fail`] reports a
    /// difference.
    fn judge(&self, world: &World, known: Self::Known, then_use: bool) -> Body;

    /// The approximate number of restarts of a seed, and the least number of images of a moment.
    fn restarts(&self) -> (usize, usize);

    /// I/Os of the workload that have begun.
    fn ios(&self) -> u64;

    /// Counts of events in the workload and in all judgements so far.
    fn counts(&self) -> Counts;
}
