//! Paths in arguments: brought to one spelling, then compared with a pattern.
//!
//! A rule sees text; a server sees a file system. What a server might read in another way than we do is *unclear*,
//! and an unclear path is never within what is allowed and always within what is refused.

use std::fmt;

use super::Glob;

/// A pattern of absolute paths: `*` is anything within a name, `**` is any number of names, none too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathGlob(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Segment {
    Name(Glob),
    Any,
}

/// Why a text is no pattern of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPathGlob {
    /// Not absolute.
    #[error("a pattern of paths does not start with `/`")]
    Relative,
    /// `.`, `..` or nothing between slashes.
    #[error("a pattern of paths has an empty name, `.` or `..` in it")]
    NotPlain,
    /// `a**` or `**b`.
    #[error("`**` is a name of its own in a pattern of paths")]
    Stars,
}

impl InvalidPathGlob {
    /// What to write instead.
    #[must_use]
    pub fn hint(self) -> &'static str {
        "write an absolute path, e.g. /work/** for all below, or /work/*.txt"
    }
}

impl PathGlob {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When the text is none; see [`InvalidPathGlob`].
    pub fn parse(text: &str) -> Result<Self, InvalidPathGlob> {
        let below = text.strip_prefix('/').ok_or(InvalidPathGlob::Relative)?;
        if below.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let segment = |name: &str| match name {
            "" | "." | ".." => Err(InvalidPathGlob::NotPlain),
            "**" => Ok(Segment::Any),
            name if name.contains("**") => Err(InvalidPathGlob::Stars),
            name => Ok(Segment::Name(Glob::new(name))),
        };
        let segments: Vec<Segment> = below.split('/').map(segment).collect::<Result<_, _>>()?;
        let mut plain: Vec<Segment> = Vec::with_capacity(segments.len());
        for segment in segments {
            if segment != Segment::Any || plain.last() != Some(&Segment::Any) {
                plain.push(segment);
            }
        }
        Ok(Self(plain))
    }

    /// The same, where a final `/*` is everything below: who blocks `/etc/*` means all of it.
    ///
    /// # Errors
    /// When the text is no pattern.
    pub(super) fn parse_wide(text: &str) -> Result<Self, InvalidPathGlob> {
        let mut glob = Self::parse(text)?;
        if let Some(last) = glob.0.last_mut()
            && *last == Segment::Name(Glob::new("*"))
        {
            *last = Segment::Any;
        }
        Ok(glob)
    }

    /// Whether a path in its plain spelling is one of the pattern's.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let one = |own: &Glob, name: &&str| own.matches(name);
        walk(&self.0, &names, one)
    }

    /// Whether every path of `other` is one of this pattern's, as far as their form tells.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let one = |own: &Glob, theirs: &Segment| match theirs {
            Segment::Name(name) => own.covers(name),
            Segment::Any => false,
        };
        walk(&self.0, &other.0, one)
    }
}

/// Matches names against segments, going back to the last `**` only.
fn walk<T>(pattern: &[Segment], names: &[T], one: impl Fn(&Glob, &T) -> bool) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut any: Option<(usize, usize)> = None;
    while n < names.len() {
        match pattern.get(p) {
            Some(Segment::Any) => {
                any = Some((p, n));
                p += 1;
                continue;
            }
            Some(Segment::Name(own)) if one(own, &names[n]) => {
                p += 1;
                n += 1;
                continue;
            }
            _ => {}
        }
        let Some((at, from)) = any else { return false };
        any = Some((at, from + 1));
        p = at + 1;
        n = from + 1;
    }
    pattern[p..].iter().all(|segment| *segment == Segment::Any)
}

impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        for segment in &self.0 {
            match segment {
                Segment::Name(name) => write!(f, "/{name}")?,
                Segment::Any => f.write_str("/**")?,
            }
        }
        Ok(())
    }
}

/// What whoever asks knows of the file system that a path will be looked up in.
pub trait Paths {
    /// Where a path that is not absolute starts, if that is known.
    fn base(&self) -> Option<&str>;
    /// Where the path leads once links are followed, in its plain spelling. `None` when that can't be known.
    fn real(&self, path: &str) -> Option<String>;
}

/// Nothing is known but the text: the server is on another machine, or nobody looked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lexical;

impl Paths for Lexical {
    fn base(&self) -> Option<&str> {
        None
    }

    fn real(&self, _path: &str) -> Option<String> {
        None
    }
}

/// A path of an argument in its plain spellings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlainPath {
    text: String,
    /// Where it leads, where that is known.
    real: Option<String>,
    /// It climbs (`..`), and what it climbs out of may be a link.
    climbs: bool,
}

impl PlainPath {
    /// `None` when servers may read it in more ways than one.
    pub(super) fn of(text: &str, paths: &dyn Paths) -> Option<Self> {
        let decoded;
        let text = match text.strip_prefix("file://") {
            Some(rest) => {
                decoded = percent_decoded(rest.strip_prefix("localhost").unwrap_or(rest))?;
                decoded.as_str()
            }
            None => text,
        };
        if text.trim() != text || text.starts_with('~') || text.contains("://") {
            return None;
        }
        if text.chars().any(is_tricky) || has_escape(text) {
            return None;
        }
        let absolute = match (text.starts_with('/'), paths.base()) {
            (true, _) => text.to_owned(),
            (false, Some(base)) if !text.is_empty() => format!("{base}/{text}"),
            _ => return None,
        };
        let mut names: Vec<&str> = Vec::new();
        let mut climbs = false;
        for name in absolute.split('/') {
            match name {
                "" | "." => {}
                ".." => {
                    climbs = true;
                    names.pop();
                }
                name => names.push(name),
            }
        }
        Some(Self {
            text: format!("/{}", names.join("/")),
            // The raw path: a link before `..` leads elsewhere than its spelling says.
            real: paths.real(&absolute),
            climbs,
        })
    }

