//! What a request must be like to be passed on.

use belljar_policy::Host;
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use hyper::http::request::Parts;
use hyper::{Method, Uri, Version};

use crate::record::RefusalCode;

/// Headers that are about one connection, not about the message.
const HOP_BY_HOP: [&str; 8] = [
    // What it asks for is given here: the agent is told to go on when its body is wanted.
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "http2-settings",
];

/// Headers by which some servers are told to take a request for one of another method.
const OVERRIDES: [&str; 3] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
];

/// Whether a request asks to become something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Becoming {
    /// It stays what it is.
    Nothing,
    /// A WebSocket.
    WebSocket,
}

/// Checks that a request is for `host` at `port`, and for nobody else however it is read.
pub(super) fn check_host(
    parts: &Parts,
    host: &Host,
    port: u16,
) -> Result<(), (RefusalCode, String)> {
    let malformed = |what: &str| Err((RefusalCode::Malformed, what.to_owned()));
    if parts.method == Method::CONNECT {
        return malformed("CONNECT inside a connection");
    }
    // It asks for the request to be sent back, with the secrets that are put in on the way.
    if parts.method == Method::TRACE {
        return malformed("TRACE");
    }
    let mut named = Vec::new();
    if let Some(authority) = parts.uri.authority() {
        named.push(authority.as_str().as_bytes());
    }
    let hosts: Vec<_> = parts.headers.get_all(HOST).iter().collect();
    let two = parts.version == Version::HTTP_2;
    match hosts.as_slice() {
        [] if two && !named.is_empty() => {}
        [one] => named.push(one.as_bytes()),
        _ => return malformed("not exactly one Host"),
    }
    for name in named {
        let Some((given, given_port)) = std::str::from_utf8(name).ok().and_then(parse_authority)
        else {
            return Err((RefusalCode::NameMismatch, crate::record::printable(name)));
        };
        if !is_same(&given, host) || given_port.is_some_and(|given| given != port) {
            return Err((RefusalCode::NameMismatch, crate::record::printable(name)));
        }
    }
    Ok(())
}

/// The host's own loopback goes by a name and by its addresses.
fn is_same(given: &Host, host: &Host) -> bool {
    let is_loopback = |address: std::net::IpAddr| address.to_canonical().is_loopback();
    given == host || (host.name() == Some("localhost") && given.address().is_some_and(is_loopback))
}

/// A header's name as a server may read it that makes variables of headers.
fn spelled(name: &HeaderName) -> String {
    name.as_str().replace('_', "-")
}

/// Whether a server may take a header for another path, host or method than the request's own.
fn is_another_target(name: &HeaderName) -> bool {
    /// Those that no pattern holds.
    const NAMES: [&str; 12] = [
        "base-url",
        "destination",
        "forwarded",
        "http-url",
        "path-info",
        "proxy-host",
        "proxy-url",
        "redirect",
        "request-uri",
        "script-name",
        "uri",
        "url",
    ];
    const WORDS: [&str; 12] = [
        "url",
        "uri",
        "path",
        "prefix",
        "rewrite",
        "override",
        "method",
        "host",
        "server",
        "script",
        "destination",
        "destinationurl",
    ];
    let name = spelled(name);
    if OVERRIDES.contains(&name.as_str()) {
        return false;
    }
    // Some write two words as one.
    let ends = ["url", "uri", "path", "prefix"];
    let is_word = |word: &str| WORDS.contains(&word) || ends.iter().any(|end| word.ends_with(end));
    let mut words = name.split('-');
    NAMES.contains(&name.as_str())
        || name.ends_with("-copy-source")
        || name.ends_with("-rename-source")
        || (words.next() == Some("x") && words.any(is_word))
}

/// Takes out what would be another request to a server that goes by it. Methods in headers stay: they are judged.
pub(super) fn drop_other_targets(headers: &mut HeaderMap) {
    let names: Vec<_> = headers
        .keys()
        .filter(|name| is_another_target(name))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}

/// The methods that a request may be taken for beside its own. `None` when one of them is no method.
pub(super) fn other_methods(headers: &HeaderMap) -> Option<Vec<Method>> {
    let values = headers
        .iter()
        .filter(|(name, _)| OVERRIDES.contains(&spelled(name).as_str()))
        .map(|(_, value)| value);
    let method = |value: &hyper::header::HeaderValue| {
        let text = value.to_str().ok()?.trim().to_ascii_uppercase();
        Method::from_bytes(text.as_bytes()).ok()
    };
    values.map(method).collect()
}

/// `host` or `host:port`.
pub(super) fn parse_authority(text: &str) -> Option<(Host, Option<u16>)> {
    let after_brackets = text.rfind(']').map_or(0, |at| at.saturating_add(1));
    match text.get(after_brackets..)?.find(':') {
        None => Some((Host::parse(text).ok()?, None)),
        Some(colon) => {
            let (host, port) = text.split_at_checked(after_brackets.saturating_add(colon))?;
            let port = port.strip_prefix(':')?;
            let decimal = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
            let port = port.parse().ok().filter(|_| decimal)?;
            Some((Host::parse(host).ok()?, Some(port)))
        }
    }
}

/// Takes out what is about this connection alone, and says what the message asks to become.
pub(super) fn strip_connection(headers: &mut HeaderMap) -> Becoming {
    let words = |headers: &HeaderMap, name: HeaderName| -> Vec<String> {
        let values = headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let words = values
            .flat_map(|value| value.split(','))
            .map(|word| word.trim().to_ascii_lowercase());
        words.collect()
    };
    let listed = words(headers, CONNECTION);
    let becoming = match words(headers, UPGRADE).as_slice() {
        [one] if one == "websocket" && listed.iter().any(|word| word == "upgrade") => {
            Becoming::WebSocket
        }
        _ => Becoming::Nothing,
    };
    let trailers = words(headers, TE).iter().any(|word| word == "trailers");
    for name in listed {
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            // A client could otherwise have a header removed that says who or how long it is.
            if name != HOST && name.as_str() != "content-length" {
                headers.remove(name);
            }
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, hyper::header::HeaderValue::from_static("trailers"));
    }
    becoming
}

