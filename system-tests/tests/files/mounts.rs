//! `drystone serve --fuse FILE --mount`: the suggestions that it prints for the loop device, and
//! refusals.

use super::*;

const BYTES: u64 = 16 << 20;

/// The suggested lines of a server whose loop device has the content of `disk.img` in `folder`,
/// with `LOOP` for its name.
fn lines_to_try(folder: &Arc<TempDir>, keys: &str) -> Vec<String> {
    let text = format!(
        "[device.d]\ntype = \"file\"\npath = \"disk.img\"\n{keys}[export.vol]\ndevice = \"d\"\nnbd \
         = \"unix:nbd.sock\"\n{keys}"
    );
    fs::write(folder.path().join("s.toml"), text).expect("a stack file");
    let options = ["s.toml", "--fuse", "vol.img", "--mount"];
    let mut files = Files::watched(Server::spawn_without_stack(folder, &[], &options));
    let device = files.announced(true);
    files.server.await_line("Stop with Ctrl-C.");
    let said = files.server.said().iter().skip_while(|line| *line != "Try:");
    let of_it =
        said.filter(|line| line.contains(&device)).map(|line| line.replace(&device, "LOOP"));
    let lines = of_it.collect();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
    lines
}

/// The same, of new images of such a content. The server reads the device for 2 s at most, which
/// may be too short on a busy machine.
fn lines_of(content: &str, keys: &str) -> Vec<String> {
    let folder = new_folder();
    let image = fs::File::create(folder.path().join("disk.img")).expect("an image");
    image.set_len(BYTES).expect("an image");
    shell(folder.path(), content, &[]).ok();
    let mut tries = (0..3).map(|_| lines_to_try(&folder, keys));
    tries.find(|lines| !lines.is_empty()).unwrap_or_default()
}

/// Existing contents must not be overwritten.
#[test]
fn what_is_to_try_with_a_loop_device_goes_by_what_it_holds() {
    if !has_loop() || !requires("mkfs.ext4") {
        return;
    }
    let (ext4, read_only) = ("mkfs.ext4 -q disk.img", "read_only = true\n");
    assert_eq!(lines_of("true", ""), ["mkfs.ext4 LOOP && mount LOOP /mnt"]);
    assert_eq!(lines_of(ext4, ""), ["mount LOOP /mnt"]);
    assert_eq!(lines_of(ext4, read_only), ["mount -o ro LOOP /mnt"]);
    assert_eq!(lines_of("seq 10000 | dd of=disk.img conv=notrunc status=none", ""), [""; 0]);
}

/// The refusal is one sentence, before anything is made.
#[test]
fn a_loop_device_is_for_root() {
    if !requires("setpriv") {
        return;
    }
    let folder = new_folder();
    let text = stack::ram("1MiB").replace("DIR/", "");
    fs::write(folder.path().join("s.toml"), &text).expect("a stack file");
    let text = text + "fuse = \"vol.img\"\nfuse_loop = true\n";
    fs::write(folder.path().join("loop.toml"), &text).expect("a stack file");
    // Another user can run and read the contents of a world-readable folder.
    let line = "chmod 777 . && chmod a+r *.toml && install -m 755 \"$1\" own && shift
        as=; [ $(id -u) != 0 ] || as='setpriv --reuid=65534 --regid=65534 --clear-groups'
        exec $as ./own serve --control own.control \"$@\"";
    let program = system_tests::program().to_str().expect("a UTF-8 path");
    for options in [&["s.toml", "--fuse", "vol.img", "--mount"][..], &["loop.toml"]] {
        let refused = shell(folder.path(), line, &[&[program], options].concat());
        assert_eq!(refused.status, Some(1), "{refused:?}");
        let said = refused.refused();
        let sentence =
            "error: a loop device (--mount, fuse_loop) needs root: run as root, or leave it out";
        assert!(said.starts_with(sentence) && said.lines().count() == 1, "{said}");
        for name in ["vol.img", "nbd.sock", "own.control"] {
            assert!(!folder.path().join(name).exists(), "{name}");
        }
    }
}
