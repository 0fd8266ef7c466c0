//! Truncated files: a program that truncates a file relies on zeroes beyond, and must get them.

use super::*;

/// Fills the file with other data, then makes `sparse.img` of this many MiB, with scattered data.
fn filled(files: &Files, file: &str, mib: u32) {
    let line = "tr '\\0' O </dev/zero | dd of=\"$1\" bs=1M count=$2 iflag=fullblock \
        conv=notrunc,fsync 2>dd.log || [ $? = 141 ]; rm -f sparse.img; truncate -s $3M sparse.img; \
        for at in 0 700 5000000 9000001; do printf data | dd of=sparse.img bs=1 seek=$at \
        conv=notrunc 2>>dd.log; done";
    let size = fs::metadata(file).expect("the file is there").len() >> 20;
    let (size, mib) = (size.to_string(), mib.to_string());
    shell(files.server.dir(), line, &[file, &size, &mib]).ok();
}

/// A new folder in which the path of the file is a folder for it.
fn with_folder() -> Arc<TempDir> {
    let folder = new_folder();
    fs::create_dir(folder.path().join("vol.img")).expect("a folder");
    folder
}

/// A loop device reads all of its device also after a truncation, because nobody asks for the size.
#[test]
fn a_loop_device_stays_as_large_when_its_file_is_cut() {
    if !has_loop() {
        return;
    }
    let mut files = Files::start(&ends::looped("vol.img"));
    let device = files.announced(true);
    files.run("dd if=/dev/zero of=vol.img bs=1M count=1 2>dd.log", &device).ok();
    let line = "for n in $(seq 50); do dd if=\"$1\" of=out bs=1M skip=15 iflag=direct 2>dd.log && \
        exit; sleep 0.1; done; cat dd.log; exit 1";
    files.run(line, &device).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// Copies leave out the holes of their source: as large as the volume, and smaller.
#[test]
fn a_sparse_copy_onto_old_data_is_equal() {
    if !has_fuse() || !requires("qemu-img") {
        return;
    }
    let array = stack::array("raid5", 3, "20MiB", "") + "fuse = \"DIR/vol.img\"\n";
    let kinds = [
        ram("").replace("64MiB", "16MiB"),
        ram("fuse_writeback_cache = true\n").replace("64MiB", "16MiB"),
        ram("fuse_loop = true\n").replace("64MiB", "16MiB"),
        array,
    ];
    for text in kinds {
        if text.contains("fuse_loop") && !has_loop() {
            continue;
        }
        let folder = if text.contains("writeback") { with_folder() } else { new_folder() };
        let mut files = Files::start_in(&folder, &text);
        let file = files.announced(false);
        for tool in [
            "cp sparse.img \"$1\"",
            "qemu-img convert -f raw -O raw sparse.img \"$1\"",
            "dd if=sparse.img of=\"$1\" bs=64k conv=sparse 2>dd.log",
        ] {
            for mib in [16, 12] {
                filled(&files, &file, mib);
                let line = format!("{tool} && cmp -n {} sparse.img \"$1\"", mib << 20);
                files.run(&line, &file).ok();
                let rest = "s=$(stat -c %s \"$1\"); n=$((s-($2<<20))); [ $n -le 0 ] || cmp -n $n \
                    -i $(($2<<20)):0 \"$1\" /dev/zero";
                shell(files.server.dir(), rest, &[&file, &mib.to_string()]).ok();
            }
        }
        assert!(files.server.sigterm().success(), "{}", files.server.messages());
    }
}

/// Data that another process had read, mapped and not yet written back is gone beyond the
/// truncation; the size stays.
#[test]
fn whoever_had_the_file_cached_sees_it_cut() {
    if !has_fuse() {
        return;
    }
    let mut files = Files::start(&ram("").replace("64MiB", "8MiB"));
    let file = files.announced(false);
    let script = r#"
import mmap, os, subprocess, sys
path = sys.argv[1]
f = os.open(path, os.O_RDWR); size = os.fstat(f).st_size
m = mmap.mmap(f, size)
for cut in (0, 5, 4096, size - 4196, 0, size):
    m[:] = b'O' * size
    assert os.pread(f, size, 0) == b'O' * size
    subprocess.run(['truncate', '-s', str(cut), path], check=True)
    assert os.fstat(f).st_size == size, 'a device keeps its size'
    want = b'O' * cut + bytes(size - cut)
    assert m[:] == want, ('mapped', cut)
    assert os.pread(f, size, 0) == want, ('read', cut)
    os.fsync(f)
    same = f'head -c {cut} /dev/zero | tr "\\0" O | cmp -n {cut} - {path}'
    zero = f'cmp -i {cut}:0 -n {size - cut} {path} /dev/zero'
    subprocess.run(f'{same} && {zero}', shell=True, check=True)
    direct = os.open(path, os.O_RDONLY | os.O_DIRECT); page = mmap.mmap(-1, 4096)
    n = os.preadv(direct, [page], size - 4096)
    assert n == 4096 and page[:] == want[-4096:], ('direct', cut)
try:
    os.truncate(path, size + 1); raise SystemExit('longer than the device')
except OSError as e:
    assert e.errno == 27, e
assert m[:] == b'O' * size
"#;
    fs::write(files.server.path("cut.py"), script).expect("a script");
    files.run("/usr/bin/python3 cut.py \"$1\"", &file).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// A kernel that holds writes back keeps the size, too: a file stays as short as it was truncated.
#[test]
fn with_a_writeback_cache_a_cut_file_stays_short() {
    if !has_fuse() {
        return;
    }
    let text = ram("fuse_writeback_cache = true\n").replace("64MiB", "8MiB");
    let told = Server::spawn_in(&new_folder(), &text, &[]).refusal();
    assert!(told.contains("`fuse_writeback_cache` is for files in a folder"), "{told}");
    let mut files = Files::start_in(&with_folder(), &text);
    let file = files.announced(false);
    let script = r#"
import os, sys
path = sys.argv[1]; size = 8 << 20
f = os.open(path, os.O_RDWR)
os.pwrite(f, b'O' * size, 0)
os.ftruncate(f, 5000)
assert os.fstat(f).st_size == 5000 and os.pread(f, size, 0) == b'O' * 5000
os.pwrite(f, b'end', 10000)
assert os.pread(f, size, 0) == b'O' * 5000 + bytes(5000) + b'end'
os.ftruncate(f, size)
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
assert os.pread(f, size, 0) == b'O' * 5000 + bytes(5000) + b'end' + bytes(size - 10003)
"#;
    fs::write(files.server.path("short.py"), script).expect("a script");
    files.run("/usr/bin/python3 short.py \"$1\"", &file).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// Effects of tools and shells on a file that they name. Without the key all of these zero from the
/// named size on, and the file's own size stays. `truncate` opens the file and truncates the open
/// file, so the key does not prevent that.
#[test]
fn tools_cut_as_they_say() {
    if !has_fuse() || !requires("truncate") {
        return;
    }
    let array = stack::array("raid5", 3, "6MiB", "") + "fuse = \"DIR/vol.img\"\n";
    let cut = ["truncate -s 0 \"$1\"", "truncate -s 5000 \"$1\""];
    let opened = [": > \"$1\"", "echo x > \"$1\"", "dd if=/dev/null of=\"$1\" 2>dd.log"];
    let own = ["truncate -s $2 \"$1\"", "truncate -s +0 \"$1\"", ": >> \"$1\"", ": <> \"$1\""];
    let all_of = |letter: char, begin: u32, line: &str| {
        // The letters, and from `begin` on the expected contents beyond the output of `echo`.
        let begin = if line.contains("echo") { 2 } else { begin };
        let written = if line.contains("echo") {
            "printf 'x\\n'".to_owned()
        } else {
            format!("head -c {begin} /dev/zero | tr '\\0' O")
        };
        let rest = if letter == 'O' { "tr '\\0' O" } else { "cat" };
        format!(
            "{{ {written}; head -c $(($2-{begin})) /dev/zero | {rest}; }} | cmp - \"$1\" && [ \
             $(stat -c %s \"$1\") = $2 ]"
        )
    };
    for text in [array, ram("").replace("64MiB", "8MiB")] {
        for (key, kept) in [("", false), ("fuse_ignore_truncate = true\n", true)] {
            let mut files = Files::start(&format!("{text}{key}"));
            let file = files.announced(false);
            let size = fs::metadata(&file).expect("the file is there").len().to_string();
            let run = |line: &str| shell(files.server.dir(), line, &[&file, &size]);
            let lines = cut.iter().map(|line| (line, false));
            let lines = lines.chain(opened.iter().map(|line| (line, kept)));
            for (line, stays) in lines.chain(own.iter().map(|line| (line, true))) {
                run("head -c $2 /dev/zero | tr '\\0' O | dd of=\"$1\" bs=1M conv=notrunc,fsync \
                    2>dd.log")
                .ok();
                let begin = if line.contains("5000") { 5000 } else { 0 };
                let wanted = all_of(if stays { 'O' } else { '0' }, begin, line);
                let outcome = run(&format!("{line}; {wanted}"));
                assert!(outcome.succeeded, "{key} {line}: {outcome:?}");
            }
            assert!(files.server.sigterm().success(), "{}", files.server.messages());
        }
    }
}

/// As with a block device, where the key asks for it: `O_TRUNC` keeps what is not written, and
/// costs nothing.
#[test]
fn opening_to_overwrite_can_change_nothing() {
    if !has_fuse() {
        return;
    }
    let array = stack::array("raid5", 3, "20MiB", "") + "fuse = \"DIR/vol.img\"\n";
    let cached = ram("fuse_writeback_cache = true\n").replace("64MiB", "8MiB");
    for text in [array, cached, ram("").replace("64MiB", "8MiB")] {
        let folder = if text.contains("writeback") { with_folder() } else { new_folder() };
        let mut files = Files::start_in(&folder, &(text + "fuse_ignore_truncate = true\n"));
        let file = files.announced(false);
        let script = r#"
import os, subprocess, sys
path = sys.argv[1]
f = os.open(path, os.O_RDWR); size = os.fstat(f).st_size
os.pwrite(f, b'O' * size, 0); os.fsync(f)
def changed(begin):
    assert os.fstat(f).st_size == size, os.fstat(f)
    os.fsync(f); os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(f, size, 0) == begin + b'O' * (size - len(begin)), begin
subprocess.run(['/bin/sh', '-c', 'echo x > "$1"', 'sh', path], check=True)
changed(b'x\n')
os.truncate(path, 0)
changed(b'x\n')
dd = ['dd', 'if=/dev/zero', 'of=' + path, 'bs=4k', 'count=2']
subprocess.run(dd, check=True, stderr=subprocess.DEVNULL)
changed(bytes(8192))
os.ftruncate(f, 0); os.ftruncate(f, size)
assert os.pread(f, size, 0) == bytes(size), 'ftruncate zeroes as ever'
"#;
        fs::write(files.server.path("keep.py"), script).expect("a script");
        files.run("/usr/bin/python3 keep.py \"$1\"", &file).ok();
        assert!(files.server.sigterm().success(), "{}", files.server.messages());
    }
}

/// A loop device announces discards only where its file takes holes; the check does not change the
/// file.
#[test]
fn a_loop_device_announces_discards_where_they_work() {
    if !has_loop() || !requires("blkdiscard") || !requires("mkfs.ext4") {
        return;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(6), Some(10)) {
        println!("SKIPPED: Linux {} announces discards for every file", release.trim());
        return;
    }
    let look = "cat /sys/block/${1#/dev/}/queue/discard_max_bytes; mkfs.ext4 -F $2 \"$1\" 2>&1";
    let letters = "head -c 65536 /dev/zero | tr '\\0' O";
    let fill = &format!("{letters} | dd of=\"$1\" bs=64k iflag=fullblock conv=fsync 2>dd.log");
    let compare = &format!("{letters} | cmp -n 65536 - \"$1\"");
    let ram = ram("fuse_loop = true\n").replace("64MiB", "16MiB");
    let folder = new_folder();
    let mut files = Files::start_in(&folder, &array(""));
    let device = files.announced(true);
    files.run(fill, &device).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
    drop(files);
    for (text, works) in [(array(""), false), (ram, true)] {
        let mut files = Files::start_in(&folder, &text);
        let device = files.announced(true);
        if !works {
            files.run(compare, &device).ok();
        }
        let said = shell(files.server.dir(), look, &[&device, ""]).ok();
        assert_eq!(!said.starts_with("0\n"), works, "{said}");
        assert_eq!(said.contains("Discarding device blocks"), works, "{said}");
        assert!(!said.contains("failed"), "{said}");
        assert!(files.server.sigterm().success(), "{}", files.server.messages());
    }
}
