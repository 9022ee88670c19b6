//! What crosses the channel between a guest and its bridge: frames with a length, a kind and a bounded body.
//!
//! The bridge takes no guest's word for anything: a frame that is too long, of no known kind, or of a kind that only the
//! bridge sends is an error, and an error is the guest's end. Nothing is set aside for a frame before its length was checked.

use std::io::{self, Read, Write};

/// Bytes of the length, the kind and three zeros.
const HEADER: usize = 8;
/// The most of one read or write of a file.
pub(crate) const LARGEST_TRANSFER: usize = 128 << 10;
/// The most of a piece of input or output.
pub(crate) const PIECE: usize = 32 << 10;
/// How many bytes of each stream may be on their way.
pub(crate) const WINDOW: usize = 256 << 10;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $from:ident, $longest:expr;)*) => {
        /// What a frame is about.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Kind { $($(#[$doc])* $name = $number,)* }

        impl Kind {
            #[cfg(test)]
            pub(crate) const ALL: &[Kind] = &[$(Kind::$name),*];

            fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Kind::$name),)*
                    _ => None,
                }
            }

            /// Who may send it, and how long it may be.
            fn terms(self) -> (Sender, usize) {
                match self { $(Kind::$name => (Sender::$from, $longest),)* }
            }
        }
    };
}

/// Which side sends a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    Bridge,
    Guest,
    /// Of a kind: both send it.
    Either,
}

const LONGEST_ORDER: usize = 8 << 20;
const FILE_HEADERS: usize = 4096;
const SHORT: usize = 16;
/// Where a flow leads, and its slot.
const ADDRESS: usize = 23;
/// The most of a flow that is sent at once: input, output and files go between.
pub(crate) const FLOW_PIECE: usize = 16 << 10;
/// The longest question about a name, and the longest answer.
pub(crate) const LONGEST_LOOKUP: usize = 4096;

kinds! {
    /// What to run.
    Order = 1, Bridge, LONGEST_ORDER;
    /// Input for the program; nothing is its end.
    Input = 2, Bridge, PIECE;
    /// A stream's bytes have been taken: the stream (1 or 2), how many.
    Taken = 3, Bridge, SHORT;
    /// Nobody takes a stream's bytes any more: the stream.
    Closed = 4, Bridge, SHORT;
    /// A signal for the program.
    Signal = 5, Bridge, SHORT;
    /// The size of its terminal: rows, columns.
    Window = 6, Bridge, SHORT;
    /// The answer to a request for files.
    Answer = 7, Bridge, LARGEST_TRANSFER + FILE_HEADERS;
    /// The bridge holds too many files: those that nobody uses are to be forgotten.
    Forget = 8, Bridge, SHORT;
    /// What time it is: seconds since 1970, and nanoseconds.
    Clock = 16, Bridge, SHORT;
    /// The guest is up.
    Up = 32, Guest, SHORT;
    /// Output of the program.
    Output = 33, Guest, PIECE;
    /// Its error output.
    Errors = 34, Guest, PIECE;
    /// Input has been taken: how many bytes.
    Consumed = 35, Guest, SHORT;
    /// A request for files, as the guest's kernel makes it.
    Request = 36, Guest, LARGEST_TRANSFER + FILE_HEADERS;
    /// The program ended: its wait status, and how many processes the guest's kernel killed for want of memory.
    Ended = 37, Guest, SHORT;
    /// It could not be started: the error's number.
    NotStarted = 38, Guest, SHORT;
    /// The guest can't go on: why.
    Failed = 39, Guest, 1024;
    /// A packet that nobody carries was refused in the guest: where to.
    Stray = 40, Guest, ADDRESS;
    /// Something was refused to the program: what (see [`crate::told`]), and how often so far.
    Refused = 41, Guest, SHORT;
    /// A flow begins (see [`super::flows`]): its slot, where to.
    Open = 64, Either, ADDRESS;
    /// Some of a flow: its slot, the bytes.
    Flow = 65, Either, 4 + FLOW_PIECE;
    /// Some of a flow has been taken: its slot, how many bytes.
    Room = 66, Either, SHORT;
    /// A flow ends: its slot, how.
    Over = 67, Either, SHORT;
    /// A question about a name, or its answer: as they are on the network.
    Lookup = 68, Either, LONGEST_LOOKUP;
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) body: Vec<u8>,
}

/// What is wrong with what came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("a frame of no known kind ({0})")]
    Kind(u8),
    #[error("a frame of kind {0:?}, which the other side never sends")]
    Direction(Kind),
    #[error("a frame of kind {0:?} with {1} bytes")]
    Length(Kind, usize),
    #[error("bytes that should be zero are not")]
    Padding,
    #[error("the channel ended")]
    Ended,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Takes the next frame that `sender` sent.
