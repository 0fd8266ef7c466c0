//! Counts of a disk's operations and of the faults that its user really met, for coverage.

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a disk's operations and faults. They only grow, also over power cuts.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct DiskCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl DiskCounts {
            /// All counts with their names, in the order of the fields.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Adds the counts of another disk.
            pub fn add(&mut self, other: &DiskCounts) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Reads begun.
    reads,
    /// Writes begun.
    writes,
    /// Of these with FUA.
    fua_writes,
    /// Flushes begun.
    flushes,
    /// Discards begun.
    discards,
    /// Writes of zeroes begun.
    write_zeroes,
    /// Operations that were slow.
    slow,
    /// Operations that took effect when they began.
    early,
    /// Operations that stalled.
    stalls,
    /// Operations that were cancelled.
    cancelled,
    /// Cancels that came too late.
    cancels_refused,
    /// Reads that failed by chance.
    read_errors,
    /// Writes, discards and writes of zeroes that failed by chance.
    write_errors,
    /// Failed operations of which a part had taken effect.
    partial_writes,
    /// Flushes that failed by chance.
    flush_errors,
    /// Blocks that a failed flush lost.
    dropped_blocks,
    /// Transfers that were short by chance.
    shorts,
    /// Operations interrupted.
    interrupted,
    /// Operations that ended with EAGAIN.
    again,
    /// Reads that met a bad sector.
    bad_reads,
    /// Writes that met a bad sector.
    bad_writes,
    /// Bad sectors repaired by a write.
    repaired,
    /// Reads that failed while every read failed.
    device_read_errors,
    /// Writes and flushes that failed while every one failed.
    device_write_errors,
    /// Writes for which there was no space.
    no_space,
    /// Operations for which there was no device.
    no_device,
    /// Operations that reached past the end.
    past_end,
    /// Reads from another place.
    misdirected_reads,
    /// Writes to another place.
    misdirected_writes,
    /// Reads with a wrong bit.
    corrupted_reads,
    /// Writes with a wrong bit.
    corrupted_writes,
    /// Writes that were lost.
    lost_writes,
    /// Flushes and FUA writes that were lies.
    lies,
    /// Writes written back because the cache was full.
    written_back,
    /// Power cuts.
    power_cuts,
    /// Deaths of the process.
    kills,
    /// Times the device vanished.
    vanishes,
    /// Times its file was cut off.
    cuts,
    /// Blocks that had more than one version when the power went.
    cut_blocks,
    /// Of these, blocks that kept their newest version.
    cut_kept,
    /// Of these, blocks that kept their durable version.
    cut_lost,
}
