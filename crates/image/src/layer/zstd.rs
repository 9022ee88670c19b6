//! Zstandard streams of more than one frame, as builders that work in parallel write them.

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::io::{self, Chain, Cursor, Read};

/// The magic number of a skippable frame, less its last four bits.
const SKIPPABLE: u32 = 0x184d_2a50;

type Begun<R> = Chain<Cursor<[u8; 4]>, R>;

pub(super) struct Frames<R: Read> {
    state: State<R>,
}

enum State<R: Read> {
    Between(R),
    // Large; and its decoder, which holds the window, is used for every frame.
    Within(Box<StreamingDecoder<Begun<R>, FrameDecoder>>),
    Ended,
}

impl<R: Read> Frames<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            state: State::Between(input),
        }
    }

    /// The next frame that is not to be skipped; none at the end of the stream.
    fn begin(mut input: R) -> io::Result<State<R>> {
        loop {
            let mut magic = [0; 4];
            if !fill(&mut input, &mut magic)? {
                return Ok(State::Ended);
            }
            if u32::from_le_bytes(magic) & !0xf != SKIPPABLE {
                let begun = Cursor::new(magic).chain(input);
                let decoder = StreamingDecoder::new(begun).map_err(io::Error::other)?;
                return Ok(State::Within(Box::new(decoder)));
            }
            let mut length = [0; 4];
            input.read_exact(&mut length)?;
            let length = u64::from(u32::from_le_bytes(length));
            let skipped = io::copy(&mut (&mut input).take(length), &mut io::sink())?;
            if skipped != length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.state = match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => return Ok(0),
                State::Between(input) => Self::begin(input)?,
                State::Within(mut decoder) => match decoder.read(buffer)? {
                    0 if !buffer.is_empty() => State::Between(decoder.into_inner().into_inner().1),
                    read => {
                        self.state = State::Within(decoder);
                        return Ok(read);
                    }
                },
            };
        }
    }
}

/// Fills the buffer; says no at the end of the stream, and fails in the middle.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
