//! Descriptors on their way to another process of the box's making: many in a message, since each message wakes somebody.
//! The receiving side runs in init, so nothing there may allocate, lock or panic.

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::cell::Cell;
use std::mem::MaybeUninit;

/// How many go with one message at most.
pub(super) const BATCH: usize = 16;

/// Sends descriptors, [`BATCH`] at most, without ever waiting.
pub(crate) fn send_descriptors(to: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    // The space is rounded up: there may be room for one more than the other side takes.
    if fds.len() > BATCH || !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::NOBUFS);
    }
    let word = [std::io::IoSlice::new(b"fd")];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(to, &word, &mut ancillary, flags).map(drop)
}

/// What keeps arriving on one channel, in the order in which it was sent.
pub(crate) struct Supplies<'a> {
    from: BorrowedFd<'a>,
    /// What came with the last message.
    stock: [Cell<Option<OwnedFd>>; BATCH],
    next: Cell<usize>,
}

impl<'a> Supplies<'a> {
    pub(crate) fn new(from: BorrowedFd<'a>) -> Self {
        Self {
            from,
            stock: [const { Cell::new(None) }; BATCH],
            next: Cell::new(0),
        }
    }

    /// The next descriptor; waits for it. The other side is gone, or sent a message without any, if there is none.
    pub(crate) fn take(&self) -> Result<OwnedFd, Errno> {
        if let Some(fd) = self.in_stock() {
            return Ok(fd);
        }
        self.receive();
        self.in_stock().ok_or(Errno::CONNRESET)
    }

    /// The next that came with the same message.
    pub(super) fn in_stock(&self) -> Option<OwnedFd> {
        let fd = self.stock.get(self.next.get())?.take()?;
        self.next.set(self.next.get() + 1);
        Some(fd)
    }

    fn receive(&self) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0u8; 2];
        let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(self.from, &mut slices, &mut ancillary, flags);
        self.next.set(0);
        if received.is_err() {
            return;
        }
        let mut slots = self.stock.iter();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                for (slot, fd) in slots.by_ref().zip(fds) {
                    slot.set(Some(fd));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::{MemfdFlags, fstat, memfd_create};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn descriptors_come_in_the_order_in_which_they_were_sent() {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a channel");
        let files: Vec<OwnedFd> = (0..20)
            .map(|_| memfd_create("supply", MemfdFlags::CLOEXEC).expect("a file"))
            .collect();
        let number = |fd: &OwnedFd| fstat(fd).expect("its number").st_ino;
        let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        for batch in borrowed.chunks(BATCH) {
            send_descriptors(ours.as_fd(), batch).expect("sent");
        }
        let supplies = Supplies::new(theirs.as_fd());
        for file in &files {
            assert_eq!(number(&supplies.take().expect("the next")), number(file));
        }
        assert!(supplies.in_stock().is_none());
        drop(ours);
        assert_eq!(supplies.take().err(), Some(Errno::CONNRESET));
    }

    #[test]
    fn more_than_a_message_holds_is_refused() {
        let (ours, _theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a channel");
        let many = vec![ours.as_fd(); BATCH + 1];
        assert_eq!(
            send_descriptors(ours.as_fd(), &many).err(),
            Some(Errno::NOBUFS)
        );
    }
}
