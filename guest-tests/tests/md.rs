//! Arrays that `drystone md create` made, in the hands of Linux and mdadm.

#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use drystone_raid::metadata::assemble::{Assembly, BitmapUse, Candidate, Start, assemble};
use drystone_raid::metadata::bitmap::BitmapHeader;
use drystone_raid::metadata::superblock::probe;
use guest_tests::{Disk, Guest, available};
use system_tests::{program, requires};

const DISK_BYTES: u64 = 16 << 20;
/// The data written to each array.
const DATA_BYTES: usize = 1 << 20;

/// An array: its name, which its disks' names begin with, their number, and how it is made.
struct Array {
    name: &'static str,
    disks: usize,
    options: &'static str,
    /// Members of the whole array.
    members: usize,
}

const ARRAYS: [Array; 4] = [
    Array { name: "a", disks: 3, options: "-l 5 -n 3 -c 64 -b internal", members: 3 },
    Array { name: "b", disks: 3, options: "--force -l 5 -n 3 -c 64 -k ppl -e 1.1", members: 3 },
    Array {
        name: "c",
        disks: 5,
        options: "-l 6 -n 4 -x 1 -c 64 -e 1.0 -p ddf-N-continue",
        members: 4,
    },
    Array { name: "d", disks: 3, options: "-l 4 -n 3 --assume-clean", members: 3 },
];

impl Array {
    fn disk_names(&self) -> impl Iterator<Item = String> {
        (0..self.disks).map(|index| format!("{}{index}", self.name))
    }

    /// Bytes that no other array holds.
    fn data(&self) -> Vec<u8> {
        let first = u64::from(self.name.as_bytes()[0]) << 32;
        (first..).take(DATA_BYTES / 8).flat_map(u64::to_le_bytes).collect()
    }

    fn make(&self, folder: &Path) {
        for name in self.disk_names() {
            let file = fs::File::create(folder.join(name)).expect("an image");
            file.set_len(DISK_BYTES).expect("an image");
        }
        let name = self.name;
        let mut create = Command::new(program());
        create.current_dir(folder).args(["md", "create", "--homehost", "vec", "--name", name]);
        let output = create.args(self.options.split(' ')).args(self.disk_names()).output();
        let output = output.expect("drystone runs");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The array, as this program assembles it from the disks.
    fn assembled(&self, folder: &Path) -> Assembly {
        let candidates: Vec<Candidate> =
            self.disk_names().map(|name| candidate(&folder.join(&name), name)).collect();
        assemble(&candidates, None).expect("an array")
    }

    /// The array's contents, read from the disks through the layout.
    fn read(&self, folder: &Path, array: &Assembly) -> Vec<u8> {
        let files =
            self.disk_names().map(|name| fs::File::open(folder.join(name)).expect("a disk"));
        let files: Vec<fs::File> = files.collect();
        let mut data = vec![0; DATA_BYTES];
        for (sector, bytes) in (0..).zip(data.chunks_mut(512)) {
            let place = array.layout.map_sector(sector);
            let device = array.members[place.role.index()].device().expect("a member");
            let at = (array.fresh.data_offset + place.sector) * 512;
            files[device].read_exact_at(bytes, at).expect("a sector");
        }
        data
    }
}

fn candidate(path: &Path, name: String) -> Candidate {
    let file = fs::File::open(path).expect("a disk");
    let read = |sector: u64| {
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, sector * 512).map(|()| bytes)
    };
    let found = probe(DISK_BYTES / 512, read).expect("a disk that can be read");
    let at = found
        .as_ref()
        .ok()
        .and_then(|(_, own)| own.super_offset.checked_add_signed(own.bitmap_offset()?.into()));
    let bitmap = at.map(|at| BitmapHeader::parse(&read(at).expect("a bitmap")));
    Candidate {
        name,
        found,
        bitmap,
        damage: None,
        log_damage: None,
        device_sectors: u64::MAX,
        journal: None,
    }
}

#[test]
fn linux_takes_our_arrays_as_its_own() {
    if !available() || !requires("mdadm") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut builder = Guest::builder().program("mdadm");
    for array in &ARRAYS {
        array.make(folder.path());
        for name in array.disk_names() {
            builder = builder.disk(&name, Disk::virtio(folder.path().join(&name)));
        }
    }
    let mut guest = builder.start();
    guest.run("modprobe raid456 && mkdir -p /run/mdadm").ok();
    for array in &ARRAYS {
        use_by_linux(&mut guest, array);
        let shown = array.disk_names().map(|name| examined(&mut guest, &name));
        let shown: Vec<String> = shown.collect();
        fs::write(folder.path().join(format!("{}.txt", array.name)), shown.concat())
            .expect("a file");
    }
    guest.power_off().expect("it goes off");
    ARRAYS.iter().for_each(|array| check(array, folder.path()));
}

/// Linux starts the array, makes its parity right, writes to it, and finds no mismatch. (The
/// assumption of `--assume-clean` holds: new disks are zeroes.)
fn use_by_linux(guest: &mut Guest, array: &Array) {
    let disks: Vec<String> = array.disk_names().map(|name| format!("/dev/disk/{name}")).collect();
    let md = "/sys/block/md0/md";
    let start = format!(
        "MDADM_NO_UDEV=1 mdadm --assemble --run /dev/md0 {} && cat {md}/consistency_policy",
        disks.join(" ")
    );
    guest.run(&start).ok();
    let idle = format!("until grep -q idle {md}/sync_action; do sleep 0.1; done");
    let write = format!("sleep 0.3; {idle}; dd of=/dev/md0 bs=64k oflag=direct iflag=fullblock");
    let output = guest.run_with_input(&write, &array.data());
    assert_eq!(output.status, 0, "{}: {}", array.name, output.errors());
    let checked = format!(
        "echo check >{md}/sync_action; sleep 0.3; {idle}; cat {md}/mismatch_cnt {md}/degraded; \
         MDADM_NO_UDEV=1 mdadm --stop /dev/md0 >&2"
    );
    assert_eq!(guest.run(&checked).ok(), "0\n0\n", "{}: mismatches, members lost", array.name);
}

/// The output of mdadm for a disk, with the disk's name on the host.
fn examined(guest: &mut Guest, name: &str) -> String {
    let text = guest.run(&format!("TZ=UTC mdadm --examine /dev/disk/{name}")).ok();
    text.replacen(&format!("/dev/disk/{name}:"), &format!("{name}:"), 1)
}

/// The array that Linux left is whole and clean, holds the written data, and is shown as mdadm
/// shows it.
fn check(array: &Array, folder: &Path) {
    let name = array.name;
    let found = array.assembled(folder);
    assert_eq!((&found.start, found.resync_from), (&Start::Whole, None), "{name}");
    assert_eq!(found.members.len(), array.members, "{name}");
    assert_eq!(found.spares.len(), array.disks - array.members, "{name}");
    assert_eq!(found.has_ppl, array.options.contains("ppl"), "{name}");
    let bitmap = if array.options.contains("internal") { BitmapUse::Good } else { BitmapUse::None };
    assert_eq!(found.bitmap, bitmap, "{name}");
    assert!(array.read(folder, &found) == array.data(), "{name}: what was written");

    let mut examine = Command::new(program());
    let output =
        examine.current_dir(folder).args(["md", "examine"]).args(array.disk_names()).output();
    let output = output.expect("drystone runs");
    let mdadm = fs::read_to_string(folder.join(format!("{name}.txt"))).expect("mdadm's text");
    assert_eq!(String::from_utf8(output.stdout).expect("text"), mdadm);
}
