//! The part of the DNS wire format that Belljar speaks: one question, a few addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest name on the wire, with its length bytes.
const LONGEST: usize = 255;
const HEADER: usize = 12;
/// More compression pointers than this in one name are a loop, or meant as one.
const MOST_JUMPS: usize = 16;

/// What a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordType(pub(crate) u16);

impl RecordType {
    pub(crate) const A: Self = Self(1);
    pub(crate) const CNAME: Self = Self(5);
    pub(crate) const AAAA: Self = Self(28);
    pub(crate) const SVCB: Self = Self(64);
    pub(crate) const HTTPS: Self = Self(65);
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseCode {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// A query with its one question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) id: u16,
    recursion_desired: bool,
    /// The labels joined by dots, whatever bytes they hold.
    pub(crate) name: Vec<u8>,
    /// Whether a label held a dot or another byte that would read differently once joined.
    pub(crate) ambiguous: bool,
    pub(crate) kind: RecordType,
    pub(crate) class: u16,
    /// The question as it came, for the answer to repeat.
    question: Vec<u8>,
}

/// Why bytes are no query that can be answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadQuery {
    /// Not even worth an answer: no header, or an answer itself.
    Ignore,
    /// To be answered with this code.
    Answer { id: u16, code: ResponseCode },
}

impl Query {
    /// Reads a query. Everything after the question is left unread.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadQuery> {
        let header = bytes.first_chunk::<HEADER>().ok_or(BadQuery::Ignore)?;
        let id = u16::from_be_bytes([header[0], header[1]]);
        if header[2] & 0x80 != 0 {
            return Err(BadQuery::Ignore);
        }
        let bad = |code| BadQuery::Answer { id, code };
        if (header[2] >> 3) & 0xf != 0 {
            return Err(bad(ResponseCode::NotImplemented));
        }
        if u16::from_be_bytes([header[4], header[5]]) != 1 {
            return Err(bad(ResponseCode::FormatError));
        }
        let malformed = || bad(ResponseCode::FormatError);
        let (name, ambiguous, end) = question_name(bytes).ok_or_else(malformed)?;
        let rest = bytes.get(end..).ok_or_else(malformed)?;
        let fixed = rest.first_chunk::<4>().ok_or_else(malformed)?;
        let question = bytes
            .get(HEADER..end.saturating_add(4))
            .ok_or_else(malformed)?;
        Ok(Self {
            id,
            recursion_desired: header[2] & 1 != 0,
            name,
            ambiguous,
            kind: RecordType(u16::from_be_bytes([fixed[0], fixed[1]])),
            class: u16::from_be_bytes([fixed[2], fixed[3]]),
            question: question.to_vec(),
        })
    }

    /// The answer: a code, and for `NoError` an address if there is one.
    pub(crate) fn answer(&self, code: ResponseCode, address: Option<IpAddr>, ttl: u32) -> Vec<u8> {
        let mut out = header(
            self.id,
            code,
            self.recursion_desired,
            1,
            u16::from(address.is_some()),
        );
        out.extend_from_slice(&self.question);
        if let Some(address) = address {
            // The name of the answer is the name at offset 12: the question's.
            out.extend_from_slice(&[0xc0, HEADER as u8]);
            let (kind, data) = match address {
                IpAddr::V4(v4) => (RecordType::A, v4.octets().to_vec()),
                IpAddr::V6(v6) => (RecordType::AAAA, v6.octets().to_vec()),
            };
            out.extend_from_slice(&kind.0.to_be_bytes());
            out.extend_from_slice(&1_u16.to_be_bytes());
            out.extend_from_slice(&ttl.to_be_bytes());
            out.extend_from_slice(&(data.len() as u16).to_be_bytes());
            out.extend_from_slice(&data);
        }
        out
    }
}

/// The answer to what could not be read.
pub(crate) fn bare_answer(id: u16, code: ResponseCode) -> Vec<u8> {
    header(id, code, false, 0, 0)
}

