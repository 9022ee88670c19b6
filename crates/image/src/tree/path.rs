//! Paths in an image: bytes that a stranger wrote.

use crate::bounds::{MOST_NAME, MOST_PATH};
use crate::error::ImageError;

/// Names below each other. Whatever walks a tree holds a descriptor for each.
const MOST_DEPTH: usize = 256;

/// A path below an image's root: plain names, none of them `..`. A leading slash means the image's root, as it does to engines.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct EntryPath {
    // Joined by slashes, without one at either end.
    bytes: Vec<u8>,
}

impl EntryPath {
    /// Takes a path out of an archive.
    pub fn new(raw: &[u8]) -> Result<Self, ImageError> {
        let mut bytes = Vec::with_capacity(raw.len());
        let refuse = |why: &str| {
            let what = format!("the image has a path that {why}: {}", shown(raw));
            Err(ImageError::refused(what, "don't use this image"))
        };
        let mut depth = 0;
        for name in raw.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => continue,
                b".." => return refuse("leads upwards"),
                name if name.contains(&0) => return refuse("has a zero byte"),
                name if name.len() > MOST_NAME => return refuse("has too long a name"),
                name => {
                    if !bytes.is_empty() {
                        bytes.push(b'/');
                    }
                    bytes.extend_from_slice(name);
                    depth += 1;
                }
            }
        }
        if bytes.len() > MOST_PATH || depth > MOST_DEPTH {
            return refuse("is too long or too deep");
        }
        Ok(Self { bytes })
    }

    /// Whether it is the image's root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.bytes.is_empty()
    }

    /// As bytes, without a slash at either end.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its names, from the root down.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let names = self.bytes.split(|byte| *byte == b'/');
        names.filter(|name| !name.is_empty())
    }

    /// The directory it is in and its name there; nothing for the root.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(match self.bytes.iter().rposition(|byte| *byte == b'/') {
            None => (Self::default(), &self.bytes),
            Some(slash) => {
                let (parent, name) = self.bytes.split_at(slash);
                let parent = Self {
                    bytes: parent.to_vec(),
                };
                (parent, name.get(1..).unwrap_or_default())
            }
        })
    }

    /// What is called `name` in it, which must be a plain name.
    pub fn join(&self, name: &[u8]) -> Result<Self, ImageError> {
        let mut raw = self.bytes.clone();
        raw.push(b'/');
        raw.extend_from_slice(name);
        Self::new(&raw)
    }

    /// For people.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("/{}", shown(&self.bytes))
    }
}

fn shown(bytes: &[u8]) -> String {
    const MOST_SHOWN: usize = 200;
    let text = String::from_utf8_lossy(bytes.get(..MOST_SHOWN).unwrap_or(bytes));
    text.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_form_and_never_leads_upwards() {
        for (raw, form) in [
            (&b"a/b"[..], &b"a/b"[..]),
            (b"./a//b/", b"a/b"),
            (b"/etc/passwd", b"etc/passwd"),
            (b"./", b""),
            (b"\xff/...", b"\xff/..."),
        ] {
            assert_eq!(EntryPath::new(raw).expect("a path").as_bytes(), form);
        }
        let long = vec![b'a'; 256];
        let deep = b"a/".repeat(257);
        for raw in [
            &b".."[..],
            b"../a",
            b"a/../b",
            b"a/..",
            b"/..",
            b"a\0b",
            &long,
            &deep,
        ] {
            assert!(EntryPath::new(raw).is_err(), "{}", shown(raw));
        }
    }

    #[test]
    fn a_path_is_its_directory_and_a_name() {
        let path = EntryPath::new(b"a/b/c").expect("a path");
        let (parent, name) = path.split().expect("not the root");
        assert_eq!((parent.as_bytes(), name), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(parent.join(b"c").expect("a path"), path);
        assert!(parent.join(b"..").is_err());
        assert!(EntryPath::default().split().is_none());
    }
}
