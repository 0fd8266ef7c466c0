//! Drystone in a Rust program: opens a stack, writes, reads back, compares, prints what the device
//! counted. `examples/c/embed.c` does the same.
//!
//!     cargo run -p drystone-stack --example embed

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use drystone_core::clock::SystemClock;
use drystone_core::{Bio, BioList, ChannelId, Context, IoBuf, Sector};
use drystone_stack::live::{LiveStack, OpenEnv, SleepFn};
use drystone_stack::{Source, check};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 8;

const STACK: &str = r#"
[device.left]
type = "ram"
size = "16MiB"
[device.right]
type = "ram"
size = "16MiB"
[device.stripe]
table = "0 65536 striped 2 8 left 0 right 0"
"#;

/// Submits a bio for each block, and waits for all of them.
fn all_blocks(
    context: &mut Context,
    channel: ChannelId,
    bio: impl Fn(Sector, u64) -> Box<Bio>,
) -> Result<BioList, String> {
    let (mut bios, mut done) = (BioList::new(), BioList::new());
    for block in 0..BLOCKS {
        let mut bio = bio(Sector::from_bytes(block * BLOCK), block);
        bio.user_data = block;
        bios.push(bio);
    }
    context.submit(channel, &mut bios);
    while done.len() < BLOCKS as usize {
        if context.reap(&mut done) == 0 {
            context.wait(None);
        }
    }
    let failed = done.iter().find(|bio| !bio.status.is_ok());
    let failed = failed.map(|bio| format!("block {}: {}", bio.user_data, bio.status));
    failed.map_or(Ok(done), Err)
}

fn pattern(block: u64) -> Vec<u8> {
    vec![b'a' + block as u8; BLOCK as usize]
}

fn main() -> Result<(), Box<dyn Error>> {
    let source = Source { name: "embed".to_owned(), text: STACK.to_owned() };
    let spec = check("embed", source, Path::new("."))?;
    let stack = LiveStack::open(&spec, &OpenEnv::new(1, SystemClock::new()))?;
    let devices = stack.devices();
    let stripe = devices.iter().find(|live| live.name == "stripe").ok_or("no device")?;

    let mut context = stack.contexts().open(stack.engine())?;
    let channel = context.open(&stripe.device)?;
    let write = |at, block| Bio::write(at, IoBuf::from_slice(&pattern(block)));
    all_blocks(&mut context, channel, write)?;
    let read = |at, _| Bio::read(at, IoBuf::zeroed(BLOCK as usize));
    for bio in all_blocks(&mut context, channel, read)?.iter() {
        let data = bio.buf().ok_or("the bio owns its buffer")?;
        if data[..] != pattern(bio.user_data)[..] {
            return Err(format!("block {} is not what was written", bio.user_data).into());
        }
    }
    drop(context);

    let stat = stripe.device.attribute("stat").unwrap_or_default();
    println!("drystone: {BLOCKS} blocks written and read back\n{stat}");
    stack.stop();
    let pause: SleepFn = Box::new(|ns| std::thread::sleep(Duration::from_nanos(ns)));
    Ok(stack.finish(&pause)?)
}

#[test]
fn it_runs() -> Result<(), Box<dyn Error>> {
    main()
}