fn header(
    id: u16,
    code: ResponseCode,
    recursion_desired: bool,
    questions: u16,
    answers: u16,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(&id.to_be_bytes());
    out.push(0x80 | u8::from(recursion_desired));
    out.push(0x80 | code as u8);
    for count in [questions, answers, 0, 0] {
        out.extend_from_slice(&count.to_be_bytes());
    }
    out
}

/// The name of the first question: its labels joined by dots, and where it ends. No compression: there is
/// nothing before it to point to.
fn question_name(bytes: &[u8]) -> Option<(Vec<u8>, bool, usize)> {
    let (mut name, mut ambiguous, mut at) = (Vec::new(), false, HEADER);
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((name, ambiguous, at));
        }
        let label = bytes.get(at..at + length).filter(|_| length < 64)?;
        ambiguous |= label.contains(&b'.');
        if !name.is_empty() {
            name.push(b'.');
        }
        name.extend_from_slice(label);
        at += length;
        if at - HEADER >= LONGEST {
            return None;
        }
    }
}

/// A query for a host's own resolvers.
pub(crate) fn encode_query(id: u16, name: &str, kind: RecordType) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + name.len() + 6);
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        out.push(label.len() as u8);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out.extend_from_slice(&kind.0.to_be_bytes());
    out.extend_from_slice(&1_u16.to_be_bytes());
    out
}

/// What a resolver answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Response {
    Addresses(Vec<IpAddr>),
    NoSuchName,
    /// Cut off: ask again over TCP.
    Truncated,
    Failed,
}

/// Reads the answer to a query. `None` when it is not the answer to this one.
pub(crate) fn decode_response(bytes: &[u8], query: &[u8], most: usize) -> Option<Response> {
    let head = bytes.first_chunk::<HEADER>()?;
    let question = query.get(HEADER..)?;
    let same = query.starts_with(&[head[0], head[1]])
        && head[2] & 0xf8 == 0x80
        && [head[4], head[5]] == [0, 1];
    let repeated = bytes.get(HEADER..HEADER.saturating_add(question.len()))?;
    if !same || !repeated.eq_ignore_ascii_case(question) {
        return None;
    }
    if head[2] & 2 != 0 {
        return Some(Response::Truncated);
    }
    match head[3] & 0xf {
        0 => {}
        3 => return Some(Response::NoSuchName),
        _ => return Some(Response::Failed),
    }
    let count = u16::from_be_bytes([head[6], head[7]]);
    let addresses = read_answers(bytes, HEADER.saturating_add(question.len()), count, most);
    Some(addresses.map_or(Response::Failed, Response::Addresses))
}

/// The addresses of the question's name, through its aliases in the order they come.
fn read_answers(bytes: &[u8], mut at: usize, count: u16, most: usize) -> Option<Vec<IpAddr>> {
    let (mut wanted, _) = read_name(bytes, HEADER)?;
    let mut found = Vec::new();
    for _ in 0..count {
        let (owner, end) = read_name(bytes, at)?;
        let fixed = bytes.get(end..)?.first_chunk::<10>()?;
        let kind = RecordType(u16::from_be_bytes([fixed[0], fixed[1]]));
        let length = usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
        let data = bytes.get(end + 10..end + 10 + length)?;
        if owner.eq_ignore_ascii_case(&wanted) && found.len() < most {
            match kind {
                RecordType::A => found.push(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into()),
                RecordType::AAAA => {
                    found.push(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into())
                }
                RecordType::CNAME => wanted = read_name(bytes, end + 10)?.0,
                _ => {}
            }
        }
        at = end + 10 + length;
    }
    Some(found)
}

