//! Stack files on a real file system: sizes, files used twice, sockets.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use drystone_stack::diagnostic::Severity;
use drystone_stack::{LoadError, LoadOptions, StackSpec, explain, load, load_default, load_with};
use tempfile::TempDir;

fn file(name: &str, keys: &str) -> String {
    let export = format!("[export.{name}]\ndevice = \"{name}\"\nnbd = \"unix:{name}.sock\"\n");
    format!("[device.{name}]\ntype = \"file\"\n{keys}\n{export}")
}

fn write(folder: &TempDir, text: &str) -> std::path::PathBuf {
    let path = folder.path().join("vm.toml");
    fs::write(&path, text).unwrap();
    path
}

fn good(folder: &TempDir, text: &str) -> StackSpec {
    load(&write(folder, text)).unwrap_or_else(|error| panic!("{error}"))
}

/// The one error of a bad stack: its word, message and hint.
fn bad(folder: &TempDir, text: &str) -> (String, String, String) {
    match load(&write(folder, text)) {
        Err(LoadError::Invalid(report)) => {
            let errors = report.diagnostics.iter().filter(|d| d.severity == Severity::Error);
            assert_eq!(errors.count(), 1, "{report}");
            let found = &report.diagnostics[0];
            (found.word.clone(), found.message.clone(), found.hint.clone())
        }
        other => panic!("{text}: {other:?}"),
    }
}

