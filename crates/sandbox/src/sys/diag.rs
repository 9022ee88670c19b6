//! Asking the kernel which Unix sockets of this network namespace are bound to a file.

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

const HEADER: usize = 16;
const SOCKET: usize = 16;
/// NLM_F_REQUEST | NLM_F_DUMP
const DUMP: u16 = 0x301;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SHOW_FILE: u32 = 2;
const ATTRIBUTE_FILE: u16 = 1;

/// Whether a socket made in this network namespace is bound to the file with this device and inode number.
/// Sockets of other namespaces are not listed, whatever file they are bound to.
pub(crate) fn is_bound_here(device: u64, inode: u64) -> Result<bool, Errno> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(&socket, &request(), SendFlags::empty())?;
    let wanted = (inode as u32, kernel_device(device));
    // A box may have many sockets, but not without end.
    for _ in 0..4096 {
        match next_batch(&socket, wanted)? {
            Batch::Found => return Ok(true),
            Batch::More => {}
            Batch::End => return Ok(false),
        }
    }
    Ok(false)
}

fn request() -> [u8; 40] {
    let mut bytes = [0u8; 40];
    bytes[..4].copy_from_slice(&40u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    bytes[16] = libc::AF_UNIX as u8;
    bytes[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // in any state
    bytes[28..32].copy_from_slice(&SHOW_FILE.to_ne_bytes());
    bytes
}

/// The kernel's own number for a device: 12 bits of major, 20 of minor.
fn kernel_device(device: u64) -> u32 {
    rustix::fs::major(device) << 20 | rustix::fs::minor(device)
}

enum Batch {
    Found,
    More,
    End,
}

fn next_batch(socket: &OwnedFd, wanted: (u32, u32)) -> Result<Batch, Errno> {
    let mut buffer = [0u8; 16 << 10];
    let (length, _) = recv(socket.as_fd(), &mut buffer, RecvFlags::empty())?;
    let mut rest = buffer.get(..length).ok_or(Errno::INVAL)?;
    while rest.len() >= HEADER {
        let size = (word(rest, 0).ok_or(Errno::INVAL)? as usize).clamp(HEADER, rest.len());
        match half(rest, 4) {
            Some(NLMSG_DONE) => return Ok(Batch::End),
            // No such diagnostics in this kernel.
            Some(NLMSG_ERROR) => return Err(Errno::NOTSUP),
            _ => {}
        }
        if rest
            .get(HEADER + SOCKET..size)
            .is_some_and(|attributes| names(attributes, wanted))
        {
            return Ok(Batch::Found);
        }
        rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(if length == 0 { Batch::End } else { Batch::More })
}

/// Whether the attributes say that the socket is bound to the wanted file.
fn names(mut attributes: &[u8], wanted: (u32, u32)) -> bool {
    while let (Some(size), Some(kind)) = (half(attributes, 0), half(attributes, 2)) {
        if kind == ATTRIBUTE_FILE && word(attributes, 4).zip(word(attributes, 8)) == Some(wanted) {
            return true;
        }
        let size = usize::from(size).max(4).next_multiple_of(4);
        attributes = attributes.get(size..).unwrap_or_default();
    }
    false
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_bound_socket_is_found_by_its_file_and_a_file_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let bound = std::fs::metadata(&path).unwrap();
        assert!(is_bound_here(bound.dev(), bound.ino()).unwrap());
        std::fs::write(directory.path().join("file"), "").unwrap();
        let plain = std::fs::metadata(directory.path().join("file")).unwrap();
        assert!(!is_bound_here(plain.dev(), plain.ino()).unwrap());
    }
}
