//! The experiment `raid5-wait`: "md/raid5: per hash value and exclusive wait_for_stripe" (Yuanhan Liu,
//! linux-raid, 2015). Writers that find no free stripe sleep; *before* all of them are woken when
//! some are free, *mailed* one of those that wait for the same hash lock.

pub mod cache;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod wait;
