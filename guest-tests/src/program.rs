//! Programs of the host with the shared libraries that they need.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command;
use crate::cpio::Archive;

/// Adds a program as `/bin/NAME`, and its libraries where the loader expects them. The error is one
/// sentence.
pub fn add(archive: &mut Archive, program: &Path) -> Result<(), String> {
    let path = find(program).ok_or_else(|| format!("there is no {}", program.display()))?;
    let name = file_name(&path);
    archive.file(&format!("/bin/{name}"), 0o755, &read(&path)?);
    for (target, library) in libraries(&path)? {
        archive.file(&target, 0o755, &read(&library)?);
    }
    Ok(())
}

/// A program by its path, or by its name in PATH and the system's folders.
fn find(program: &Path) -> Option<PathBuf> {
    if program.is_absolute() {
        return program.exists().then(|| program.to_owned());
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]).map(Path::new);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Libraries of a program: where the guest's loader finds them, and where they are here.
fn libraries(program: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    match command::text(Path::new("/"), "ldd", &[program]) {
        Ok(text) => parse(&text).ok_or_else(|| format!("{}: ldd says {text}", program.display())),
        // Ldd fails on a program that needs no loader.
        Err(message) if message.contains("not a dynamic executable") => Ok(Vec::new()),
        Err(message) => Err(message),
    }
}

/// Reads the lines `NAME => PATH (ADDRESS)` and `PATH (ADDRESS)` (the loader itself); nothing if a
/// library is missing. The kernel's own library, `linux-vdso`, has no path.
fn parse(text: &str) -> Option<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // /lib is a folder that every loader searches.
            [name, "=>", path, _] if path.starts_with('/') => {
                let name = file_name(Path::new(name));
                found.push((format!("/lib/{name}"), path.into()));
            }
            [path, _] if path.starts_with('/') => found.push((path.to_owned(), path.into())),
            _ if line.contains("not found") => return None,
            _ => {}
        }
    }
    Some(found)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let text = "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /usr/lib/x/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found = parse(text).expect("all there");
        let targets: Vec<&str> = found.iter().map(|(target, _)| target.as_str()).collect();
        assert_eq!(targets, ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert_eq!(found[0].1, Path::new("/usr/lib/x/libc.so.6"));
        assert_eq!(parse("\tstatically linked\n"), Some(Vec::new()));
        assert_eq!(parse("\tlibx.so.1 => not found\n"), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let error = add(&mut Archive::default(), Path::new("no-such-program"));
        assert_eq!(error, Err("there is no no-such-program".to_owned()));
    }
}