fn sized(path: &Path, bytes: u64) {
    File::create(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn a_missing_file_needs_a_size_and_is_not_created_by_checking() {
    let folder = TempDir::new().unwrap();
    let (word, message, hint) = bad(&folder, &file("a", "path = \"a.img\""));
    assert_eq!(word, "\"a.img\"");
    assert!(message.contains("does not exist") && hint.contains("add size"), "{message} {hint}");
    let stack = good(&folder, &file("a", "path = \"a.img\"\nsize = \"1MiB\""));
    assert_eq!(stack.sizes["a"], 1 << 20);
    assert!(!folder.path().join("a.img").exists());
}

/// An array is made with all of its members, so a single one is not: it is lost, or somewhere else.
#[test]
fn a_member_is_not_made_beside_others_that_exist() {
    let folder = TempDir::new().unwrap();
    let member =
        |n| format!("[device.m{n}]\ntype = \"file\"\npath = \"m{n}.img\"\nsize = \"8MiB\"\n");
    let text = |keys: &str| {
        let members: String = (0..3).map(member).collect();
        format!(
            "{members}[device.a]\ntype = \"raid5\"\nmembers = [\"m0\", \"m1\", \"m2\"]\n{keys}\n\
             [export.a]\ndevice = \"a\"\nnbd = \"unix:a.sock\"\n"
        )
    };
    assert_eq!(good(&folder, &text("")).sizes.len(), 4, "all are made");
    ["m0.img", "m2.img"].iter().for_each(|name| sized(&folder.path().join(name), 8 << 20));
    let (word, message, hint) = bad(&folder, &text(""));
    assert_eq!(word, "\"m1.img\"");
    assert!(
        message.ends_with(
            "m1.img does not exist, and is not made, because other members of `a` exist"
        ),
        "{message}"
    );
    assert!(hint.contains("m2.img` prints a stack file of the others"), "{hint}");
    assert!(hint.contains("set `run = true` in [device.a]"), "{hint}");
    let stack = good(&folder, &text("run = true"));
    assert!(stack.absent.contains("m1"), "{:?}", stack.absent);
}

#[test]
fn what_may_be_created_is_respected() {
    let folder = TempDir::new().unwrap();
    let keys = "path = \"a.img\"\nsize = \"1MiB\"\n";
    let never = bad(&folder, &file("a", &format!("{keys}create = \"never\"")));
    assert!(never.1.contains("create is \"never\""), "{never:?}");
    let read_only = bad(&folder, &file("a", &format!("{keys}read_only = true")));
    assert!(read_only.1.contains("read-only"), "{read_only:?}");
    let far = bad(&folder, &file("a", "path = \"x/a.img\"\nsize = \"1MiB\""));
    assert!(far.2.contains("mkdir -p"), "{far:?}");
    sized(&folder.path().join("a.img"), 1 << 20);
    let new = bad(&folder, &file("a", &format!("{keys}create = \"new\"")));
    assert!(new.1.contains("exists (1MiB)"), "{new:?}");
}

#[test]
fn existing_files_tell_their_size() {
    let folder = TempDir::new().unwrap();
    sized(&folder.path().join("a.img"), 1 << 20);
    assert_eq!(good(&folder, &file("a", "path = \"a.img\"")).sizes["a"], 1 << 20);
    let (word, message, hint) = bad(&folder, &file("a", "path = \"a.img\"\nsize = \"2MiB\""));
    assert_eq!(word, "\"2MiB\"");
    assert!(message.contains("too small: it has 1MiB"), "{message}");
    assert!(hint.contains("grow the file to 2MiB"), "{hint}");
    let larger = good(&folder, &file("a", "path = \"a.img\"\nsize = \"512KiB\""));
    assert_eq!(larger.sizes["a"], 512 << 10);
    assert!(larger.warnings[0].message.contains("larger than the device"));
    sized(&folder.path().join("a.img"), 0);
    assert!(bad(&folder, &file("a", "path = \"a.img\"")).1.contains("is empty"));
}

#[test]
fn folders_and_other_things_are_no_devices() {
    let folder = TempDir::new().unwrap();
    let (_, message, _) = bad(&folder, &file("a", "path = \".\""));
    assert!(message.contains("neither a file nor a block device"), "{message}");
    let (_, message, _) = bad(&folder, &file("a", "path = \"/dev/null\""));
    assert!(message.contains("neither a file nor a block device"), "{message}");
}

#[test]
fn one_file_is_not_two_devices_by_any_name() {
    let folder = TempDir::new().unwrap();
    let two = |first: &str, second: &str| {
        let keys = |path: &str| format!("path = \"{path}\"\nsize = \"1MiB\"");
        file("a", &keys(first)) + &file("b", &keys(second))
    };
    fs::create_dir(folder.path().join("sub")).unwrap();
    symlink("new.img", folder.path().join("dangling")).unwrap();
    for (first, second) in
        [("new.img", "new.img"), ("new.img", "sub/../new.img"), ("new.img", "dangling")]
    {
        let (_, message, _) = bad(&folder, &two(first, second));
        assert!(message.contains("`b` and `a` are the same file"), "{second}: {message}");
    }
    sized(&folder.path().join("a.img"), 1 << 20);
    symlink("a.img", folder.path().join("link")).unwrap();
    fs::hard_link(folder.path().join("a.img"), folder.path().join("hard")).unwrap();
    for second in ["link", "hard"] {
        let (_, message, _) = bad(&folder, &two("a.img", second));
        assert!(message.contains("are the same file"), "{second}: {message}");
    }
    sized(&folder.path().join("c.img"), 1 << 20);
    assert_eq!(good(&folder, &two("a.img", "c.img")).devices.len(), 2);
}

#[test]
fn sockets_do_not_replace_files() {
    let folder = TempDir::new().unwrap();
    let with = |socket: &str| {
        format!(
            "[device.a]\ntype = \"file\"\npath = \"a.img\"\nsize = \"1MiB\"\n[export.e]\ndevice = \
             \"a\"\nnbd = \"unix:{socket}\"\n"
        )
    };
    let (word, message, _) = bad(&folder, &with("a.img"));
    assert!(word == "\"unix:a.img\"" && message.contains("file of device `a`"), "{message}");
    let (_, message, hint) = bad(&folder, &with("no/x.sock"));
    assert!(message.contains("folder does not exist") && hint.contains("mkdir"), "{message}");
    let (_, message, _) = bad(&folder, &with("vm.toml"));
    assert!(message.contains("is not a socket"), "{message}");
    drop(UnixListener::bind(folder.path().join("stale.sock")).unwrap());
    assert_eq!(good(&folder, &with("stale.sock")).exports.len(), 1);
}

#[test]
fn one_socket_under_two_names_is_refused() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    let export = |name: &str, path: &str| {
        format!("[export.{name}]\ndevice = \"d\"\nnbd = \"unix:{path}\"\n")
    };
    let two = |second: &str| {
        let device = "[device.d]\ntype = \"null\"\n";
        [device, &export("a", "x.sock"), &export("b", second)].concat()
    };
    assert_eq!(good(&folder, &two("x.sock")).listeners().len(), 1);
    let (_, message, hint) = bad(&folder, &two("sub/../x.sock"));
    assert!(message.contains("is the socket of export `a`"), "{message}");
    assert!(hint.contains("write both paths alike"), "{hint}");
}

#[test]
fn certificates_must_be_readable() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("c.pem"), "c").unwrap();
    let tls = "tls = { mode = \"required\", cert = \"c.pem\", key = \"k.pem\" }";
    let text = file("a", "path = \"a.img\"\nsize = \"1MiB\"") + tls;
    let (word, message, _) = bad(&folder, &text);
    assert!(word == "\"k.pem\"" && message.contains("No such file"), "{message}");
}

