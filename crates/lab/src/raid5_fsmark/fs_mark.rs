//! `fs_mark`, the mail's load: its command line and its output.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use super::case::{Case, FILE_BYTES};

/// Its command, on a mounted file system: a folder for each thread, as in the mail's test robot
/// (LKP). The files are kept, since the whole file system is discarded afterwards.
pub(super) fn command(case: &Case, mounted: &Path) -> Command {
    let mut command = Command::new("fs_mark");
    // fs_mark refuses names of 40 bytes. Its log is outside the file system.
    command.current_dir(mounted).args(["-l", "../fs_mark.log"]);
    command.args(["-k", "-L", "1", "-S", if case.sync { "1" } else { "0" }]);
    command.args(["-s", &FILE_BYTES.to_string(), "-n", &case.files_each().to_string()]);
    command.args(["-t", &case.threads.to_string()]);
    for folder in folders(case) {
        command.arg("-d").arg(folder);
    }
    command
}

/// The folders of the threads.
pub(super) fn folders(case: &Case) -> impl Iterator<Item = String> {
    (1..=case.threads).map(|number| number.to_string())
}

/// Checks that it is installed.
///
/// # Errors
/// One sentence if not.
pub(super) fn check() -> anyhow::Result<()> {
    let found = Command::new("fs_mark").arg("-h").output();
    found.context(
        "fs_mark is not installed (Debian's package fsmark), and it is this experiment's load",
    )?;
    Ok(())
}

/// Files and files a second, of its output.
///
/// # Errors
/// When the output has another form.
pub(super) fn parse(text: &str) -> anyhow::Result<(u64, f64)> {
    let lines = text.lines().skip_while(|line| !line.trim_start().starts_with("FSUse%"));
    let Some(line) = lines.skip(1).find(|line| !line.trim().is_empty()) else {
        bail!("fs_mark says nothing of files a second: {}", text.trim());
    };
    let figures: Vec<&str> = line.split_whitespace().collect();
    let [_, files, _, rate, ..] = figures[..] else { bail!("fs_mark has another table: {line}") };
    let rate: f64 = rate.parse().with_context(|| format!("fs_mark's files a second: {rate}"))?;
    Ok((files.parse().with_context(|| format!("fs_mark's files: {files}"))?, rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\n#  fs_mark  -d  a  -t  2  -n  2  -s  4194304  -S  1  -k  -L  1 \n\
        #\tVersion 3.3, 2 thread(s) starting at Tue Nov 24 02:16:25 2026\n\
        #\tFiles info: size 4194304 bytes, written with an IO size of 16384 bytes per write\n\n\
        FSUse%        Count         Size    Files/sec     App Overhead\n    69            4      \
        4194304         93.7              124\n";

    #[test]
    fn its_figures_are_found() {
        assert_eq!(parse(OUTPUT).unwrap(), (4, 93.7));
        for wrong in [
            "",
            "FSUse%  Count\n\n",
            "FSUse%\n 1 2 3\n",
            "FSUse%\n 1 x 3 4 5\n",
            "FSUse%\n1 2 3 y\n",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn it_is_asked_for_the_files_of_the_case() {
        let case = super::super::case::cases(256 << 20, 2, &["4 ram-btrfs-fsync".to_owned()])[0];
        let command = command(&case, Path::new("/m"));
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        let wanted = "-l ../fs_mark.log -k -L 1 -S 1 -s 4194304 -n 32 -t 2 -d 1 -d 2";
        assert_eq!(words.join(" "), wanted);
    }
}
