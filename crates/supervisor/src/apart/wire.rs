//! Frames on a socket between a daemon and a keeper: a length, then JSON; a descriptor may come along.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of a frame: what a box is shown, and room for quotes.
const LONGEST: usize = 32 << 20;
/// How long the rest of a frame that has begun may take. The other side is on this machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// One end of the socket.
#[derive(Debug)]
pub(crate) struct Wire(UnixStream);

/// How to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// As long as it takes, within bounds.
    Patient,
    /// At once or not at all: the socket is of no use after a failure.
    AtOnce,
}

impl Wire {
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(socket))
    }

    /// The same end once more.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> io::Result<rustix::net::UCred> {
        Ok(rustix::net::sockopt::socket_peercred(&self.0)?)
    }

    pub(crate) fn send(
        &self,
        message: &impl Serialize,
        along: Option<BorrowedFd<'_>>,
        manner: Manner,
    ) -> io::Result<()> {
        let mut frame = vec![0; 4];
        serde_json::to_writer(&mut frame, message)?;
        let length = u32::try_from(frame.len() - 4)
            .ok()
            .filter(|length| *length as usize <= LONGEST)
            .ok_or_else(|| io::Error::other("the message is too long"))?;
        frame[..4].copy_from_slice(&length.to_le_bytes());
        let flags = match manner {
            Manner::Patient => SendFlags::NOSIGNAL,
            Manner::AtOnce => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<BorrowedFd<'_>> = along.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let sent = sendmsg(&self.0, &[IoSlice::new(&frame)], &mut control, flags)?;
        match (frame.get(sent..), manner) {
            (Some([]), _) => Ok(()),
            (Some(rest), Manner::Patient) => (&self.0).write_all(rest),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// The next message, with what came along; nothing when the other side is gone.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let mut header = [0; 4];
        let mut filled = 0;
        let mut along = None;
        while filled < header.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let part = header.get_mut(filled..).unwrap_or_default();
            let got = match recvmsg(
                &self.0,
                &mut [IoSliceMut::new(part)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => received.bytes,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::CONNRESET) => 0,
                Err(errno) => return Err(errno.into()),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    along = descriptors.into_iter().next().or(along);
                }
            }
            match (got, filled) {
                (0, 0) => return Ok(None),
                (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => filled += got,
            }
        }
        let length = u32::from_le_bytes(header) as usize;
        if length > LONGEST {
            return Err(io::Error::other("the message is too long"));
        }
        let mut body = vec![0; length];
        (&self.0).read_exact(&mut body)?;
        Ok(Some((serde_json::from_slice(&body)?, along)))
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apart::words::{Order, Word};
    use proptest::prelude::*;

    /// A body that is nearly a message, deep, or nothing at all.
    fn any_body() -> impl Strategy<Value = Vec<u8>> {
        let told = prop::sample::select(vec![
            r#"{"started":{"pid":1,"limits_by":"x"}}"#,
            r#"{"ready":{"nonce":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}}"#,
            r#"{"carve":{"child":"x","wanted":{"tokens":18446744073709551615,"pico_usd":null}}}"#,
            r#"{"kill":{"code":"x"}}"#,
            r#""freeze""#,
        ]);
        let deep =
            prop::sample::select(vec!["[", "{\"keep\":", "{\"here\":{\"task\":", "{\"a\":["]);
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..64),
            (told, any::<prop::sample::Index>(), any::<u8>()).prop_map(|(text, at, byte)| {
                let mut bytes = text.as_bytes().to_vec();
                let at = at.index(bytes.len());
                bytes[at] = byte;
                bytes
            }),
            (deep, 1..20_000usize).prop_map(|(text, times)| text.repeat(times).into_bytes()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_frames_are_messages_or_an_error(
            bodies in prop::collection::vec((any_body(), prop::option::weighted(0.2, any::<u32>())), 1..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            for (body, claimed) in bodies {
                let length = claimed.unwrap_or_else(|| u32::try_from(body.len()).unwrap_or(u32::MAX));
                bytes.extend(length.to_le_bytes());
                bytes.extend(body);
            }
            bytes.truncate(cut.index(bytes.len() + 1).max(bytes.len() / 2));
            for is_keeper in [true, false] {
                let (mut a, b) = UnixStream::pair().expect("a pair");
                let wire = Wire::new(b).expect("a wire");
                std::thread::scope(|scope| {
                    let bytes = &bytes;
                    scope.spawn(move || {
                        let _gone = a.write_all(bytes);
                    });
                    let goes_on = || match is_keeper {
                        true => wire.receive::<Order>().is_ok_and(|it| it.is_some()),
                        false => wire.receive::<Word>().is_ok_and(|it| it.is_some()),
                    };
                    while goes_on() {}
                    drop(wire);
                });
            }
        }
    }

    #[test]
    fn a_message_comes_whole_with_its_descriptor_and_an_end_is_an_end() {
        let (a, b) = UnixStream::pair().expect("a pair");
        let (a, b) = (Wire::new(a).expect("a wire"), Wire::new(b).expect("a wire"));
        let long = "x".repeat(1 << 20);
        let sender = std::thread::spawn(move || {
            let (read, write) = rustix::pipe::pipe().expect("a pipe");
            a.send(&long, Some(write.as_fd()), Manner::Patient)
                .expect("sent");
            a.send(&"short", None, Manner::AtOnce).expect("sent");
            read
        });
        let (first, along) = b.receive::<String>().expect("received").expect("a message");
        assert_eq!(first.len(), 1 << 20);
        let (second, none) = b.receive::<String>().expect("received").expect("a message");
        assert_eq!((second.as_str(), none.is_none()), ("short", true));
        let read = sender.join().expect("the sender");
        rustix::io::write(along.expect("a descriptor"), b"!").expect("it is the pipe's");
        assert_eq!(rustix::io::read(read, &mut [0; 4]), Ok(1));
        assert!(b.receive::<String>().expect("the end").is_none());
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_anything_is_kept() {
        let (mut a, b) = UnixStream::pair().expect("a pair");
        a.write_all(&u32::MAX.to_le_bytes()).expect("sent");
        let refused = Wire::new(b).expect("a wire").receive::<String>();
        assert!(refused.is_err());
    }
}
