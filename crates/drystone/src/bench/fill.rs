//! Writes a device once before it is measured, so that reads meet data and not holes.

use anyhow::{bail, ensure};
use drystone_core::{Bio, BioList, ChannelId, Context, Device, IoBuf, Sector};

use drystone_bench::{Stop, failure};

/// Bytes of a write.
const WRITE_BYTES: u64 = 1 << 20;
/// Writes in flight.
const DEPTH: usize = 8;

/// Refuses devices that keep nothing of what is written.
///
/// # Errors
/// When `device` is read-only, or a null device without memory.
pub fn check(device: &dyn Device) -> anyhow::Result<()> {
    let info = device.info();
    ensure!(!info.limits.read_only, "--fill: the device is read-only; leave --fill out");
    let forgets = device.attribute("memory_backed").is_some_and(|value| value == "0");
    ensure!(!forgets, "--fill: the null device keeps no data; add memory_backed=true to it");
    Ok(())
}

/// Writes all of the device, with bytes that are not zero.
///
/// # Errors
/// When memory is short, a write fails, or it must stop.
pub fn fill(
    cx: &mut Context,
    index: ChannelId,
    device: &dyn Device,
    stop: &Stop,
) -> anyhow::Result<()> {
    let info = device.info();
    let block = u64::from(info.limits.logical_block_size);
    let end = info.size_bytes / block * block;
    let (mut at, mut idle) = (0, BioList::new());
    for _ in 0..DEPTH {
        let Some(mut buf) = IoBuf::try_zeroed(WRITE_BYTES as usize) else {
            bail!("--fill: no memory for {DEPTH} buffers of {WRITE_BYTES} bytes")
        };
        buf.fill(0xA5);
        idle.push(Bio::write(Sector(0), buf));
    }
    loop {
        let mut out = BioList::new();
        let end = if stop.is_asked() { at } else { end };
        while let Some(mut bio) = idle.pop() {
            ensure!(bio.status.is_ok(), "--fill: {}", failure(&bio));
            if at < end {
                bio.sector = Sector(at >> drystone_core::SECTOR_SHIFT);
                bio.bytes = WRITE_BYTES.min(end - at);
                at += bio.bytes;
                out.push(bio);
            }
        }
        cx.submit(index, &mut out);
        if cx.outstanding() == 0 {
            ensure!(!stop.is_asked(), "--fill: stopped after {at} bytes; nothing was measured");
            return Ok(());
        }
        while cx.reap(&mut idle) == 0 {
            cx.wait(None);
        }
    }
}
