//! Stacks in a world: how they are opened, and one I/O at a time for readers that only look.

use crate::disk::Disk;
use crate::world::World;
use drystone_core::{Bio, BioList, ChannelId, Context};
use drystone_drivers::file::File;
use drystone_stack::live::{Files, LiveStack, OpenEnv, Platform};
use drystone_stack::spec::FileSpec;
use drystone_stack::{Source, parse};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

/// The number of threads of a stack. A device without a number of queues has as many queues.
const THREADS: u32 = 4;

/// Open the stack that a stack file describes. A path `/sim/0` names disk 0 of the world.
///
/// # Errors
/// The fault of the file, or the reason why a device cannot be opened.
pub fn open(world: &World, text: String) -> Result<LiveStack, String> {
    let source = Source { name: "simulated".to_owned(), text };
    let spec = parse("simulated", source, Path::new("/")).map_err(|report| report.to_string())?;
    let mut at = OpenEnv::new(THREADS, world.clock());
    at.files = Some(files(world));
    at.platform = platform(world);
    LiveStack::open(&spec, &at).map_err(|report| report.to_string())
}

fn disk_of(file: &FileSpec) -> usize {
    let number = file.options.path.file_name().and_then(|name| name.to_str()?.parse().ok());
    number.expect("a file is named by its disk's number")
}

fn files(world: &World) -> Files {
    let (here, there) = (world.clone(), world.clone());
    Files {
        open: Box::new(move |file| {
            let number = disk_of(file);
            let physical_block = here.disk(number, |disk| disk.options().physical_block);
            File::over(here.backing(number), &file.options.path, physical_block)
        }),
        makes: Box::new(move |file| there.disk(disk_of(file), |disk: &mut Disk| disk.is_blank())),
    }
}

/// The platform of a stack in this world: array managers run as fibers.
fn platform(world: &World) -> Platform {
    let (rings, fibers, clock, random) =
        (world.clone(), world.clone(), world.clock(), Cell::new(0u128));
    Platform {
        open_context: Box::new(move |set, _| Ok(set.context(rings.ring()))),
        spawn: Box::new(move |name, work| {
            fibers.spawn(name, work);
            Ok(())
        }),
        wall_clock: Arc::new(move || clock.now() / 1_000_000_000),
        random: Box::new(move || {
            random.set(random.get() + 1);
            random.get().to_le_bytes()
        }),
    }
}

/// Do one I/O and wait for its end. On a fiber only.
pub fn one(cx: &mut Context, device: ChannelId, bio: Box<Bio>) -> Box<Bio> {
    let mut bios = BioList::new();
    bios.push(bio);
    cx.submit(device, &mut bios);
    let mut done = BioList::new();
    while cx.reap(&mut done) == 0 {
        cx.wait(None);
    }
    done.pop().expect("it has ended")
}
