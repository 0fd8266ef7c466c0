//! The back end's side of a socket: messages in, replies out, with their descriptors.

#![forbid(unsafe_code)]

use drystone_exports::vhost::proto::DESCRIPTORS_MAX;
use drystone_exports::vhost::{Malformed, Reply};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Waits for at most `wanted` bytes, and what comes with them, unless the kernel kept descriptors
/// back.
pub fn receive(socket: &UnixStream, wanted: usize) -> Result<(Vec<u8>, Vec<OwnedFd>), Malformed> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; wanted];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
    let received = received.expect("a read");
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Malformed::LostDescriptors);
    }
    bytes.truncate(received.bytes);
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            descriptors.extend(files);
        }
    }
    Ok((bytes, descriptors))
}

/// Sends a reply.
pub fn send(socket: &UnixStream, reply: Reply<OwnedFd>) {
    let (bytes, descriptor) = reply.into_parts();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    let parts = [IoSlice::new(&bytes)];
    let sent = sendmsg(socket, &parts, &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(bytes.len()));
}
