//! Opens a device that is a table: a volume over devices that are open already.

use drystone_core::clock::Ns;
use drystone_targets::{
    Area, DelayClass, DelaySpec, FlakeySpec, Line, LogWritesSpec, Table, TargetSpec, Volume,
    VolumeOptions,
};

use super::open_env::{Find, OpenEnv, OpenError};
use crate::parse::table::read_table;
use crate::spec::{self, DeviceSpec, Segment, Target, VolumeSpec};

/// Opens a volume of a stack file.
///
/// # Errors
/// [`OpenError`] with the fault of the table.
pub fn open_volume(
    spec: &DeviceSpec,
    volume: &VolumeSpec,
    find: Find<'_>,
    at: &OpenEnv,
) -> Result<Volume, OpenError> {
    let refused = |message: String| OpenError {
        device: spec.name.clone(),
        key: volume.key(),
        message,
        hint: String::new(),
    };
    let size = |name: &str| find(name).map(|device| device.info().size_bytes);
    let segments = volume.table(&size).map_err(|too_small| refused(too_small.message))?;
    let segments = segments.ok_or_else(|| refused("a member is not open".to_owned()))?;
    let table = table(&segments, find, at.clock.now()).map_err(refused)?;
    let options =
        VolumeOptions { read_only: spec.read_only, no_iostats: spec.queue.iostats == Some(false) };
    let volume = Volume::new(&spec.name, options, at.locks.counters());
    volume.load(table);
    volume.resume().map_err(|error| refused(error.message))?;
    Ok(volume)
}

/// Reads a table in dmsetup's syntax and checks it against the devices that it names. `find` gets
/// the device words of the table unchanged. `now` is the time of the contexts' clock.
///
/// # Errors
/// One sentence on what is wrong.
pub fn open_table(text: &str, find: Find<'_>, now: Ns) -> Result<Table, String> {
    table(&read_table(text)?, find, now)
}

/// Checks a table against the devices that it names. `now` is the time of the contexts' clock: the
/// times of `flakey` count from it, and it seeds `flakey`'s random numbers.
///
/// # Errors
/// One sentence on what is wrong.
pub fn table(segments: &[Segment], find: Find<'_>, now: Ns) -> Result<Table, String> {
    let lines = segments.iter().map(|segment| {
        let target = target(&segment.target, find, now)?;
        Ok(Line { start: segment.start_sector, length: segment.length_sectors, target })
    });
    Table::new(lines.collect::<Result<Vec<_>, String>>()?).map_err(|error| error.message)
}

fn target(target: &Target, find: Find<'_>, now: Ns) -> Result<TargetSpec, String> {
    let area = |area: &spec::Area| match find(&area.device) {
        Some(device) => Ok(Area { device, sector: area.offset_sectors }),
        None => Err(format!("there is no device `{}`", area.device)),
    };
    Ok(match target {
        Target::Linear(place) => TargetSpec::Linear(area(place)?),
        Target::Striped { chunk_sectors, stripes } => TargetSpec::Striped {
            chunk_sectors: *chunk_sectors,
            stripes: stripes.iter().map(area).collect::<Result<_, _>>()?,
        },
        Target::Zero => TargetSpec::Zero,
        Target::Error => TargetSpec::Error,
        Target::Delay(classes) => {
            let class = |spec::Delayed { place, delay_ms }: &spec::Delayed| {
                area(place).map(|area| DelayClass { area, delay_ms: *delay_ms })
            };
            let mut classes = classes.iter().map(class);
            let read = classes.next().ok_or("delay has no arguments")??;
            let (write, flush) = (classes.next().transpose()?, classes.next().transpose()?);
            TargetSpec::Delay(DelaySpec { read, write, flush })
        }
        Target::Flakey { place, up_seconds, down_seconds, faults } => {
            TargetSpec::Flakey(FlakeySpec {
                area: area(place)?,
                up_seconds: *up_seconds,
                down_seconds: *down_seconds,
                faults: *faults,
                since_ns: now,
                seed: now,
            })
        }
        Target::LogWrites { place, log } => {
            TargetSpec::LogWrites(LogWritesSpec { area: area(place)?, log: area(log)? })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{OpenEnv, open_device};
    use drystone_core::clock::ManualClock;
    use std::path::Path;

    /// A table's text is the text that it was made from.
    #[test]
    fn texts_of_tables() {
        let at = OpenEnv::new(1, ManualClock::new(5));
        let devices = ["a", "b", "c"].map(|name| {
            let spec = DeviceSpec::parse("null,size=1M", Path::new("")).unwrap();
            open_device(&DeviceSpec { name: name.to_owned(), ..spec }, &at).unwrap()
        });
        let find = |name: &str| devices.iter().find(|device| device.info().name == name).cloned();
        for text in [
            "0 8 linear a 0\n8 16 striped 2 4 b 0 c 8\n24 1 zero\n25 1 error\n",
            "0 8 delay a 1 50\n",
            "0 8 delay a 1 0 b 2 400\n8 8 delay a 9 1 b 10 2 c 11 3\n",
            "0 8 flakey a 7 2 3 1 drop_writes\n",
            "0 8 flakey a 7 0 3 6 error_reads corrupt_bio_byte 3 w 255 0\n",
            "0 8 zero\n8 8 log-writes a b\n",
            "0 8 flakey a 7 2 0 4 random_read_corrupt 1 random_write_corrupt 1000000000\n",
        ] {
            let segments = crate::parse::table::tests::segments(text);
            assert_eq!(table(&segments, &find, 5).map(|table| table.text()), Ok(text.to_owned()));
        }
        let segments = crate::parse::table::tests::segments("0 8 delay a 0 1 x 0 1");
        let refused = table(&segments, &find, 5).err();
        assert_eq!(refused.as_deref(), Some("there is no device `x`"));
    }
}
