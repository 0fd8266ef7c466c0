//! The limit of file descriptors of the process, and the share of each part.
//!
//! The soft limit is there for programs that use select(2), which ends at 1024; this one does not.
//! So it is raised to the hard limit at the start. A part stays for others than NBD clients: the
//! control socket, and devices that are opened while the stack is served.

use drystone_core::pipe::PIPES_MAX;
use drystone_exports::nbd::server::HANDSHAKES_MAX;
use drystone_stack::StackSpec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that no NBD client gets: 64 clients of the control socket, what is opened meanwhile,
/// and both ends of the pipes for long reads.
const RESERVE: u64 = 128 + 2 * PIPES_MAX as u64;
/// Descriptors of a data thread: its ring, and what wakes it.
const PER_THREAD: u64 = 8;
/// Descriptors of a device: a file is opened once buffered, and once for direct I/O, for each
/// thread at most.
const PER_DEVICE: u64 = 4;

/// Raises the soft limit to the hard one. Returns the limit that holds then.
pub fn raise() -> u64 {
    let before = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: before.maximum, maximum: before.maximum };
    let limit = if setrlimit(Resource::Nofile, wanted).is_ok() { wanted } else { before };
    limit.current.unwrap_or(u64::MAX)
}

/// The lowest number of a descriptor that no NBD client gets, where so many may be open.
pub fn max_of_clients(limit: u64) -> i32 {
    let reserve = RESERVE.min(limit / 2);
    i32::try_from(limit - reserve).unwrap_or(i32::MAX)
}

/// A sentence on a stack whose `max_connections` do not fit the limit; `None` if they do.
pub fn shortage(stack: &StackSpec, threads: u32, limit: u64) -> Option<String> {
    let listeners = stack.listeners();
    let negotiating = HANDSHAKES_MAX as u64 * u64::from(threads);
    let of = |export: usize| u64::from(stack.exports[export].max_connections) + negotiating;
    let clients: u64 = listeners.iter().map(|(_, sharers)| of(sharers[0])).sum();
    let own = u64::from(threads) * PER_THREAD + stack.devices.len() as u64 * PER_DEVICE;
    let needed = clients + own + RESERVE;
    (needed > limit && !listeners.is_empty()).then(|| {
        format!(
            "max_connections allows clients that need {needed} file descriptors together, but the \
             process may have only {limit}: clients beyond that are disconnected at once; lower \
             max_connections, or raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_stack::Source;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let limit = raise();
        let now = getrlimit(Resource::Nofile);
        assert_eq!((now.current, now.current.unwrap_or(u64::MAX)), (now.maximum, limit));
    }

    #[test]
    fn clients_leave_some_for_others() {
        assert_eq!(max_of_clients(1024), 832);
        assert_eq!(max_of_clients(100), 50);
        assert_eq!(max_of_clients(u64::MAX), i32::MAX);
    }

    #[test]
    fn a_stack_with_too_many_connections_is_told_of() {
        let text = |most: u32| {
            format!(
                "[device.n]\ntype = \"null\"\n[export.e]\ndevice = \"n\"\n\
                 nbd = [\"unix:/a\", \"unix:/b\"]\n\
                 max_connections = {most}\n"
            )
        };
        let stack = |most| {
            let source = Source { name: "s".to_owned(), text: text(most) };
            drystone_stack::parse("s", source, "/".as_ref()).unwrap()
        };
        // 2 listeners with 64 in the handshake, 8 for the thread, 4 for the device, 192 for others.
        assert_eq!(shortage(&stack(100), 1, 532), None);
        let said = shortage(&stack(101), 1, 532).unwrap();
        assert!(
            said.contains("need 534 file descriptors") && said.contains("may have only 532"),
            "{said}"
        );
    }
}
