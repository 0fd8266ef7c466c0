//! The kernel's modules that guests can load, with those they depend on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::command;
use crate::cpio::Archive;

/// Modules that `modprobe` finds in a guest, by name. Built-in ones (NVMe, ext4 and virtio-serial,
/// in Debian's cloud kernel) may stand here too, at no cost.
pub const WANTED: [&str; 18] = [
    "brd",
    "dm-mod",
    "dm-delay",
    "dm-flakey",
    "dm-log-writes",
    "dm-zero",
    "ext4",
    "loop",
    "nbd",
    "null_blk",
    "nvme",
    "raid0",
    "raid1",
    "raid10",
    "raid456",
    "ublk_drv",
    "virtio_blk",
    "virtio_console",
];

/// Modules of one kernel, as they lie below `/lib/modules/RELEASE` of an unpacked package.
#[derive(Debug)]
struct Tree {
    /// Packed modules by their name.
    packed: BTreeMap<String, PathBuf>,
    /// Names of modules that are part of the kernel.
    built_in: Vec<String>,
}

/// A module that goes into the guest.
#[derive(Debug)]
struct Module {
    content: Vec<u8>,
    /// All modules that must be there before it, those that depend on none last.
    before: Vec<String>,
}

/// Adds the wanted modules in `folder` (`.../lib/modules/RELEASE`) to the archive, with the list
/// of dependencies that `modprobe` reads. The error is one sentence.
pub fn add(archive: &mut Archive, folder: &Path) -> Result<(), String> {
    let release = folder.file_name().and_then(|name| name.to_str()).ok_or("no kernel release")?;
    let target = format!("/lib/modules/{release}");
    let tree = Tree::read(folder)?;
    let mut modules = BTreeMap::new();
    for name in WANTED {
        tree.collect(&plain(name), &mut modules)?;
    }
    for (name, module) in &modules {
        archive.file(&format!("{target}/{name}.ko"), 0o644, &module.content);
    }
    archive.file(&format!("{target}/modules.dep"), 0o644, dependencies(&modules).as_bytes());
    archive.file(&format!("{target}/modules.builtin"), 0o644, &read(&folder.join(BUILT_IN))?);
    Ok(())
}

const BUILT_IN: &str = "modules.builtin";

impl Tree {
    fn read(folder: &Path) -> Result<Tree, String> {
        let mut packed = BTreeMap::new();
        find(folder, &mut packed).map_err(|error| format!("{}: {error}", folder.display()))?;
        let list = String::from_utf8_lossy(&read(&folder.join(BUILT_IN))?).into_owned();
        let built_in = list.lines().filter_map(|line| module_name(Path::new(line))).collect();
        Ok(Tree { packed, built_in })
    }

    /// Adds a module and its dependencies; returns all names that must be loaded with it.
    fn collect(
        &self,
        name: &str,
        modules: &mut BTreeMap<String, Module>,
    ) -> Result<Vec<String>, String> {
        if self.built_in.iter().any(|known| known == name) {
            return Ok(Vec::new());
        }
        if !modules.contains_key(name) {
            let path =
                self.packed.get(name).ok_or_else(|| format!("the kernel has no module {name}"))?;
            let content =
                command::output(Path::new("/"), "xz", &["-dc".as_ref(), path.as_os_str()])?;
            let depends = depends(&content)
                .ok_or_else(|| format!("the module {name} does not say what it depends on"))?;
            let mut before = Vec::new();
            for other in depends {
                before.extend(self.collect(&other, modules)?);
            }
            modules.insert(name.to_owned(), Module { content, before });
        }
        let before = modules[name].before.iter().cloned();
        Ok([name.to_owned()].into_iter().chain(before).collect())
    }
}

/// The text of `modules.dep`: each module, and after a colon all that it needs.
fn dependencies(modules: &BTreeMap<String, Module>) -> String {
    let line = |(name, module): (&String, &Module)| {
        let before: String = module.before.iter().map(|name| format!(" {name}.ko")).collect();
        format!("{name}.ko:{before}\n")
    };
    modules.iter().map(line).collect()
}

/// Finds the packed modules below a folder.
fn find(folder: &Path, found: &mut BTreeMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), found)?;
        } else if let Some(name) = module_name(&entry.path()) {
            found.insert(name, entry.path());
        }
    }
    Ok(())
}

/// The name of the module in a file `NAME.ko` or `NAME.ko.xz`.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".xz").unwrap_or(name);
    name.strip_suffix(".ko").map(plain)
}

/// A module's name as the kernel spells it: with underscores, whatever its file's name.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// The names in a module's own entry `depends=`.
fn depends(content: &[u8]) -> Option<Vec<String>> {
    const KEY: &[u8] = b"\0depends=";
    let start = content.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let value = content[start..].split(|byte| *byte == 0).next()?;
    let names = str::from_utf8(value).ok()?.split(',').filter(|name| !name.is_empty());
    Some(names.map(plain).collect())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_depend_on_how_files_are_called() {
        assert_eq!(module_name(Path::new("a/dm-mod.ko.xz")).as_deref(), Some("dm_mod"));
        assert_eq!(module_name(Path::new("a/dm_mod.ko")).as_deref(), Some("dm_mod"));
        assert_eq!(module_name(Path::new("a/modules.dep")), None);
    }

    #[test]
    fn a_module_says_what_it_depends_on() {
        let found = depends(b"\x7fELF\0license=GPL\0depends=md-mod,xor\0name=raid456\0");
        assert_eq!(found, Some(vec!["md_mod".to_owned(), "xor".to_owned()]));
        assert_eq!(depends(b"\0depends=\0"), Some(Vec::new()));
        assert_eq!(depends(b"\0license=GPL\0"), None);
    }
}