    /// Whether it is certainly one of the pattern's, by its spelling and by where it leads.
    pub(super) fn surely(&self, glob: &PathGlob) -> bool {
        let real = match &self.real {
            Some(real) => glob.matches(real),
            None => !self.climbs,
        };
        real && glob.matches(&self.text)
    }

    /// Whether it may be one of the pattern's.
    pub(super) fn maybe(&self, glob: &PathGlob) -> bool {
        glob.matches(&self.text) || self.real.as_deref().is_some_and(|real| glob.matches(real))
    }
}

/// Characters that some server reads as a separator or a dot, drops, or ends the text at.
fn is_tricky(c: char) -> bool {
    matches!(
        c,
        '\\' | '\u{ff0f}' | '\u{2044}' | '\u{2215}' | '\u{29f8}' | '\u{ff0e}' | '\u{2024}'
            ..='\u{2026}' | '\u{fe52}' | '\u{ff3c}' | '\u{fe68}' | '\u{2216}' | '\u{29f5}'
    ) || c.is_control()
        || super::name::is_hidden(c)
}

fn has_escape(text: &str) -> bool {
    let hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = text.as_bytes();
    let escape = |at: usize| bytes[at] == b'%' && hex(bytes.get(at + 1)) && hex(bytes.get(at + 2));
    (0..bytes.len()).any(escape)
}

/// Decoded once; `None` when that makes a separator, a second escape or no text.
pub(super) fn percent_decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let pair = text.get(at + 1..at + 3)?;
            let byte = u8::from_str_radix(pair, 16).ok()?;
            if byte == b'/' || byte == b'%' || !pair.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            decoded.push(byte);
            at += 3;
        } else {
            decoded.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stay_within_a_name_and_two_do_not() {
        let table = [
            ("/work/**", "/work/a/b", true),
            ("/work/**", "/work", true),
            ("/work/**", "/workers/a", false),
            ("/work/*", "/work/a", true),
            ("/work/*", "/work/a/b", false),
            ("/**/x.txt", "/a/b/x.txt", true),
            ("/a/**/b/**/c", "/a/b/b/c", true),
            ("/a/**/b/**/c", "/a/c", false),
            ("/", "/", true),
            ("/", "/a", false),
        ];
        for (pattern, path, want) in table {
            let glob = PathGlob::parse(pattern).unwrap();
            assert_eq!(glob.matches(path), want, "{pattern} {path}");
            assert_eq!(glob.to_string(), pattern);
        }
        for text in ["work/**", "", "/a//b", "/a/../b", "/a/**b", "/./a"] {
            assert!(PathGlob::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn covering_is_by_form() {
        let covers = |a: &str, b: &str| {
            PathGlob::parse(a)
                .unwrap()
                .covers(&PathGlob::parse(b).unwrap())
        };
        assert!(covers("/work/**", "/work/a/*.txt"));
        assert!(covers("/work/**", "/work/**"));
        assert!(covers("/work/**", "/work/a/**"));
        assert!(covers("/**", "/work/**"));
        assert!(!covers("/work/*", "/work/**"));
        assert!(!covers("/work/a/**", "/work/**"));
        assert!(covers("/a/*", "/a/*.txt"));
        assert!(!covers("/a/*.txt", "/a/*"));
    }

    #[test]
    fn tricks_with_paths_are_seen_through_or_unclear() {
        let work = PathGlob::parse("/work/**").unwrap();
        let etc = PathGlob::parse("/etc/**").unwrap();
        let plain = |text: &str| PlainPath::of(text, &Lexical);
        for text in [
            "/work/../etc/x",
            "//etc//x",
            "/./etc/x",
            "/work/../../etc/x",
            "file:///etc/x",
            "file:///etc/%78",
        ] {
            let path = plain(text).unwrap();
            assert!(path.maybe(&etc) && !path.surely(&work), "{text}");
        }
        for text in [
            "/work/%2e%2e/etc/x",
            "/work/..\\etc",
            "etc/x",
            "~/x",
            "/work/\u{200b}x",
            " /work/x",
            "/work/x ",
            "/work/\u{ff0e}\u{ff0e}/x",
            "/work\u{ff0f}x",
            "/work/x\0",
            "/work/x\n",
            "",
            "file:///work/%2e%2e%2fetc",
            "http://x/work",
        ] {
            assert_eq!(plain(text), None, "{text:?}");
        }
        assert!(plain("/work/a b").unwrap().surely(&work));
        // Lexically within, but what it climbs out of may be a link.
        assert!(!plain("/work/link/../x").unwrap().surely(&work));
    }

    #[test]
    fn links_count_where_they_lead() {
        struct Linked;
        impl Paths for Linked {
            fn base(&self) -> Option<&str> {
                Some("/work")
            }
            fn real(&self, path: &str) -> Option<String> {
                Some(path.replace("/work/link", "/etc"))
            }
        }
        let (work, etc) = (
            PathGlob::parse("/work/**").unwrap(),
            PathGlob::parse("/etc/**").unwrap(),
        );
        let path = PlainPath::of("link/passwd", &Linked).unwrap();
        assert!(path.maybe(&etc) && path.maybe(&work) && !path.surely(&work));
        assert!(PlainPath::of("sub/x", &Linked).unwrap().surely(&work));
    }
}