/// A name that may be compressed: its labels, each with its length before it, and where it ends.
fn read_name(bytes: &[u8], start: usize) -> Option<(Vec<u8>, usize)> {
    let (mut name, mut at, mut end, mut jumps) = (Vec::new(), start, None, 0);
    loop {
        let length = usize::from(*bytes.get(at)?);
        match length {
            0 => return Some((name, end.unwrap_or(at + 1))),
            1..=63 => {
                name.extend_from_slice(bytes.get(at..at + 1 + length)?);
                at += 1 + length;
            }
            0xc0.. => {
                let low = usize::from(*bytes.get(at + 1)?);
                end = end.or(Some(at + 2));
                at = ((length & 0x3f) << 8) | low;
                jumps += 1;
            }
            _ => return None,
        }
        if jumps > MOST_JUMPS || name.len() > LONGEST {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_query_and_its_answer_fit() {
        let query = encode_query(7, "a.example.com", RecordType::A);
        let parsed = Query::parse(&query).unwrap();
        assert_eq!(parsed.name, b"a.example.com");
        assert_eq!(
            (parsed.id, parsed.kind, parsed.class),
            (7, RecordType::A, 1)
        );
        let address = IpAddr::from([198, 18, 0, 1]);
        let answer = parsed.answer(ResponseCode::NoError, Some(address), 60);
        assert_eq!(
            decode_response(&answer, &query, 8),
            Some(Response::Addresses(vec![address]))
        );
        let other = encode_query(8, "a.example.com", RecordType::A);
        assert_eq!(decode_response(&answer, &other, 8), None);
        let other = encode_query(7, "b.example.com", RecordType::A);
        assert_eq!(decode_response(&answer, &other, 8), None);
        let none = parsed.answer(ResponseCode::NoSuchName, None, 60);
        assert_eq!(
            decode_response(&none, &query, 8),
            Some(Response::NoSuchName)
        );
    }

    #[test]
    fn aliases_are_followed_and_strangers_are_not() {
        let query = encode_query(1, "a.b", RecordType::A);
        let mut bytes = query.clone();
        bytes[2] = 0x81;
        bytes[3] = 0x80;
        bytes[7] = 3;
        let record = |owner: &[u8], kind: u8, data: &[u8]| {
            let mut out = owner.to_vec();
            out.extend_from_slice(&[0, kind, 0, 1, 0, 0, 0, 9, 0, data.len() as u8]);
            out.extend_from_slice(data);
            out
        };
        bytes.extend(record(&[0xc0, 12], 5, b"\x01x\x01y\0"));
        bytes.extend(record(b"\x01z\x01z\0", 1, &[9, 9, 9, 9]));
        bytes.extend(record(b"\x01X\x01Y\0", 1, &[1, 2, 3, 4]));
        let expect = Response::Addresses(vec![IpAddr::from([1, 2, 3, 4])]);
        assert_eq!(decode_response(&bytes, &query, 8), Some(expect));
    }

    #[test]
    fn a_name_that_points_at_itself_ends() {
        let query = encode_query(1, "a", RecordType::A);
        let mut bytes = query.clone();
        bytes[2] = 0x81;
        bytes[7] = 1;
        let here = bytes.len() as u8;
        bytes.extend_from_slice(&[0xc0, here, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4]);
        assert_eq!(decode_response(&bytes, &query, 8), Some(Response::Failed));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn no_bytes_break_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Query::parse(&bytes);
            let query = encode_query(1, "a.example", RecordType::A);
            let _ = decode_response(&bytes, &query, 8);
        }

        #[test]
        fn no_damage_to_a_query_breaks_the_reader(at in 0..40_usize, byte: u8, cut in 0..40_usize) {
            let mut query = encode_query(1, "a.example.com", RecordType::AAAA);
            if let Some(slot) = query.get_mut(at) {
                *slot = byte;
            }
            query.truncate(cut.max(12));
            if let Ok(parsed) = Query::parse(&query) {
                prop_assert!(parsed.name.len() <= LONGEST);
                let answer = parsed.answer(ResponseCode::NoError, Some(IpAddr::from([1, 2, 3, 4])), 1);
                prop_assert!(answer.len() <= 512);
            }
        }

        #[test]
        fn no_damage_to_an_answer_breaks_the_reader(at in 0..80_usize, byte: u8) {
            let query = encode_query(1, "a.example.com", RecordType::A);
            let parsed = Query::parse(&query).expect("a query");
            let mut answer = parsed.answer(ResponseCode::NoError, Some(IpAddr::from([1, 2, 3, 4])), 1);
            if let Some(slot) = answer.get_mut(at) {
                *slot = byte;
            }
            if let Some(Response::Addresses(found)) = decode_response(&answer, &query, 8) {
                prop_assert!(found.len() <= 8);
            }
        }
    }
}
