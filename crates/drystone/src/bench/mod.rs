//! `drystone bench`: peak IOPS of one device, in the manner of fio's t/io_uring.
//!
//! [`run`] opens the device, has it written once if asked (`fill`), and watches; a
//! [`drystone_bench::Lane`] on each thread submits and reaps; `report` turns what they counted into
//! lines and JSON.

mod args;
mod contents;
mod fill;
mod report;
mod watch;

pub use args::{BenchArgs, CpuList, Pattern};
pub use watch::{Subject, run};
