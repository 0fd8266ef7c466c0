//! Groups that are removed, or whose limits are, while a channel admits bios by the rules of
//! before.

mod common;

use common::*;
use drystone_core::{Op, Status};

/// A bio of a group with a limit that is reached meets `change` between the moment at which the
/// channel looked at the rules and that at which the bio begins to wait. It ends, whatever the
/// limit was.
fn ends_after(change: impl FnOnce(&drystone_throttle::Groups) + Send + 'static) {
    let mut bench = Bench::new(1);
    bench.group("p");
    let group = bench.group("p/g");
    bench.set("p/g", iops(1, 1));
    bench.submit(0, bio(Op::Read, group, 4096, 0));
    bench.run(2 * SECOND, 10 * MS);
    assert_eq!(bench.ended, [(0, Status::Ok)], "the first passes");
    let groups = bench.groups.clone();
    *bench.disk.hook.lock().unwrap() = Some(Box::new(move || change(&groups)));
    bench.submit(0, bio(Op::Read, group, 4096, 1));
    assert!(bench.disk.hook.lock().unwrap().is_none(), "the change came in between");
    bench.run(100 * MS, MS);
    assert_eq!(bench.ended, [(0, Status::Ok), (1, Status::Ok)], "nothing limits it any more");
}

#[test]
fn a_bio_that_meets_the_removal_of_its_group_ends() {
    ends_after(|groups| groups.remove("p/g").unwrap());
}

#[test]
fn a_bio_that_meets_the_end_of_its_limit_ends() {
    use drystone_throttle::Change;
    let max = Change { riops: Some(None), wiops: Some(None), ..Change::default() };
    ends_after(move |groups| groups.set_max("p/g", "disk", &max).unwrap());
}

/// The same below a parent whose limit stays: the bio goes by that.
#[test]
fn a_bio_that_meets_the_removal_of_its_group_below_a_limit_ends() {
    let mut bench = Bench::new(1);
    bench.group("p");
    let group = bench.group("p/g");
    bench.set("p", iops(10, 10));
    bench.set("p/g", iops(1, 1));
    bench.submit(0, bio(Op::Read, group, 4096, 0));
    bench.run(2 * SECOND, 10 * MS);
    let groups = bench.groups.clone();
    let remove = move || groups.remove("p/g").unwrap();
    *bench.disk.hook.lock().unwrap() = Some(Box::new(remove));
    bench.submit(0, bio(Op::Read, group, 4096, 1));
    bench.run(200 * MS, MS);
    assert_eq!(bench.ended, [(0, Status::Ok), (1, Status::Ok)]);
}

/// A group that takes the place of one whose bios have not been fetched by their channel yet.
#[test]
fn a_new_group_in_the_place_of_one_with_bios_that_wait_is_another() {
    let mut bench = Bench::new(1);
    let old = bench.group("a");
    bench.set("a", iops(1, 1));
    (0..3).for_each(|n| bench.submit(0, bio(Op::Read, old, 4096, n)));
    let groups = bench.groups.clone();
    let replace = move || {
        groups.remove("a").unwrap();
        groups.create("b").unwrap();
    };
    *bench.disk.hook.lock().unwrap() = Some(Box::new(replace));
    bench.submit(0, bio(Op::Read, old, 4096, 3));
    let new = bench.groups.find("b").unwrap().id().as_u32();
    bench.submit(0, bio(Op::Read, new, 4096, 4));
    bench.run(100 * MS, MS);
    let mut ended: Vec<u64> = bench.ended.iter().map(|(n, _)| *n).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3, 4]);
}