pub(crate) fn receive(channel: &mut impl Read, sender: Sender) -> Result<Frame, WireError> {
    let mut header = [0; HEADER];
    fill(channel, &mut header)?;
    let [a, b, c, d, number, zeros @ ..] = header;
    if zeros != [0; 3] {
        return Err(WireError::Padding);
    }
    let kind = Kind::from_number(number).ok_or(WireError::Kind(number))?;
    let (from, longest) = kind.terms();
    if from != sender && from != Sender::Either {
        return Err(WireError::Direction(kind));
    }
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > longest {
        return Err(WireError::Length(kind, length));
    }
    let mut body = vec![0; length];
    fill(channel, &mut body)?;
    Ok(Frame { kind, body })
}

fn fill(channel: &mut impl Read, bytes: &mut [u8]) -> Result<(), WireError> {
    match channel.read_exact(bytes) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(WireError::Ended),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(WireError::Ended),
        Err(error) => Err(error.into()),
    }
}

/// Sends a frame in one piece.
pub(crate) fn send(channel: &mut impl Write, kind: Kind, body: &[u8]) -> io::Result<()> {
    let (_, longest) = kind.terms();
    let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    if body.len() > longest {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut frame = Vec::with_capacity(HEADER + body.len());
    frame.extend(length.to_le_bytes());
    frame.extend([kind as u8, 0, 0, 0]);
    frame.extend(body);
    channel.write_all(&frame)
}

impl Frame {
    /// The body as numbers; none if it is not exactly so long.
    pub(crate) fn numbers<const N: usize>(&self) -> Option<[u32; N]> {
        let mut numbers = [0; N];
        if self.body.len() != 4 * N {
            return None;
        }
        for (number, bytes) in numbers.iter_mut().zip(self.body.chunks_exact(4)) {
            *number = u32::from_le_bytes(bytes.try_into().ok()?);
        }
        Some(numbers)
    }
}

/// A body of numbers.
pub(crate) fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_way() {
        for kind in Kind::ALL {
            let mut bytes = Vec::new();
            send(&mut bytes, *kind, b"12345678").unwrap();
            let (sender, _) = kind.terms();
            let frame = receive(&mut bytes.as_slice(), sender).unwrap();
            assert_eq!(
                (frame.kind, frame.body.as_slice()),
                (*kind, &b"12345678"[..])
            );
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_anything_is_set_aside_for_it() {
        for kind in Kind::ALL {
            let (sender, longest) = kind.terms();
            let length = u32::try_from(longest + 1).unwrap().to_le_bytes();
            let header = [&length[..], &[*kind as u8, 0, 0, 0]].concat();
            let got = receive(&mut header.as_slice(), sender);
            assert!(matches!(got, Err(WireError::Length(..))), "{got:?}");
            assert!(send(&mut Vec::new(), *kind, &vec![0; longest + 1]).is_err());
        }
    }

    #[test]
    fn what_only_the_bridge_sends_is_not_taken_from_a_guest() {
        for kind in Kind::ALL {
            let (sender, _) = kind.terms();
            let mut bytes = Vec::new();
            send(&mut bytes, *kind, &[]).unwrap();
            let other = match sender {
                Sender::Bridge => Sender::Guest,
                Sender::Guest => Sender::Bridge,
                Sender::Either => continue,
            };
            let got = receive(&mut bytes.as_slice(), other);
            assert!(matches!(got, Err(WireError::Direction(_))), "{got:?}");
        }
    }

    #[test]
    fn garbage_is_an_error_whatever_it_is() {
        // A small generator of our own: the same garbage every time.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20_000 {
            let mut bytes = [0; 64];
            for byte in &mut bytes {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
            let mut rest = &bytes[..];
            while let Ok(frame) = receive(&mut rest, Sender::Guest) {
                assert!(frame.body.len() <= frame.kind.terms().1);
            }
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { cases: 256, failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_frames_from_a_guest_are_frames_or_its_end(
            parts in proptest::collection::vec(
                (0..80u8, proptest::option::weighted(0.2, proptest::num::u32::ANY), proptest::collection::vec(proptest::num::u8::ANY, 0..40)),
                1..12,
            ),
        ) {
            let flows = crate::microvm::flows::Flows::new(crate::microvm::flows::Side::Bridge).unwrap();
            let mut bytes = Vec::new();
            for (kind, claimed, body) in parts {
                let length = claimed.unwrap_or(body.len() as u32);
                bytes.extend(length.to_le_bytes());
                bytes.extend([kind, 0, 0, 0]);
                bytes.extend(body);
            }
            let mut rest = bytes.as_slice();
            while let Ok(frame) = receive(&mut rest, Sender::Guest) {
                proptest::prop_assert!(frame.body.len() <= bytes.len().min(frame.kind.terms().1));
                if matches!(frame.kind, Kind::Open | Kind::Flow | Kind::Room | Kind::Over) && flows.hear(&frame).is_err() {
                    break;
                }
            }
        }
    }
}