/// The path and query of a request, as HTTP/1.1 sends it.
pub(super) fn origin_form(uri: &Uri) -> Option<Uri> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    path.parse().ok()
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn parts(uri: &str, hosts: &[&str]) -> Parts {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_request_names_its_host_and_no_other() {
        let host = Host::parse("a.com").unwrap();
        let check = |uri: &str, hosts: &[&str], expect: Result<(), RefusalCode>| {
            let found = check_host(&parts(uri, hosts), &host, 443).map_err(|(code, _)| code);
            assert_eq!(found, expect, "{uri} {hosts:?}");
        };
        check("/", &["a.com"], Ok(()));
        check("/", &["A.com.:443"], Ok(()));
        check("https://a.com/", &["a.com"], Ok(()));
        check("/", &[], Err(RefusalCode::Malformed));
        check("/", &["a.com", "a.com"], Err(RefusalCode::Malformed));
        check("/", &["b.com"], Err(RefusalCode::NameMismatch));
        check("/", &["a.com:444"], Err(RefusalCode::NameMismatch));
        check("/", &["a.com:"], Err(RefusalCode::NameMismatch));
        check("/", &["x@a.com"], Err(RefusalCode::NameMismatch));
        check("/", &["a.com, b.com"], Err(RefusalCode::NameMismatch));
        check("https://b.com/", &["a.com"], Err(RefusalCode::NameMismatch));
        check("https://a.com/", &["b.com"], Err(RefusalCode::NameMismatch));
    }

    #[test]
    fn the_hosts_own_loopback_has_several_names() {
        let check = |host: &str, given: &str, expect: bool| {
            let host = Host::parse(host).unwrap();
            let found = check_host(&parts("/", &[given]), &host, 80).is_ok();
            assert_eq!(found, expect, "{host} {given}");
        };
        check("localhost", "localhost:80", true);
        check("localhost", "127.0.0.1:80", true);
        check("localhost", "[::1]:80", true);
        check("localhost", "10.0.0.1:80", false);
        check("127.0.0.1", "127.0.0.2", false);
        check("a.com", "127.0.0.1", false);
    }

    #[test]
    fn a_method_in_a_header_is_a_method_too() {
        let mut headers = HeaderMap::new();
        assert_eq!(other_methods(&headers), Some(Vec::new()));
        headers.append("x-http-method-override", "delete".parse().unwrap());
        headers.append("x-http-method", " PUT ".parse().unwrap());
        assert_eq!(
            other_methods(&headers),
            Some(vec![Method::DELETE, Method::PUT])
        );
        headers.append("x-method-override", "GET, PUT".parse().unwrap());
        assert_eq!(other_methods(&headers), None);
    }

    #[test]
    fn other_targets_are_dropped_however_they_are_spelled() {
        let drops = "X-Original-URL X-Rewrite-URL X-Forwarded-Prefix X-Forwarded-Path X-Forwarded-Uri X-Override-URL \
            X_Original_URL x-original-uri X-Forwarded-Host X-Host Forwarded X-Envoy-Original-Path X-Original-Method \
            X-Forwarded-Method X-OriginalUrl X-RewriteUri X-Http-RequestPath Destination x-amz-copy-source X-HTTP-DestinationURL X-Script-Name";
        let stays = "X-Forwarded-For X-Forwarded-Proto X-Amz-Security-Token X-Api-Key X-Request-Id X-HTTP-Method-Override Authorization \
            X-Goog-Api-Client X-Stainless-Lang Content-Location Referer";
        let mut headers = HeaderMap::new();
        for name in drops.split_whitespace().chain(stays.split_whitespace()) {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, "/admin".parse().unwrap());
        }
        drop_other_targets(&mut headers);
        let mut expect: Vec<_> = stays
            .split_whitespace()
            .map(str::to_ascii_lowercase)
            .collect();
        let mut left: Vec<_> = headers
            .keys()
            .map(|name| name.as_str().to_owned())
            .collect();
        left.sort_unstable();
        expect.sort_unstable();
        assert_eq!(left, expect);
        let mut headers = HeaderMap::new();
        headers.append("x_http_method_override", "DELETE".parse().unwrap());
        assert_eq!(other_methods(&headers), Some(vec![Method::DELETE]));
    }

    #[test]
    fn authorities_with_addresses_are_read() {
        let check = |text: &str, expect: Option<(&str, Option<u16>)>| {
            let found = parse_authority(text).map(|(host, port)| (host.to_string(), port));
            assert_eq!(
                found,
                expect.map(|(host, port)| (host.to_owned(), port)),
                "{text}"
            );
        };
        check("[::1]:80", Some(("::1", Some(80))));
        check("[::1]", Some(("::1", None)));
        check("127.1:80", Some(("127.0.0.1", Some(80))));
        check("a.com:+80", None);
        check("a.com:80:81", None);
    }

    #[test]
    fn what_is_about_one_connection_stays_there() {
        let mut headers = parts("/", &["a.com"]).headers;
        for (name, value) in [
            ("connection", "close, X-Own, host, content-length"),
            ("x-own", "1"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "x"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("te", "gzip, trailers"),
            ("accept", "*/*"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        assert_eq!(strip_connection(&mut headers), Becoming::Nothing);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "content-length", "host", "te"]);
        assert_eq!(headers["te"], "trailers");
    }
}
