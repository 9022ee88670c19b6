//! The first bytes of a connection: TLS, HTTP or something else, and which host TLS is for.

/// More than any client sends, even with post-quantum keys; within one TLS record.
pub(crate) const LARGEST_HELLO: usize = 16 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_HELLO: u16 = 0xfe0d;

/// What the first bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// Too few to tell.
    Unfinished,
    /// A TLS greeting.
    Tls(ClientHello),
    /// TLS, but no greeting anyone should answer.
    BadTls,
    /// An HTTP request, or HTTP/2 without TLS.
    Http,
    /// Something else.
    Other,
}

/// The parts of a TLS greeting that name the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientHello {
    /// The name in the clear, as it was sent.
    pub(crate) server_name: Option<Vec<u8>>,
    /// Whether another name may be hidden inside.
    pub(crate) encrypted: bool,
}

/// Classifies what a client sent first.
pub(crate) fn classify(bytes: &[u8]) -> FirstBytes {
    match bytes {
        [] => FirstBytes::Unfinished,
        [HANDSHAKE, ..] => classify_tls(bytes),
        _ => classify_text(bytes),
    }
}

/// A method is a word in capitals, followed by a space. Everything else is not HTTP as its clients speak it.
fn classify_text(bytes: &[u8]) -> FirstBytes {
    const LONGEST_METHOD: usize = 24;
    let word = bytes
        .iter()
        .take_while(|b| b.is_ascii_uppercase() || **b == b'-')
        .count();
    match bytes.get(word) {
        _ if word > LONGEST_METHOD => FirstBytes::Other,
        None => FirstBytes::Unfinished,
        Some(b' ') if word > 0 => FirstBytes::Http,
        Some(_) => FirstBytes::Other,
    }
}

fn classify_tls(bytes: &[u8]) -> FirstBytes {
    let (mut rest, mut message) = (bytes, Vec::new());
    loop {
        let (record, after) = match split_record(rest) {
            Record::Whole(record, after) => (record, after),
            Record::Unfinished if bytes.len() < LARGEST_HELLO => return FirstBytes::Unfinished,
            Record::Unfinished | Record::Bad => return FirstBytes::BadTls,
        };
        message.extend_from_slice(record);
        rest = after;
        match message.as_slice() {
            [CLIENT_HELLO, a, b, c, body @ ..] => {
                let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
                if length > LARGEST_HELLO {
                    return FirstBytes::BadTls;
                }
                if let Some(body) = body.get(..length) {
                    return parse_hello(body).map_or(FirstBytes::BadTls, FirstBytes::Tls);
                }
            }
            [] | [CLIENT_HELLO, ..] => {}
            _ => return FirstBytes::BadTls,
        }
    }
}

enum Record<'a> {
    /// Its content, and what follows it.
    Whole(&'a [u8], &'a [u8]),
    Unfinished,
    Bad,
}

fn split_record(bytes: &[u8]) -> Record<'_> {
    let front = [HANDSHAKE, 3];
    if bytes.iter().zip(&front).any(|(byte, front)| byte != front) {
        return Record::Bad;
    }
    let Some((header, rest)) = bytes.split_first_chunk::<5>() else {
        return Record::Unfinished;
    };
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if !(1..=LARGEST_HELLO).contains(&length) {
        return Record::Bad;
    }
    match rest.split_at_checked(length) {
        Some((record, after)) => Record::Whole(record, after),
        None => Record::Unfinished,
    }
}

fn parse_hello(body: &[u8]) -> Option<ClientHello> {
    let mut reader = Reader(body);
    reader.take(2 + 32)?;
    reader.sized_u8()?;
    reader.sized_u16()?;
    reader.sized_u8()?;
    let mut hello = ClientHello {
        server_name: None,
        encrypted: false,
    };
    if reader.0.is_empty() {
        return Some(hello);
    }
    let mut extensions = Reader(reader.sized_u16()?);
    if !reader.0.is_empty() {
        return None;
    }
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let content = extensions.sized_u16()?;
        match kind {
            // Two names, and nobody could say which of them the server reads.
            SERVER_NAME if hello.server_name.is_some() => return None,
            SERVER_NAME => hello.server_name = Some(parse_server_name(content)?),
            ENCRYPTED_HELLO => hello.encrypted = true,
            _ => {}
        }
    }
    Some(hello)
}

