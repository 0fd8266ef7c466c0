//! Arrays go both ways between Linux and Drystone: every layout, every level, with bitmap, partial
//! parity log and neither. One side makes an array and fills it, the other loses a member of it,
//! writes, rebuilds, writes again and hands it back; and the first finds all that was written, and
//! no mismatch.
//!
//! ```text
//! Linux's: made and filled (boot 1) -> served, degraded, rebuilt (host) -> found, checked (boot 2)
//! ours:    made and filled, killed -> degraded, rebuilt by Linux (boot 1) -> served, checked
//! ```

#![forbid(unsafe_code)]

mod arrays;
mod linux;
mod ours;
mod writes;

use std::fs;
use std::path::Path;

use guest_tests::{Disk, Guest, available};
use system_tests::{new_folder, requires};

use arrays::{Array, SHAPES, SLOTS, make_disks};
use writes::{Chance, blob, everything, some};

fn boot(folder: &Path) -> Guest {
    let mut builder =
        Guest::builder().program("mdadm").program("dmsetup").file(folder.join("blob"), "/blob");
    for n in 0..SLOTS {
        builder = builder.disk(&format!("s{n}"), Disk::virtio(folder.join(format!("s{n}"))));
    }
    let mut guest = builder.start();
    guest.run("modprobe raid456; modprobe dm_mod; mkdir -p /run/mdadm").ok();
    guest
}

/// Ours before the first boot: made and filled. The server is killed, so that nothing is clean.
fn fill(ours: &mut [Array], folder: &std::sync::Arc<tempfile::TempDir>, blob: &[u8]) {
    ours.iter().for_each(|array| ours::make(array, folder.path()));
    let mut server = ours::serve(ours, folder);
    for array in ours.iter_mut() {
        array.note(&everything(), blob);
        ours::write(&mut server, array, &everything());
    }
    server.signal("KILL");
    server.wait();
    ours.iter().for_each(|array| array.put_in(folder.path()));
}

#[test]
fn arrays_go_both_ways() {
    if !available() || !requires("mdadm") || !requires("dmsetup") || !requires("nbdsh") {
        return;
    }
    let (folder, blob, mut chance) = (new_folder(), blob(), Chance(1));
    fs::write(folder.path().join("blob"), &blob).expect("a file");
    make_disks(folder.path(), 2 * SHAPES.len());
    let named = |kind: &str, first: usize| -> Vec<Array> {
        let array = |(n, shape)| Array::new(format!("{kind}{n}"), shape, first + n);
        SHAPES.into_iter().enumerate().map(array).collect()
    };
    let (mut linuxes, mut ours) = (named("l", 0), named("d", SHAPES.len()));
    fill(&mut ours, &folder, &blob);

    let mut guest = boot(folder.path());
    for array in &mut linuxes {
        array.note(&everything(), &blob);
        linux::make(&mut guest, array, &everything());
    }
    for (number, array) in ours.iter_mut().enumerate() {
        linux::find(&mut guest, array);
        let (degraded, then) = (some(&mut chance), some(&mut chance));
        array.note(&degraded, &blob);
        array.note(&then, &blob);
        linux::rebuild(&mut guest, array, number % array.shape.members(), &degraded, &then);
    }
    guest.power_off().expect("it goes off");

    linuxes.iter().chain(&ours).for_each(|array| array.take_out(folder.path()));
    let mut server = ours::serve(&linuxes, &folder);
    for (number, array) in linuxes.iter_mut().enumerate() {
        ours::write(&mut server, array, &[]);
        let lost = number % array.shape.members();
        ours::rebuild(&mut server, array, lost, &blob, &some(&mut chance));
        let then = some(&mut chance);
        array.note(&then, &blob);
        ours::write(&mut server, array, &then);
        ours::check(&server, array);
    }
    assert!(server.sigterm().success(), "{}", server.messages());
    let mut server = ours::serve(&ours, &folder);
    for array in &ours {
        ours::write(&mut server, array, &[]);
        ours::check(&server, array);
    }
    assert!(server.sigterm().success(), "{}", server.messages());

    linuxes.iter().for_each(|array| array.put_in(folder.path()));
    let mut guest = boot(folder.path());
    linuxes.iter().for_each(|array| linux::find(&mut guest, array));
    guest.power_off().expect("it goes off");
}
