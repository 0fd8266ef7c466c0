//! The command lines of the mails, by the scripts that users run.

use system_tests::new_folder;

use super::{engine, repository, run_embedded};

/// Runs a script for a moment; what fio said of `jobs` groups of jobs.
fn lines(script: &str, jobs: usize) {
    let Some(engine) = engine() else { return };
    let folder = new_folder();
    let script = repository(&format!("examples/fio/{script}.sh")).display().to_string();
    let engine = format!("DRYSTONE_FIO={engine}");
    let said = run_embedded(folder.path(), &["env", "RUNTIME=300ms", &engine, &script]).ok();
    assert_eq!(said.matches("err= 0").count(), jobs, "{said}");
    assert_eq!(said.matches("read: IOPS=").count(), jobs, "{said}");
}

#[test]
fn mq_deadline_of_2024() {
    lines("mq-deadline", 1);
}

#[test]
fn dm_poll_of_2021() {
    lines("dm-poll", 6);
}

#[test]
fn plug_time_of_2024() {
    lines("plug-time", 1);
}

#[test]
fn without_the_engine_they_say_what_to_do() {
    let folder = new_folder();
    let script = repository("examples/fio/plug-time.sh").display().to_string();
    let said = run_embedded(folder.path(), &["env", "DRYSTONE_FIO=/none.so", &script]).refused();
    assert_eq!(said, "/none.so does not exist: run `make capi`\n");
}
