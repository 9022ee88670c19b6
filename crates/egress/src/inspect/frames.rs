//! Taking a host's secrets out of what it says on a WebSocket: the frames are followed, and what they carry is looked at.

use std::sync::Arc;

use super::redact::Needles;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const CONTROL: u8 = 0x08;
const MASKED: u8 = 0x80;

/// Frames of a server's, on their way to the agent.
pub(super) struct Frames {
    needles: Arc<Needles>,
    /// What was not passed on yet.
    out: Vec<u8>,
    /// Where in it the bytes of a message are that must be seen again.
    message: Vec<usize>,
    state: State,
}

enum State {
    Head(Vec<u8>),
    Payload {
        left: u64,
        is_last: bool,
        /// Where a control frame began: it stands by itself, between the parts of a message.
        control: Option<Vec<usize>>,
    },
}

/// Something that can't be looked into, or is none of a server's frames.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unclear;

impl Frames {
    pub(super) fn new(needles: Arc<Needles>) -> Self {
        Self {
            needles,
            out: Vec::new(),
            message: Vec::new(),
            state: State::Head(Vec::new()),
        }
    }

    /// Takes some bytes; gives back what may go on.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Unclear> {
        for byte in bytes {
            let at = self.out.len();
            self.out.push(*byte);
            match &mut self.state {
                State::Head(head) => {
                    head.push(*byte);
                    if let Some(next) = read_head(head)? {
                        self.enter(next);
                    }
                }
                State::Payload { left, control, .. } => {
                    *left = left.saturating_sub(1);
                    let done = *left == 0;
                    control.as_mut().unwrap_or(&mut self.message).push(at);
                    if done {
                        self.end_frame();
                    }
                }
            }
        }
        Ok(self.release())
    }

    fn enter(&mut self, next: State) {
        let is_empty = matches!(next, State::Payload { left: 0, .. });
        self.state = next;
        if is_empty {
            self.end_frame();
        }
    }

    fn end_frame(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Head(Vec::new()));
        let State::Payload {
            is_last, control, ..
        } = state
        else {
            return;
        };
        match control {
            Some(places) => {
                mask(&self.needles, &mut self.out, &places, true);
            }
            // A message that is whole goes on whole.
            None if is_last => {
                let places = std::mem::take(&mut self.message);
                mask(&self.needles, &mut self.out, &places, true);
            }
            None => {}
        }
    }

    /// What may go on: all up to the first byte that must be seen again.
    fn release(&mut self) -> Vec<u8> {
        let sure = mask(&self.needles, &mut self.out, &self.message, false);
        self.message.drain(..sure.min(self.message.len()));
        let mut keep = self.message.first().copied().unwrap_or(self.out.len());
        if let State::Payload {
            control: Some(places),
            ..
        } = &self.state
        {
            keep = places.first().copied().unwrap_or(keep).min(keep);
        }
        let rest = self.out.split_off(keep.min(self.out.len()));
        let shift = |at: &mut usize| *at = at.saturating_sub(keep);
        self.message.iter_mut().for_each(shift);
        if let State::Payload {
            control: Some(places),
            ..
        } = &mut self.state
        {
            places.iter_mut().for_each(shift);
        }
        std::mem::replace(&mut self.out, rest)
    }
}

/// Masks what is found in the bytes at these places; gives back how many of them need not be seen again.
fn mask(needles: &Needles, out: &mut [u8], places: &[usize], is_end: bool) -> usize {
    let byte = |at: &usize| out.get(*at).copied().unwrap_or_default();
    let mut bytes: Vec<u8> = places.iter().map(byte).collect();
    let sure = needles.mask(&mut bytes, is_end);
    for (at, byte) in places.iter().zip(bytes) {
        if let Some(place) = out.get_mut(*at) {
            *place = byte;
        }
    }
    sure
}

/// What a head says, once it is whole.
fn read_head(head: &[u8]) -> Result<Option<State>, Unclear> {
    let [flags, size, length @ ..] = head else {
        return Ok(None);
    };
    // Only an extension uses these, and none was agreed on; and a server does not mask.
    if flags & RESERVED != 0 || size & MASKED != 0 {
        return Err(Unclear);
    }
    let left = match (size, length) {
        (126, [a, b]) => u64::from(u16::from_be_bytes([*a, *b])),
        (127, [a, b, c, d, e, f, g, h]) => u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
        (126 | 127, _) => return Ok(None),
        (small, _) => u64::from(*small),
    };
    let is_control = flags & CONTROL != 0;
    if is_control && left > 125 {
        return Err(Unclear);
    }
    Ok(Some(State::Payload {
        left,
        is_last: flags & FIN != 0,
        control: is_control.then(Vec::new),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::HeaderSecret;

    const VALUE: &str = "sk-secret-value";

    fn frames() -> Frames {
        let secret = HeaderSecret::of_test("key", "a.test", VALUE);
        Frames::new(Arc::new(Needles::of([secret].iter()).unwrap()))
    }

    fn frame(flags: u8, text: &str) -> Vec<u8> {
        let mut frame = vec![flags];
        match text.len() {
            small @ 0..126 => frame.push(small as u8),
            large => {
                frame.push(126);
                frame.extend((large as u16).to_be_bytes());
            }
        }
        frame.extend(text.as_bytes());
        frame
    }

    #[test]
    fn a_secret_is_masked_across_frames_and_reads() {
        let mask = "*".repeat(VALUE.len());
        let long = format!("{}{VALUE}", "x".repeat(300));
        let stream = [
            frame(0x81, &format!("hi {VALUE}!")),
            frame(0x01, "a sk-sec"),
            frame(0x89, VALUE),
            frame(0x00, "ret-va"),
            frame(0x80, "lue b"),
            frame(0x81, "sk-secret-valu"),
            frame(0x80, ""),
            frame(0x82, &long),
        ]
        .concat();
        let expect = [
            frame(0x81, &format!("hi {mask}!")),
            frame(0x01, "a ******"),
            frame(0x89, &mask),
            frame(0x00, "******"),
            frame(0x80, "*** b"),
            frame(0x81, "sk-secret-valu"),
            frame(0x80, ""),
            frame(0x82, &long.replace(VALUE, &mask)),
        ]
        .concat();
        for size in 1..stream.len() {
            let mut frames = frames();
            let out: Vec<u8> = stream
                .chunks(size)
                .flat_map(|chunk| frames.push(chunk).unwrap())
                .collect();
            assert_eq!(out, expect, "{size}");
        }
    }

    #[test]
    fn a_message_is_not_kept_waiting_and_what_is_unclear_ends_it() {
        let mut frames = frames();
        let whole = frame(0x81, "sk-s");
        assert_eq!(frames.push(&whole).unwrap(), whole);
        for odd in [
            frame(0xc1, "deflated"),
            vec![0x81, 0x85],
            vec![0x89, 126, 1, 1],
        ] {
            assert_eq!(self::frames().push(&odd), Err(Unclear));
        }
    }
}
