//! `fusermount3` mounts for users without the privilege: it opens `/dev/fuse`, mounts, and sends
//! the descriptor over a socket whose number an environment variable gives.

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
/// The environment variable with the number of the socket.
const SOCKET: &str = "_FUSE_COMMFD";

/// Mounts `point` at `path` by the helper. Returns the descriptor of the mount.
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

/// Unmounts `path` by the helper; `lazily`: even if it is in use.
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
    // A signal to our process group (Ctrl-C, for example) must not end the helper half-way.
    command.process_group(0);
    // We parse the helper's message, so it must be in the language that we expect.
    let output = command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped()).output();
    output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => MountError::NoHelper { path: path.to_owned() },
        _ => refused(path, format!("{PROGRAM} does not start: {error}")),
    })
}

/// The helper's own message on its failure.
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
