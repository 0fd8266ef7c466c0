//! Operations of Drystone on the arrays, on the host: all of them in one server.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use system_tests::{Server, program, python, stack};
use tempfile::TempDir;

use crate::arrays::{Array, MEMBER_BYTES};
use crate::writes::Write;

/// `drystone md create` makes the array on new files.
pub fn make(array: &Array, folder: &Path) {
    for name in array.members() {
        let file = File::create(folder.join(name)).expect("a member");
        file.set_len(MEMBER_BYTES).expect("a member");
    }
    let mut create = Command::new(program());
    create.current_dir(folder).args(["md", "create", "--name", &array.name]);
    if array.shape.policy == "ppl" {
        create.arg("--force");
    }
    let output = create.args(array.shape.options()).args(array.members()).output();
    let output = output.expect("drystone runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", array.name);
}

/// Serves the arrays; they are found by their superblocks.
pub fn serve(arrays: &[Array], folder: &Arc<TempDir>) -> Server {
    let text = |array: &Array| {
        let file =
            |name: String| format!("[device.{name}]\ntype = \"file\"\npath = \"DIR/{name}\"\n");
        let files: String = array.members().map(file).collect();
        let names: Vec<String> = array.members().map(|name| format!("{name:?}")).collect();
        let (name, level) = (&array.name, array.shape.level);
        format!(
            "{files}[device.{name}]\ntype = \"raid{level}\"\nmembers = [{}]\n{}",
            names.join(", "),
            stack::export(name, name, "")
        )
    };
    let texts: String = arrays.iter().map(text).collect();
    Server::start_in(folder, &texts, &[])
}

fn md(server: &Server, line: &str) {
    let words: Vec<&str> = ["md"].into_iter().chain(line.split(' ')).collect();
    server.ask(&words).ok();
}

/// Writes to an array, flushes, and compares all of it.
pub fn write(server: &mut Server, array: &Array, writes: &[Write]) {
    let list: Vec<String> = writes
        .iter()
        .map(|write| format!("({}, {}, {})", write.from, write.to, write.sectors))
        .collect();
    fs::write(server.path("expected"), &array.data).expect("a file");
    let script = format!(
        "
        blob = open({blob:?}, 'rb').read()
        for (at, to, n) in [{list}]:
            h.pwrite(blob[at * 512:(at + n) * 512], to * 512)
        h.flush()
        expected = open({expected:?}, 'rb').read()
        assert h.pread(len(expected), 0) == expected, 'what was written'
        ",
        blob = server.path("blob"),
        expected = server.path("expected"),
        list = list.join(", ") + if list.is_empty() { "" } else { "," },
    );
    let uri = server.uri(&array.name);
    python(server.dir(), &uri, &script).ok();
}

/// Loses member `lost`, writes to the rest, and rebuilds the member.
pub fn rebuild(server: &mut Server, array: &mut Array, lost: usize, blob: &[u8], writes: &[Write]) {
    let (name, member) = (array.name.clone(), array.member(lost));
    md(server, &format!("fail {name} {member}"));
    md(server, &format!("remove {name} {member}"));
    array.note(writes, blob);
    write(server, array, writes);
    md(server, &format!("add {name} {member}"));
    md(server, &format!("wait {name}"));
}

/// Parity fits all over the array, and nothing is missing.
pub fn check(server: &Server, array: &Array) {
    md(server, &format!("check {}", array.name));
    md(server, &format!("wait {}", array.name));
    let told = server.ask(&["md", "detail", &array.name, "--json"]).ok();
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let told = &told["arrays"][0];
    let members: serde_json::Value = array.shape.members().into();
    assert_eq!(told["active_devices"], members, "{}: {told}", array.name);
    assert_eq!(told["mismatch_cnt"], 0, "{}: {told}", array.name);
}