/// A list of exactly one host name.
fn parse_server_name(content: &[u8]) -> Option<Vec<u8>> {
    let mut outer = Reader(content);
    let mut list = Reader(outer.sized_u16()?);
    let kind = list.take(1)?;
    let name = list.sized_u16()?;
    let alone = outer.0.is_empty() && list.0.is_empty() && kind == [0];
    alone.then(|| name.to_vec())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?.first_chunk::<2>()?;
        Some(u16::from_be_bytes(*bytes))
    }

    fn sized_u8(&mut self) -> Option<&'a [u8]> {
        let length = *self.take(1)?.first()?;
        self.take(usize::from(length))
    }

    fn sized_u16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sized(content: &[u8]) -> Vec<u8> {
        let mut out = (content.len() as u16).to_be_bytes().to_vec();
        out.extend_from_slice(content);
        out
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut out = kind.to_be_bytes().to_vec();
        out.extend(sized(content));
        out
    }

    fn server_name(name: &[u8]) -> Vec<u8> {
        let mut entry = vec![0];
        entry.extend(sized(name));
        extension(SERVER_NAME, &sized(&entry))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0);
        body.extend(sized(&[0x13, 1]));
        body.extend([1, 0]);
        body.extend(sized(extensions));
        let mut out = vec![CLIENT_HELLO, 0];
        out.extend(sized(&body));
        out
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for part in message.chunks(size) {
            out.extend([HANDSHAKE, 3, 1]);
            out.extend(sized(part));
        }
        out
    }

    /// A greeting for a host, for tests of the whole way.
    pub(crate) fn greeting(name: &str) -> Vec<u8> {
        records(&message(&server_name(name.as_bytes())), 4096)
    }

    #[test]
    fn a_greeting_is_read_however_it_is_cut() {
        let hello = message(&server_name(b"a.com"));
        let expect = FirstBytes::Tls(ClientHello {
            server_name: Some(b"a.com".to_vec()),
            encrypted: false,
        });
        for size in [1, 3, 4, 50, 4096] {
            let bytes = records(&hello, size);
            assert_eq!(classify(&bytes), expect);
            for cut in 0..bytes.len() {
                assert_eq!(
                    classify(&bytes[..cut]),
                    FirstBytes::Unfinished,
                    "{size} {cut}"
                );
            }
        }
    }

    #[test]
    fn doubtful_greetings_are_none() {
        let check = |extensions: &[u8], expect: FirstBytes| {
            assert_eq!(classify(&records(&message(extensions), 4096)), expect);
        };
        let hello = |server_name: Option<&[u8]>, encrypted| {
            FirstBytes::Tls(ClientHello {
                server_name: server_name.map(<[u8]>::to_vec),
                encrypted,
            })
        };
        check(&[], hello(None, false));
        check(&extension(ENCRYPTED_HELLO, b"x"), hello(None, true));
        check(
            &[server_name(b"a"), server_name(b"b")].concat(),
            FirstBytes::BadTls,
        );
        let two = [sized(b"a"), vec![0], sized(b"b")].concat();
        check(
            &extension(SERVER_NAME, &sized(&[vec![0], two].concat())),
            FirstBytes::BadTls,
        );
        assert_eq!(classify(&[HANDSHAKE, 2, 0, 0, 5]), FirstBytes::BadTls);
        assert_eq!(classify(&[HANDSHAKE, 3, 1, 0, 0]), FirstBytes::BadTls);
        assert_eq!(classify(&records(&[2, 0, 0, 1, 0], 9)), FirstBytes::BadTls);
        assert_eq!(
            classify(&records(&[CLIENT_HELLO, 1, 0, 0, 0], 9)),
            FirstBytes::BadTls
        );
    }

    #[test]
    fn text_is_told_apart() {
        let check = |bytes: &[u8], expect| assert_eq!(classify(bytes), expect, "{bytes:?}");
        check(b"GE", FirstBytes::Unfinished);
        check(b"GET / HTTP/1.1", FirstBytes::Http);
        check(b"M-SEARCH *", FirstBytes::Http);
        check(b"PRI * HTTP/2.0\r\n", FirstBytes::Http);
        check(b"get / HTTP/1.1", FirstBytes::Other);
        check(b"\r\nGET /", FirstBytes::Other);
        check(b"SSH-2.0-x", FirstBytes::Other);
        check(&[b'A'; 40], FirstBytes::Other);
        check(&[0, 0, 0, 8], FirstBytes::Other);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn no_bytes_break_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = classify(&bytes);
            let tls = [&[HANDSHAKE, 3, 1], bytes.as_slice()].concat();
            let _ = classify(&tls);
            let _ = classify(&records(&[&[CLIENT_HELLO, 0, 0][..], &bytes].concat(), 40));
        }

        #[test]
        fn no_damage_breaks_the_reader(at in 0..80_usize, byte: u8) {
            let mut bytes = greeting("a.example.com");
            if let Some(slot) = bytes.get_mut(at) {
                *slot = byte;
            }
            let _ = classify(&bytes);
        }
    }
}