#[test]
fn a_key_belongs_to_its_certificate() {
    let folder = TempDir::new().unwrap();
    let tls = "tls = { mode = \"required\", cert = \"c.pem\", key = \"k.pem\" }";
    let text = file("a", "path = \"a.img\"\nsize = \"1MiB\"") + tls;
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::KeyPair::generate().unwrap();
    write("k.pem", &other.serialize_pem());
    for (cert, wrong) in [("nothing", "\"c.pem\""), (&*made.cert.pem(), "\"k.pem\"")] {
        write("c.pem", cert);
        let (word, _, hint) = bad(&folder, &text);
        assert_eq!((&*word, &*hint), (wrong, "name PEM files that belong together"));
    }
    write("k.pem", &made.signing_key.serialize_pem());
    good(&folder, &text);
}

#[test]
fn unreadable_files_say_why() {
    let folder = TempDir::new().unwrap();
    let error = load(&folder.path().join("none.toml")).unwrap_err().to_string();
    assert!(error.contains("none.toml: No such file"), "{error}");
    fs::write(folder.path().join("b.toml"), b"a = \"\xff\"").unwrap();
    let error = load(&folder.path().join("b.toml")).unwrap_err().to_string();
    assert!(error.contains("its byte 5 is 0 or not UTF-8"), "{error}");
    // An image, of which the beginning is zeroes.
    fs::write(folder.path().join("disk.img"), [0; 512]).unwrap();
    let error = load(&folder.path().join("disk.img")).unwrap_err().to_string();
    assert!(error.contains("disk.img is not a stack file: its byte 0 is"), "{error}");
    assert!(error.contains("name its path in a stack file"), "{error}");
    fs::write(folder.path().join("big.toml"), vec![b' '; (16 << 20) + 1]).unwrap();
    let error = load(&folder.path().join("big.toml")).unwrap_err().to_string();
    assert!(error.contains("at most 16777216 bytes"), "{error}");
}

#[test]
fn the_default_stack_needs_only_its_folder() {
    let folder = TempDir::new().unwrap();
    assert!(load_default(folder.path()).is_err());
    fs::create_dir(folder.path().join("drystone-data")).unwrap();
    let stack = load_default(folder.path()).unwrap();
    assert_eq!((0..4).map(|n| stack.sizes[&format!("disk{n}")]).sum::<u64>(), 16 << 30);
}

#[test]
fn a_stack_is_explained_as_a_tree() {
    let folder = TempDir::new().unwrap();
    let text = file("a", "path = \"a.img\"\nsize = \"1.5GiB\"") + "[device.n]\ntype = \"null\"\n";
    let drawn = explain(&good(&folder, &text));
    let at = folder.path().display();
    let expected = format!(
        "stack vm\n\
         export a  nbd unix:{at}/a.sock\n\
         └── a  file  1.5GiB  {at}/a.img\n\
         not exported\n\
         └── n  null  250GiB  irqmode none\n"
    );
    assert_eq!(drawn, expected);
}

/// The file of the command line is a way in: of the only export, or of the first default one.
#[test]
fn a_file_of_the_command_line_is_a_way_in() {
    let folder = tempfile::tempdir().unwrap();
    let device = "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n";
    let export = |name: &str, keys: &str| format!("[export.{name}]\ndevice = \"d\"\n{keys}\n");
    let files = |text: &str| {
        let options = LoadOptions { file: Some("/vol.img".into()), ..LoadOptions::default() };
        let stack = load_with(&write(&folder, text), &options);
        let exports = stack.unwrap_or_else(|error| panic!("{error}")).exports;
        exports.into_iter().map(|export| export.fuse.map(|fuse| fuse.path)).collect::<Vec<_>>()
    };
    let file = || Some(PathBuf::from("/vol.img"));
    for keys in ["", "fuse_loop = true", "fuse = \"other\"", "clients = { \"uid:0\" = \"/\" }"] {
        assert_eq!(files(&format!("{device}{}", export("e", keys))), [file()], "{keys}");
    }
    let two =
        format!("{device}{}{}", export("e", "nbd = \"unix:a\""), export("f", "default = true"));
    assert_eq!(files(&two), [None, file()]);
    assert!(load(&write(&folder, &two)).unwrap_err().to_string().contains("has no way in"));
}

/// Two exports that appear as files.
fn two_files(first: &str, second: &str) -> String {
    let export =
        |name: &str, path: &str| format!("[export.{name}]\ndevice = \"d\"\nfuse = \"{path}\"\n");
    ["[device.d]\ntype = \"null\"\n", &export("a", first), &export("b", second)].concat()
}

