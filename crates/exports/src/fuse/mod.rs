//! FUSE: volumes as regular files of this machine.
//!
//! ```text
//!  /dev/fuse --> proto::Request --> server::Session --bios--> device
//!            <-- proto::reply   <-----------/   <-- done ---/
//! ```
//!
//! [`proto`] is the kernel's interface without I/O; [`server`] carries requests out, as a front end
//! of a worker; [`kernel`] mounts and unmounts. The normative source is the kernel's
//! `include/uapi/linux/fuse.h` and `Documentation/filesystems/fuse`.

pub mod fuzz;
pub mod kernel;
pub mod proto;
pub mod server;
