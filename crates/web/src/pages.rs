//! The dashboard's files, held in memory. A path is looked up in a table and never becomes the name of a file on disk, so there is
//! nothing that `..` could reach.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// The pages at `/`.
#[derive(Clone, Debug, Default)]
pub struct Pages(Arc<BTreeMap<String, Page>>);

/// A file.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) bytes: Bytes,
    /// The same, packed.
    pub(crate) gzip: Option<Bytes>,
    pub(crate) kind: &'static str,
    /// Of its content, without quotes.
    pub(crate) tag: String,
    /// Its name changes with its content: whoever has it need never ask again.
    pub(crate) is_immutable: bool,
}

/// A line of the embedded table: path, bytes, packed bytes, digest.
type Embedded = (
    &'static str,
    &'static [u8],
    Option<&'static [u8]>,
    &'static str,
);

#[cfg(feature = "dashboard")]
const EMBEDDED: &[Embedded] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));
#[cfg(not(feature = "dashboard"))]
const EMBEDDED: &[Embedded] = &[];

/// What `/` says where there is no dashboard.
pub(crate) const MISSING: &str = "\
This Belljar was built without its dashboard.

The API works: see docs/api.md, or `belljar --help` for the command line.
To have the dashboard, build with Node installed: `make build`, which runs `make dashboard` first,
and leave out `--no-default-features`.
";

impl Pages {
    /// The dashboard that was built in; empty where the feature `dashboard` is off.
    #[must_use]
    pub fn embedded() -> Self {
        let page = |(path, bytes, gzip, tag): &Embedded| {
            let page = Page {
                bytes: Bytes::from_static(bytes),
                gzip: gzip.map(Bytes::from_static),
                kind: kind(path),
                tag: (*tag).to_owned(),
                is_immutable: is_immutable(path),
            };
            ((*path).to_owned(), page)
        };
        Self(Arc::new(EMBEDDED.iter().map(page).collect()))
    }

    /// Pages from files given as path and bytes.
    pub fn new(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let page = |(path, bytes): (String, Vec<u8>)| {
            let digest = Sha256::digest(&bytes);
            let page = Page {
                tag: data_encoding::HEXLOWER.encode(digest.get(..12).unwrap_or_default()),
                bytes: bytes.into(),
                gzip: None,
                kind: kind(&path),
                is_immutable: is_immutable(&path),
            };
            (path, page)
        };
        Self(Arc::new(files.into_iter().map(page).collect()))
    }

    /// Whether there is no dashboard.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The file for a path. Someone who goes to a page of the dashboard gets its one document, which knows what to show there.
    pub(crate) fn find(&self, path: &str, wants_page: bool) -> Option<&Page> {
        if path == "/" {
            return self.0.get("/index.html");
        }
        if let Some(page) = self.0.get(path) {
            return Some(page);
        }
        let last = path.rsplit('/').next().unwrap_or_default();
        let is_page = wants_page && !last.contains('.') && !path.starts_with("/assets/");
        is_page.then(|| self.0.get("/index.html")).flatten()
    }
}

fn kind(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "json" => "application/json",
        "webmanifest" => "application/manifest+json",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// `/assets/name-HASH.kind`, as Vite writes it.
fn is_immutable(path: &str) -> bool {
    let Some((stem, _)) = path
        .strip_prefix("/assets/")
        .and_then(|name| name.rsplit_once('.'))
    else {
        return false;
    };
    // The hash may hold a dash itself, so it is what the last eight characters are.
    let Some(at) = stem.len().checked_sub(9) else {
        return false;
    };
    let hash = stem.as_bytes().get(at..).unwrap_or_default();
    let [b'-', hash @ ..] = hash else {
        return false;
    };
    hash.iter()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_hash_are_kept_for_ever() {
        for (path, expected) in [
            ("/assets/index-B3xY_z-9.js", true),
            ("/assets/index.js", false),
            ("/assets/a.js", false),
            ("/index-B3xY_z-9.js", false),
            ("/index.html", false),
            ("/assets/ünï-ünïünïü.js", false),
        ] {
            assert_eq!(is_immutable(path), expected, "{path}");
        }
    }

    #[test]
    fn a_page_of_the_dashboard_is_its_one_document_and_a_file_is_itself() {
        let pages = Pages::new([
            ("/index.html".to_owned(), b"page".to_vec()),
            ("/assets/a.js".to_owned(), b"code".to_vec()),
        ]);
        let found = |path, wants_page| pages.find(path, wants_page).map(|page| page.bytes.clone());
        assert_eq!(found("/", false).as_deref(), Some(&b"page"[..]));
        assert_eq!(found("/agents/w1", true).as_deref(), Some(&b"page"[..]));
        assert_eq!(found("/agents/w1", false), None);
        assert_eq!(found("/assets/a.js", true).as_deref(), Some(&b"code"[..]));
        assert_eq!(found("/assets/gone", true), None);
        assert_eq!(found("/favicon.ico", true), None);
        assert_eq!(found("/../../etc/passwd", false), None);
    }
}