#[test]
fn only_a_folder_is_shared_by_two_files() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("vols")).unwrap();
    fs::write(at("empty"), "").unwrap();
    assert_eq!(good(&folder, &two_files("vols", "./vols/")).exports.len(), 2);
    for (first, second) in [("vol", "vol"), ("vol", "./vol"), ("vol/", "vol"), ("empty", "empty")] {
        let (word, message, hint) = bad(&folder, &two_files(first, second));
        assert_eq!(word, format!("{second:?}"));
        assert!(message.contains("exports `a` and `b` are both to appear as"), "{message}");
        assert!(message.contains("only a folder that exists") && hint.contains("mkdir"), "{hint}");
    }
    assert!(!at("vol").exists(), "a check makes nothing");
}

#[test]
fn one_place_of_two_files_is_known_by_any_name() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("sub/deep")).unwrap();
    fs::create_dir(at("vols")).unwrap();
    for (link, to) in [("link", "sub/deep"), ("ahead", "vol"), ("other", "vols")] {
        symlink(to, at(link)).unwrap();
    }
    let same = [
        ("vol", "sub/../vol"),
        ("sub/vol", "link/../vol"),
        ("vol", "ahead"),
        ("ahead", "vol"),
        ("vols", "other"),
    ];
    for (first, second) in same {
        let (word, message, hint) = bad(&folder, &two_files(first, second));
        assert_eq!(word, format!("{second:?}"));
        let names = ["of export `b`", "export `a` appears too"];
        assert!(names.iter().all(|name| message.contains(name)), "{second}: {message}");
        assert!(hint.contains("write both paths alike"), "{hint}");
    }
    for (first, second) in [("vols", "vols/x"), ("other/x", "vols"), ("vols", "other/x/y")] {
        let missing = second.ends_with('y');
        let (_, message, _) = bad(&folder, &two_files(first, second));
        let expected = if missing { "folder does not exist" } else { "lie in one another" };
        assert!(message.contains(expected), "{second}: {message}");
    }
    for (first, second) in [("vol", "vol2"), ("vols", "vols2"), ("sub/vol", "vol")] {
        assert_eq!(good(&folder, &two_files(first, second)).exports.len(), 2, "{second}");
    }
}

#[test]
fn a_file_appears_where_nothing_else_is() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    let with = |nbd: &str, fuse: &str| {
        let device = "[device.f]\ntype = \"file\"\npath = \"f.img\"\nsize = \"1MiB\"\n";
        format!("{device}[export.e]\ndevice = \"f\"\nnbd = \"unix:{nbd}\"\nfuse = \"{fuse}\"\n")
    };
    assert_eq!(good(&folder, &with("s.sock", "vol")).exports.len(), 1);
    let (word, message, _) = bad(&folder, &with("s.sock", "sub/../f.img"));
    assert!(word == "\"sub/../f.img\"" && message.contains("the file of device `f`"), "{message}");
    let (_, message, _) = bad(&folder, &with("s.sock", "s.sock"));
    assert!(message.contains("the socket of export `e`"), "{message}");
    let (_, message, hint) = bad(&folder, &with("s.sock", "no/vol"));
    assert!(message.contains("its folder does not exist") && hint.contains("mkdir"), "{message}");
    symlink("round", folder.path().join("round")).unwrap();
    let (_, message, _) = bad(&folder, &with("s.sock", "round"));
    assert!(message.contains("cannot be made"), "{message}");
}

/// Whatever a path holds, what is said of it stays on its line.
#[test]
fn control_characters_stay_on_their_line() {
    let folder = TempDir::new().unwrap();
    let text = |size: &str| {
        let device = format!("[device.d]\ntype = \"file\"\npath = \"d\\n\\u001B.img\"\n{size}\n");
        device + "[export.e]\ndevice = \"d\"\nfuse = \"v\\nol\"\nnbd = \"unix:s\\n.sock\"\n"
    };
    let drawn = explain(&good(&folder, &text("size = \"1MiB\"")));
    assert_eq!(drawn.lines().count(), 3, "{drawn}");
    for shown in ["d\\n\\u{1b}.img", "fuse ", "v\\nol", "s\\n.sock"] {
        assert!(drawn.contains(shown), "no {shown} in {drawn}");
    }
    let report = load(&write(&folder, &text(""))).unwrap_err().to_string();
    assert!(report.lines().next().unwrap().ends_with("d\\n\\u{1b}.img does not exist"), "{report}");
    assert!(!report.contains('\u{1b}'), "{report}");
}

