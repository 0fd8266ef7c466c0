//! The same tables in Drystone, over devices in memory that have the members' names, sizes and
//! blocks.

use std::path::Path;
use std::sync::Arc;

use drystone_core::clock::{ManualClock, SystemClock};
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioList, ContextSet, Device, IoBuf, Sector};
use drystone_stack::live::{OpenEnv, open_device, open_table};
use drystone_stack::spec::DeviceSpec;
use drystone_targets::{Table, Volume, VolumeOptions};

use crate::tables::{MEMBER_4K, MEMBERS};

/// Most sectors of one bio.
const SECTORS_MAX: usize = 256;

/// The members, and the environment of a volume.
pub struct Ours {
    at: OpenEnv,
    members: Vec<Arc<dyn Device>>,
}

impl Ours {
    /// Members of zeroes.
    pub fn new() -> Self {
        let at = OpenEnv::new(1, ManualClock::new(1));
        let open = |(name, sectors): &(&str, u64)| {
            let block = if *name == MEMBER_4K.0 { 4096 } else { 512 };
            let text = format!("ram,size={},logical_block_size={block}", sectors * 512);
            let spec = DeviceSpec::parse(&text, Path::new("")).expect("a device");
            open_device(&DeviceSpec { name: (*name).to_owned(), ..spec }, &at).expect("memory")
        };
        let members = MEMBERS.iter().chain([&MEMBER_4K]).map(open).collect();
        Ours { at, members }
    }

    fn member(&self, name: &str) -> Option<Arc<dyn Device>> {
        self.members.iter().find(|member| member.info().name == name).cloned()
    }

    /// Reads and checks a table as `create` and `reload` do.
    pub fn table(&self, text: &str) -> Result<Table, String> {
        open_table(text, &|name| self.member(name), 1)
    }

    /// A volume with this table.
    pub fn volume(&self, table: Table) -> Arc<dyn Device> {
        let volume = Volume::new("t", VolumeOptions::default(), self.at.locks.counters());
        volume.load(table);
        volume.resume().expect("a table");
        Arc::new(volume)
    }

    /// Writes a member from its beginning on.
    pub fn write_member(&self, name: &str, bytes: &[u8]) {
        write(&self.member(name).expect("a member"), bytes);
    }

    /// Reads the whole of a member.
    pub fn read_member(&self, name: &str) -> Vec<u8> {
        read(&self.member(name).expect("a member"))
    }
}

/// The table's own answer: the place of each of its sectors.
pub fn places(table: &Table) -> Vec<(String, u64)> {
    let name = |(member, sector): (usize, u64)| (table.members()[member].info().name, sector);
    (0..).map_while(|sector| table.place(sector).map(name)).collect()
}

/// Does `bios` on a device and gives each to `ended`; all must end well.
fn run(
    device: &Arc<dyn Device>,
    bios: impl Iterator<Item = Box<Bio>>,
    mut ended: impl FnMut(&Bio),
) {
    let mut context = ContextSet::new(SystemClock::new()).open(Engine::Plain).expect("a context");
    let index = context.open(device).expect("a channel");
    let mut list = BioList::new();
    bios.for_each(|bio| list.push(bio));
    context.submit(index, &mut list);
    while context.outstanding() > 0 {
        context.wait(None);
        let mut done = BioList::new();
        context.reap(&mut done);
        for bio in done.iter() {
            assert!(bio.status.is_ok(), "sector {}: {:?}", bio.sector.0, bio.status);
            ended(bio);
        }
    }
}

/// The whole of a device, in bios that begin and end anywhere.
pub fn read(device: &Arc<dyn Device>) -> Vec<u8> {
    let mut bytes = vec![0; device.info().size_bytes as usize];
    let pieces = pieces(device);
    let bios =
        pieces.map(|(at, length)| Bio::read(Sector((at / 512) as u64), IoBuf::zeroed(length)));
    run(device, bios, |bio| {
        let (at, data) = (bio.sector.0 as usize * 512, bio.buf().expect("a buffer"));
        bytes[at..at + data.len()].copy_from_slice(data);
    });
    bytes
}

/// Writes the whole of a device.
pub fn write(device: &Arc<dyn Device>, bytes: &[u8]) {
    assert_eq!(device.info().size_bytes, bytes.len() as u64);
    let bios = pieces(device).map(|(at, length)| {
        let mut buf = IoBuf::zeroed(length);
        buf.copy_from_slice(&bytes[at..at + length]);
        Bio::write(Sector((at / 512) as u64), buf)
    });
    run(device, bios, |_| {});
}

/// A device cut into bios of growing length, in whole blocks.
fn pieces(device: &Arc<dyn Device>) -> impl Iterator<Item = (usize, usize)> {
    let info = device.info();
    let (size, block) = (info.size_bytes as usize, info.limits.logical_block_size as usize);
    let (mut at, mut blocks) = (0, 0);
    std::iter::from_fn(move || {
        let from = at;
        blocks = blocks % (SECTORS_MAX * 512 / block) + 1;
        at = size.min(from + blocks * block);
        (from < size).then_some((from, at - from))
    })
}
