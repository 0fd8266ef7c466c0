//! The scenario `crash`: every moment at which the power may go, and what it may leave.
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
//! A moment is just before a disk begins or ends something that is not a read. The contents of the
//! disks change only then, so that is each of their states, with the most that is known while it
//! lasts.

mod enumerate;
mod subsets;

pub use enumerate::run;

use crate::counts::Counts;
use crate::disk::Disk;
use crate::fiber::Body;
use crate::world::World;

/// The system that loses its power: disks with a stack on them, a workload, and a judge. The same
/// calls make the same.
pub trait Subject: 'static {
    /// Everything that is known, at one moment, of what the disks must hold.
    type Known: Clone + 'static;

    /// The disks of the first start, switched on.
    fn disks(&self) -> Vec<Disk>;

    /// The body of the first fiber in `world`, which has the disks: the workload. It ends when all
    /// is done and durable. Called once.
    fn work(&self, world: &World) -> Body;

    /// Everything that is known now. Called while fibers pause or submit to a disk: nothing that is
    /// borrowed then may be needed for it.
    fn known(&self) -> Self::Known;

    /// The body of the first fiber in `world`, which has disks after a cut: start the stack on
    /// them, compare what it holds with what was known at the cut, and then, if asked, use the
    /// stack and compare again. [`World::fail`] says what is wrong.
    fn judge(&self, world: &World, known: Self::Known, then_use: bool) -> Body;

    /// The approximate number of restarts of a seed, and the number of images of a moment
    /// at least.
    fn restarts(&self) -> (usize, usize);

    /// I/Os of the workload that have begun.
    fn ios(&self) -> u64;

    /// Counts of what happened in the workload, and in what was judged since.
    fn counts(&self) -> Counts;
}
