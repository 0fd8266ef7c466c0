//! A Debian kernel in QEMU, for tests that need a witness of what a real kernel does, or devices
//! that the host lacks.
//!
//! ```text
//!   Debian's packages --+                         +-- <cache>/packages/SHA256.deb
//!   (package.rs)        |    once, under a lock   |
//!                       +--> image.rs ------------+-- <cache>/image-KEY/vmlinux, initramfs
//!   init.sh, module list+                                        |
//!                                                                v
//!   test --- Guest::builder().disk(..).program(..).start() --> QEMU, emulated (qemu.rs)
//!     |                                                          |
//!     +---- run("shell command") --- a port of virtio-serial --- init.sh
//!                                    status, stdout, stderr
//! ```
//!
//! A test calls [`available`] first, builds a [`Guest`], runs shell commands in it, and drops it.
//! QEMU emulates (TCG), so no right to `/dev/kvm` is needed, and a boot takes seconds of both
//! cores: run many commands in one boot. Busybox is the guest's user land; programs of the host are
//! carried in with their shared libraries ([`GuestBuilder::program`]).
//!
//! Nothing is installed but QEMU: kernel and busybox are unpacked from their packages into
//! `$XDG_CACHE_HOME/drystone/guest` (or below `~/.cache`), which may be removed at any time.

#![forbid(unsafe_code)]

mod command;
mod cpio;
mod error;
mod guest;
mod image;
mod modules;
mod package;
mod program;
mod qemu;
mod vmlinux;

pub use error::{GuestError, GuestErrorKind};
pub use guest::{Guest, GuestBuilder, Output, PATIENCE};
pub use image::available;
pub use qemu::Disk;
