//! The duty of a process that writes for its own machine: pages may be written back through it
//! exactly when memory is short, so it must not wait for memory that only it can make free.

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// Makes this process one whose memory is found without writing pages back (prctl(2),
/// `PR_SET_IO_FLUSHER`), and stays in memory as soon as it was there, as far as it may be. Before
/// threads are made, which have it from the one that makes them.
///
/// # Errors When the kernel does not let it be an IO flusher: it takes `CAP_SYS_RESOURCE`, which
/// root has but in many containers. All else is done. Without it the page cache of a mount by an
/// ordinary user is bounded by the kernel (`max_ratio` of its bdi); a user that mounts a file
/// system on a loop device must be told.
pub fn become_one() -> io::Result<()> {
    let flusher = configure_io_flusher_behavior(true);
    // With a limit that is far it would be locked now, and later memory be refused.
    let is_unlimited = getrlimit(Resource::Memlock).current.is_none();
    let has = capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    let may = has && is_initial_user_namespace();
    if may || is_unlimited {
        // On fault: volumes of RAM are not there before they are used.
        let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
        let _ = mlockall(flags);
    }
    Ok(flusher?)
}

/// True if capabilities are those that the kernel asks for: in a user namespace of its own a
/// process has all of them, which count for nothing where memory is locked. The first one's map is
/// the identity of all ids (user_namespaces(7)).
fn is_initial_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}
