//! Compares all data that a stack keeps with the oracle, after a start or at its end.

use super::run::Run;
use super::started::Started;
use crate::stack::one;
use drystone_core::{Bio, ChannelId, Context, IoBuf, Sector, Status};

/// Sectors of one read.
const COMPARED: u64 = 64;
/// The retries of a read that timed out.
const TRIES: u32 = 20;

/// Read all targets that keep data.
pub(super) fn compare(run: &Run, start: &Started) {
    let mut cx = start.context(&run.world);
    for (number, target) in run.plan.targets.iter().enumerate() {
        if !target.device_kind.holds_data() || target.fails {
            continue;
        }
        let device = start.device(&target.name);
        let Ok(index) = cx.open(&device) else {
            return run.world.fail(format!("{} cannot be opened again", target.name));
        };
        let sectors = run.sectors(number);
        let mut at = 0;
        while at < sectors && run.world.failure().is_none() {
            let end = sectors.min(at + COMPARED);
            compare_one(run, &mut cx, index, number, at..end);
            at = end;
        }
    }
}

fn compare_one(
    run: &Run,
    cx: &mut Context,
    device: ChannelId,
    target: usize,
    range: std::ops::Range<u64>,
) {
    let first = run.plan.targets[target].first + range.start;
    let bytes = (range.end - range.start) as usize * 512;
    let id = run.oracles.borrow_mut()[target].read_begins(range.clone());
    let read = || Bio::read(Sector(first), IoBuf::zeroed(bytes));
    let mut bio = one(cx, device, read());
    if run.off.get() {
        return;
    }
    // A disk may be slower than the time-out says.
    for _ in 0..TRIES {
        if bio.status == Status::Timeout && run.has_failed(&run.plan.targets[target]) {
            bio = one(cx, device, read());
        }
    }
    let name = &run.plan.targets[target].name;
    run.counts.borrow_mut().add("compared after a start", 1);
    let judged = match bio.status {
        Status::Ok => {
            let data = bio.buf().expect("a read has a buffer");
            let read = run.oracles.borrow_mut()[target].read_ends_ok(id, data);
            read.map_err(|violation| violation.to_string())
        }
        status => Err(format!("sectors {range:?} cannot be read: {status:?}")),
    };
    if let Err(sentence) = judged {
        run.world.fail(format!("after a start, {name}: {sentence}"));
    }
}
