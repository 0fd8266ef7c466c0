//! Stacks in a world: how they are opened, and one I/O at a time for those who only look.

use crate::world::World;
use drystone_core::{Bio, BioList, Context, DevIndex};
use drystone_drivers::file::File;
use drystone_stack::live::{LiveStack, Surroundings};
use drystone_stack::{Source, parse};
use std::path::Path;

/// Threads that a stack is told to have: so many queues has a device that is not told how many.
const THREADS: u32 = 4;

/// Open the stack that a stack file says. A file named by the number of a disk, as `/sim/0`, is that
/// disk of the world.
///
/// # Errors
/// What is wrong with the file, or why a device cannot be opened.
pub fn open(world: &World, text: String) -> Result<LiveStack, String> {
    let source = Source { name: "simulated".to_owned(), text };
    let spec = parse("simulated", source, Path::new("/")).map_err(|report| report.to_string())?;
    let mut at = Surroundings::new(THREADS, world.clock());
    let world = world.clone();
    at.files = Some(Box::new(move |file| {
        let number = file.path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let number: usize = number.expect("a file is named by its disk's number");
        let physical_block = world.disk(number, |disk| disk.options().physical_block);
        File::over(world.backing(number), &file.path, physical_block)
    }));
    LiveStack::open(&spec, &at).map_err(|report| report.to_string())
}

/// Do one I/O and wait for its end. On a fiber only.
pub fn one(cx: &mut Context, device: DevIndex, bio: Box<Bio>) -> Box<Bio> {
    let mut bios = BioList::new();
    bios.push(bio);
    cx.submit(device, &mut bios);
    let mut done = BioList::new();
    while cx.reap(&mut done) == 0 {
        cx.wait(None);
    }
    done.pop().expect("it has ended")
}
