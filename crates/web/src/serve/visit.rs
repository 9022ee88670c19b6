//! The dashboard's files.

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use super::Site;
use super::reply::{self, Body, Refusal};
use crate::pages::{MISSING, Page};

pub(super) fn visit(site: &Site, request: &Request<Incoming>) -> Result<Response<Body>, Refusal> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Err(Refusal::other_method(request.method(), "GET, HEAD"));
    }
    let path = request.uri().path();
    let pages = &site.pages;
    if pages.is_empty() && path == "/" {
        return Ok(reply::of_kind(
            StatusCode::OK,
            "text/plain; charset=utf-8",
            MISSING,
        ));
    }
    let wants_page = mentions(request.headers(), &header::ACCEPT, "text/html");
    match pages.find(path, wants_page) {
        Some(page) => Ok(show(page, request.headers())),
        None => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "there is nothing at this path",
        )),
    }
}

fn show(page: &Page, headers: &HeaderMap) -> Response<Body> {
    let packed = page
        .gzip
        .as_ref()
        .filter(|_| mentions(headers, &header::ACCEPT_ENCODING, "gzip"));
    let tag = match packed {
        Some(_) => format!("\"{}-gz\"", page.tag),
        None => format!("\"{}\"", page.tag),
    };
    let mut response = if mentions(headers, &header::IF_NONE_MATCH, &tag) {
        reply::of_kind(StatusCode::NOT_MODIFIED, page.kind, "")
    } else {
        reply::of_kind(
            StatusCode::OK,
            page.kind,
            packed.unwrap_or(&page.bytes).clone(),
        )
    };
    let headers = response.headers_mut();
    if packed.is_some() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let keep = if page.is_immutable {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(keep));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

/// Whether a list in a header has this in it, whatever is said about it behind a semicolon.
fn mentions(headers: &HeaderMap, name: &HeaderName, what: &str) -> bool {
    let lines = headers.get_all(name).iter();
    let mut items = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','));
    items.any(|item| {
        let mut parts = item.split(';').map(str::trim);
        let named = parts.next().unwrap_or_default();
        let named = named.strip_prefix("W/").unwrap_or(named);
        named.eq_ignore_ascii_case(what) && !parts.any(|part| part == "q=0")
    })
}
