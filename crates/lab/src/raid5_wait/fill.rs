//! Writes the members once before a measurement.

use std::sync::Arc;

use drystone_core::ring::Engine;
use drystone_core::{ContextSet, Device};

use super::load::{BIO_BYTES, FILE_BYTES, FILES};
use super::scene::Scene;
use crate::measure::write_zeroes;

/// The first bytes of a member, which have the superblock; the data area begins within them.
const OWN_BYTES: u64 = 2 << 20;

/// Writes zeroes, whose parity is zero, to every place of the members, so that no run has to find
/// memory for them. The beginning of a member, where an array keeps its superblock, stays as it is.
///
/// # Errors
/// When a member cannot be opened, or a write fails.
pub(super) fn fill(
    scene: &Scene,
    members: &[Arc<dyn Device>],
    contexts: &Arc<ContextSet>,
) -> anyhow::Result<()> {
    let mut cx = contexts.open(Engine::Auto)?;
    let bytes = FILES * FILE_BYTES as u64 / u64::from(scene.disks - 1);
    let bytes = bytes.next_multiple_of(BIO_BYTES as u64);
    for member in members {
        write_zeroes(&mut cx, member, OWN_BYTES..OWN_BYTES + bytes)?;
    }
    Ok(())
}
