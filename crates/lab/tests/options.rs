//! No option of `drystone-lab` is ignored: each option of each command, with each experiment, has
//! an effect that another test holds, changes what is printed, or is refused by its name. The
//! options come from clap, so that a new one without a case here fails.

use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use drystone_lab::cli::Cli;
use drystone_testkit::program::Program;
use tempfile::TempDir;

const LAB: Program = Program::new(env!("CARGO_BIN_EXE_drystone-lab"));

/// The lines that a command can be written as, without options.
const FORMS: [&str; 12] = [
    "list",
    "run mq-deadline",
    "run dm-poll",
    "run reorder",
    "run blk-throttle",
    "run blk-throttle-accuracy",
    "run raid5-wait",
    "run plug-time",
    "run raid5-fsmark",
    "run all",
    "model mq-deadline",
    "model dm-poll",
];

/// A good value of each option that takes one.
const VALUES: [(&str, &str); 10] = [
    ("runs", "2"),
    ("runtime", "20ms"),
    ("threads", "2"),
    ("bytes", "1MiB"),
    ("only", "4 ram"),
    ("json", "a.json"),
    ("html", "a.html"),
    ("markdown", "a.md"),
    ("folder", "f"),
    ("cores", "1"),
];

/// Effects that take too long, or a machine of another kind, to be seen here: the beginning of the
/// form, the option, and the file that has the effect, a test's if one can hold it, with words that
/// stand there.
const HELD_ELSEWHERE: [(&str, &str, &str, &str); 17] = [
    ("run", "runs", "tests/outcome.rs", "runs"),
    ("run", "runtime", "tests/outcome.rs", "runtime_ns"),
    ("run", "threads", "tests/outcome.rs", "threads"),
    ("run mq-deadline", "kernel", "src/kernel.rs", "kernel: true"),
    ("run all", "kernel", "src/kernel.rs", "kernel: true"),
    ("run raid5-fsmark", "bytes", "src/raid5_fsmark/tests.rs", "cases("),
    ("run raid5-fsmark", "only", "src/raid5_fsmark/tests.rs", "cases("),
    ("run", "json", "tests/cli.rs", "\"--json\", \"no/a.json\""),
    ("run", "html", "src/cli.rs", "outcome.html()"),
    ("run", "markdown", "src/cli.rs", "outcome.markdown()"),
    ("run all", "folder", "src/cli.rs", "folder.join"),
    ("model", "cores", "tests/cli.rs", "--cores"),
    ("model", "runs", "tests/cli.rs", "\"mq-deadline\", \"--runs\", \"0\""),
    ("model", "runtime", "src/model/mod.rs", "options.runtime_ns"),
    ("model", "threads", "src/model/mod.rs", "options.threads"),
    ("model", "json", "src/cli.rs", "outcome.json()"),
    ("model", "html", "src/cli.rs", "outcome.html()"),
];

/// Options that an experiment refuses although a line above holds them for the others.
const REFUSED: [(&str, &str); 3] =
    [("run all", "json"), ("run all", "html"), ("run all", "markdown")];

#[test]
fn no_option_is_ignored() {
    let folder = TempDir::new().unwrap();
    let (root, mut seen, mut wrong) = (Cli::command(), 0, Vec::new());
    for form in FORMS {
        let name = form.split(' ').next().unwrap();
        let command = root.find_subcommand(name).expect("the command of a form");
        let options = command.get_arguments().filter(|arg| !arg.is_positional());
        for option in options.filter(|option| option.get_id() != "help") {
            let long = option.get_long().expect("each option has a long name");
            seen += 1;
            let mut words: Vec<&str> = form.split(' ').collect();
            let dashed = format!("--{long}");
            words.push(&dashed);
            words.extend(option.get_action().takes_values().then(|| value(long)));
            if !is_ignored_by_design(form, long) && is_held_elsewhere(form, long) {
                assert!(
                    Cli::command().try_get_matches_from([&["lab"], &words[..]].concat()).is_ok()
                );
                continue;
            }
            let with = LAB.run(folder.path(), &words);
            let told = String::from_utf8_lossy(&with.stderr);
            let is_refused = with.status.code() == Some(2) && told.contains(&dashed);
            let without = || LAB.run(folder.path(), &form.split(' ').collect::<Vec<_>>());
            if !is_refused && (form != "list" || with.stdout == without().stdout) {
                wrong.push(format!("`{}`: {told}", words.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 90, "only {seen} options were looked at");
}

fn value(option: &str) -> &'static str {
    let found = VALUES.iter().find(|(name, _)| *name == option);
    found.unwrap_or_else(|| panic!("--{option} has no value in VALUES")).1
}

/// True if the experiment names the option among those that have no effect on it, or writes to
/// --folder.
fn is_ignored_by_design(form: &str, option: &str) -> bool {
    let experiment =
        drystone_lab::EXPERIMENTS.iter().find(|one| form == format!("run {}", one.name));
    experiment.is_some_and(|one| one.ignores.contains(&option)) || REFUSED.contains(&(form, option))
}

/// Makes sure that the file which holds the option still has it.
fn is_held_elsewhere(form: &str, option: &str) -> bool {
    let is_it = |case: &&(&str, &str, &str, &str)| form.starts_with(case.0) && case.1 == option;
    let Some((_, _, file, words)) = HELD_ELSEWHERE.iter().find(is_it) else { return false };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert!(text.contains(words), "{file} has no {words}");
    true
}
