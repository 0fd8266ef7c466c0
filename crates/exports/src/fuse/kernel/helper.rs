//! `fusermount3`, which mounts for users without the right: it opens `/dev/fuse`, mounts, and sends
//! the descriptor over a socket whose number it is told.

use super::{MountError, MountPoint, device};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use std::ffi::OsString;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = "fusermount3";
/// The variable that tells it the number of the socket.
const SOCKET: &str = "_FUSE_COMMFD";

/// Has `point` mounted at `path`; the descriptor of the mount.
pub(super) fn mount(path: &Path, point: &MountPoint, max_read: u32) -> Result<OwnedFd, MountError> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(|error| refused(path, error.to_string()))?;
    let mut command = Command::new(PROGRAM);
    command.arg("-o").arg(options(point, max_read)).arg("--").arg(path);
    // Its socket is its standard input, so that no other descriptor is let through to it.
    command.env(SOCKET, "0").stdin(Stdio::from(theirs));
    let output = run(command, path)?;
    if !output.status.success() {
        return Err(refused(path, said(&output)));
    }
    let device = receive(&ours).map_err(|error| refused(path, error.to_string()))?;
    device::set_nonblocking(&device)?;
    Ok(device)
}

/// Has what is mounted at `path` unmounted; `lazily`: though it be in use.
pub(super) fn unmount(path: &Path, lazily: bool) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path).stdin(Stdio::null());
    let output = run(command, path)?;
    let path = path.to_owned();
    match said(&output) {
        _ if output.status.success() => Ok(()),
        why if why.contains("busy") => Err(MountError::InUse { path }),
        why => Err(MountError::NotUnmounted { path, why }),
    }
}

fn refused(path: &Path, why: String) -> MountError {
    MountError::Refused { path: path.to_owned(), why }
}

fn options(point: &MountPoint, max_read: u32) -> OsString {
    let source = point.source.replace('\\', "\\\\").replace(',', "\\,");
    let others = if point.allow_other { ",allow_other,default_permissions" } else { "" };
    let rest = format!("subtype=drystone,nosuid,nodev,noatime,max_read={max_read}{others}");
    format!("fsname={source},{rest}").into()
}

fn run(mut command: Command, path: &Path) -> Result<Output, MountError> {
    // A signal for us (a Ctrl-C goes to the whole group) must not end it half-way.
    command.process_group(0);
    // Its words are for us: one sentence, in the language that we look for words in.
    let output = command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped()).output();
    output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => MountError::NoHelper { path: path.to_owned() },
        _ => refused(path, format!("{PROGRAM} does not start: {error}")),
    })
}

/// Its own words on its failure.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.map_or_else(|| format!("{PROGRAM}: {}", output.status), str::to_owned)
}

/// The descriptor that came over the socket.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    loop {
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            result => {
                result?;
                break;
            }
        }
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(device) = descriptors.next()
        {
            return Ok(device);
        }
    }
    Err(io::Error::other(format!("{PROGRAM} sent no descriptor")))
}
