//! The memory that the process may have, and the part of it for clients.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// The memory that clients may have at least where the stack file does not say it.
const LEAST: u64 = 256 << 20;

/// Bytes that buffers of NBD clients' requests may take together where the stack file does not say
/// it: a quarter of the machine's memory, of the least limit of the process's control groups, or of
/// the limits `RLIMIT_AS` and `RLIMIT_DATA` (getrlimit(2)), whichever is least.
pub fn for_clients() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let group = fs::read_to_string("/proc/self/cgroup").ok();
    let limits = group.and_then(|group| group_limit(&group, Path::new("/sys/fs/cgroup")));
    let own = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    let all = machine.and_then(|text| machine_bytes(&text)).into_iter().chain(limits);
    let all = all.chain(own.into_iter().flatten()).min();
    (all.unwrap_or(0) / 4).max(LEAST)
}

/// `MemTotal` of proc(5)'s `meminfo`.
fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The least `memory.max` of the process's group and those above it (cgroups(7), version 2); `None`
/// if there is no limit.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |group: &Path| {
        let text = fs::read_to_string(root.join(group).join("memory.max")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Path::new(path).ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory() {
        assert_eq!(machine_bytes("MemFree: 1 kB\nMemTotal:       16 kB\n"), Some(16 << 10));
        assert_eq!(machine_bytes("MemTotal: 16 MB\n"), None);
        assert!(for_clients() >= LEAST);
    }

    #[test]
    fn the_least_limit_of_the_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let limit = |group: &str| group_limit(group, root.path());
        assert_eq!(limit("0::/a/b\n"), None);
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit("0::/a/b\n"), None);
        fs::write(root.path().join("a/memory.max"), "4096\n").unwrap();
        assert_eq!(limit("1:cpu:/\n0::/a/b\n"), Some(4096));
        fs::write(inner.join("memory.max"), "8192\n").unwrap();
        assert_eq!(limit("0::/a/b\n"), Some(4096));
        assert_eq!(limit("0::/c\n"), None);
        assert_eq!(limit("1:memory:/a\n"), None);
    }
}