/// The warnings, each with its word.
fn warnings(stack: &StackSpec) -> Vec<(String, String)> {
    stack.warnings.iter().map(|found| (found.word.clone(), found.message.clone())).collect()
}

#[test]
fn keys_that_others_may_read_are_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    sized(&folder.path().join("a.img"), 1 << 20);
    let key = folder.path().join("key.pem");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = "tls = { mode = \"required\", cert = \"cert.pem\", key = \"key.pem\" }\n";
    let device = "[device.d]\ntype = \"file\"\npath = \"a.img\"\n";
    let export =
        |name: &str| format!("[export.{name}]\ndevice = \"d\"\nnbd = \"unix:{name}.sock\"\n{tls}");
    let text = format!("{device}{}{}", export("a"), export("b"));
    for (mode, who) in [
        (0o600, None),
        (0o400, None),
        (0o644, Some("every user: its mode is 0644")),
        (0o640, Some("its group: its mode is 0640")),
        (0o602, Some("every user: its mode is 0602")),
    ] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let found = warnings(&good(&folder, &text));
        assert_eq!(found.len(), usize::from(who.is_some()), "once for both exports: {found:?}");
        for (word, message) in found {
            assert_eq!(word, "\"key.pem\"");
            assert!(message.contains(who.unwrap()), "{mode:o}: {message}");
        }
    }
}

#[test]
fn certificates_out_of_date_are_warned_of() {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    let folder = TempDir::new().unwrap();
    sized(&folder.path().join("a.img"), 1 << 20);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2021, 1, 1);
    let certificate = params.self_signed(&key).unwrap().pem();
    fs::write(folder.path().join("cert.pem"), certificate).unwrap();
    fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
    let tls = "tls = { mode = \"required\", cert = \"cert.pem\", key = \"key.pem\" }\n";
    let stack = good(&folder, &format!("{}{tls}", file("a", "path = \"a.img\"")));
    let at = |seconds| -> Vec<String> {
        let found = drystone_stack::certificate_warnings(&stack, seconds);
        found.into_iter().map(|found| format!("{} {}", found.word, found.message)).collect()
    };
    // Behind one that is good it is that of an authority.
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let expired = fs::read_to_string(folder.path().join("cert.pem")).unwrap();
    const FIRST: u64 = 1_577_836_800;
    const LAST: u64 = 1_609_459_200;
    assert!(at(FIRST).is_empty() && at(LAST).is_empty());
    for (seconds, why) in [
        (FIRST - 1, "is valid only from 2020-01-01 00:00:00 UTC"),
        (LAST + 1, "expired on 2021-01-01 00:00:00 UTC"),
    ] {
        let found = at(seconds);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("\"cert.pem\"") && found[0].ends_with(why), "{found:?}");
    }
    fs::write(folder.path().join("cert.pem"), own.cert.pem() + &expired).unwrap();
    let found = at(LAST + 1);
    assert!(found[0].contains("of an authority, number 2 in") && found[0].contains("expired"));
}

#[test]
fn authorities_of_clients_out_of_date_are_warned_of() {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let place = |name: &str| folder.path().join(name);
    sized(&place("a.img"), 1 << 20);
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(place("cert.pem"), own.cert.pem()).unwrap();
    fs::write(place("key.pem"), own.signing_key.serialize_pem()).unwrap();
    fs::set_permissions(place("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2021, 1, 1);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    let tls = "tls = { mode = \"required\", cert = \"cert.pem\", key = \"key.pem\", \
               client_ca = \"ca.pem\" }\n";
    for (pem, which) in [
        (ca.clone(), "the certificate of the clients' authority"),
        (own.cert.pem() + &ca, "the certificate of an authority of clients, number 2 in"),
    ] {
        fs::write(place("ca.pem"), pem).unwrap();
        let stack = good(&folder, &format!("{}{tls}", file("a", "path = \"a.img\"")));
        assert!(drystone_stack::certificate_warnings(&stack, 1_609_459_200).is_empty());
        let found = drystone_stack::certificate_warnings(&stack, 1_609_459_201);
        let [found] = &found[..] else { panic!("{found:?}") };
        assert_eq!(found.word, "\"ca.pem\"");
        assert!(found.message.starts_with(which), "{}", found.message);
        assert!(found.message.ends_with("expired on 2021-01-01 00:00:00 UTC"), "{}", found.message);
        assert!(found.hint.contains("let in all the same"), "{}", found.hint);
    }
}
