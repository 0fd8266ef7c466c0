//! Detects that a process is being killed, by its signals in `/proc/TID/status`
//! (proc_pid_status(5)).

use rustix::process::Signal;
use std::fs;

/// Signals whose default action ends no process (signal(7)).
const HARMLESS: [Signal; 8] = [
    Signal::CHILD,
    Signal::CONT,
    Signal::STOP,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
    Signal::URG,
    Signal::WINCH,
];

/// True if the thread with this id has a pending signal that ends it as soon as it runs: SIGKILL,
/// which also stands for other ends of its process, or a signal that it neither handles nor ignores
/// nor blocks. For a traced thread only SIGKILL counts, since its tracer may take the others away.
///
/// Also true where this is unknown: for thread 0, which stands for threads that this PID namespace
/// does not show, and where `/proc` does not show the thread. Reads `/proc`: not for a data thread.
pub fn is_killed(task: u32) -> bool {
    if task == 0 || !shows_own_namespace() {
        return true;
    }
    fs::read(format!("/proc/{task}/status")).map_or(true, |status| says_killed(&status))
}

/// True if `/proc` has the processes of the PID namespace that this process is in.
fn shows_own_namespace() -> bool {
    let own = std::process::id().to_string();
    fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == own.as_str())
}

fn says_killed(status: &[u8]) -> bool {
    let signals = |name| field(status, name).and_then(|text| u64::from_str_radix(text, 16).ok());
    let read = || {
        let pending = signals("SigPnd")? | signals("ShdPnd")?;
        let lives = signals("SigBlk")? | signals("SigIgn")? | signals("SigCgt")?;
        let is_traced = field(status, "TracerPid").is_some_and(|tracer| tracer != "0");
        let harmless: u64 = HARMLESS.into_iter().map(bit).sum();
        let fatal = if is_traced { bit(Signal::KILL) } else { !(lives | harmless) };
        Some(pending & fatal != 0)
    };
    read().unwrap_or(true)
}

/// The value of a line `name: value`.
fn field<'a>(status: &'a [u8], name: &str) -> Option<&'a str> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
    std::str::from_utf8(value).ok().map(str::trim)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's text about a thread with these sets of signals.
    fn status(tracer: u32, sets: [&[Signal]; 5]) -> Vec<u8> {
        let names = ["SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"];
        let mut text = format!("Name:\ta\nTracerPid:\t{tracer}\nSigQ:\t0/128\n").into_bytes();
        // A process may have any name.
        text[6] = 0xff;
        for (name, set) in names.into_iter().zip(sets) {
            let set: u64 = set.iter().copied().map(bit).sum();
            text.extend_from_slice(format!("{name}:\t{set:016x}\n").as_bytes());
        }
        text
    }

    #[test]
    fn only_what_ends_a_process_kills_it() {
        use Signal as S;
        let cases: [(u32, [&[Signal]; 5], bool); 13] = [
            (0, [&[], &[], &[], &[], &[]], false),
            (0, [&[S::KILL], &[], &[], &[], &[]], true),
            (0, [&[], &[S::KILL], &[], &[], &[]], true),
            (7, [&[S::ALARM, S::KILL], &[], &[], &[], &[S::ALARM]], true),
            (0, [&[S::ALARM], &[S::CHILD], &[], &[], &[S::ALARM, S::CHILD]], false),
            (0, [&[], &[S::ALARM], &[], &[], &[S::USR1]], true),
            (0, [&[], &[S::INT], &[S::INT], &[], &[]], false),
            (0, [&[], &[S::TERM], &[], &[S::TERM], &[]], false),
            (0, [&[], &[S::QUIT], &[], &[], &[]], true),
            (7, [&[], &[S::QUIT], &[], &[], &[]], false),
            (0, [&[S::CONT], &[S::WINCH, S::URG], &[], &[], &[]], false),
            (0, [&[S::STOP], &[S::TSTP, S::TTIN, S::TTOU], &[], &[], &[]], false),
            (0, [&[], &[S::ALARM, S::TERM], &[], &[], &[S::ALARM]], true),
        ];
        for (at, (tracer, sets, killed)) in cases.into_iter().enumerate() {
            assert_eq!(says_killed(&status(tracer, sets)), killed, "case {at}");
        }
    }

    #[test]
    fn what_is_not_known_counts_as_killed() {
        for text in [
            &b""[..],
            b"Name:\ta\n",
            b"SigPnd:\t0\nShdPnd:\tx\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n",
        ] {
            assert!(says_killed(text));
        }
        assert!(is_killed(0) && is_killed(u32::MAX), "there is no such thread");
        assert!(!is_killed(std::process::id()), "as /proc of this machine says");
    }
}
