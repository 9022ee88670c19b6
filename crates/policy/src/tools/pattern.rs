//! Which tools, prompts and resources a rule is about.

use std::fmt;

use serde::{Serialize, Serializer};

use super::path::percent_decoded;
use super::{Glob, InvalidPathGlob, Lexical, PathGlob};
use crate::tools::path::PlainPath;

/// Which tools a rule is about: `server:tool`, with `*` for any characters in either part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolPattern {
    server: Glob,
    tool: Glob,
}

/// Why a text names no tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToolPattern {
    /// No `server:` in front.
    #[error("a tool is named without its server")]
    NoServer,
    /// A character that no name has.
    #[error("a tool's name has a character in it that no tool's name has")]
    Character,
    /// A third part where none is read.
    #[error("a path is accepted only in what is blocked")]
    Path,
    /// A third part that is no pattern of paths.
    #[error(transparent)]
    Glob(#[from] InvalidPathGlob),
}

impl InvalidToolPattern {
    /// What to write instead.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::NoServer | Self::Character => {
                "write `server:tool`, with `*` for any characters, e.g. `files:read_*`"
            }
            Self::Path => {
                "write a rule: tool: \"files:write\", arguments: [{at: /path, glob: \"/work/**\"}]"
            }
            Self::Glob(invalid) => invalid.hint(),
        }
    }
}

impl ToolPattern {
    /// Reads `server:tool`.
    ///
    /// # Errors
    /// When the text is none; see [`InvalidToolPattern`].
    pub fn parse(text: &str) -> Result<Self, InvalidToolPattern> {
        let (server, tool) = text.split_once(':').ok_or(InvalidToolPattern::NoServer)?;
        if server.is_empty() || tool.is_empty() {
            return Err(InvalidToolPattern::NoServer);
        }
        if tool.contains(':') {
            return Err(InvalidToolPattern::Path);
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '*');
        if !server.chars().chain(tool.chars()).all(plain) {
            return Err(InvalidToolPattern::Character);
        }
        Ok(Self {
            server: Glob::new(server),
            tool: Glob::new(tool),
        })
    }

    /// Whether it is about this tool of this server.
    #[must_use]
    pub fn matches(&self, server: &str, tool: &str) -> bool {
        self.server.matches(server) && self.tool.matches(tool)
    }

    /// The part before the colon.
    pub(super) fn server(&self) -> &str {
        self.server.as_str()
    }

    /// Whether every tool of `other` is one of this pattern's.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.server.covers(&other.server) && self.tool.covers(&other.tool)
    }

    /// Whether some tool is of both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.server.overlaps(&other.server) && self.tool.overlaps(&other.tool)
    }
}

impl fmt::Display for ToolPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.tool)
    }
}

/// What is blocked: tools, or calls of them with a path among their arguments: `server:tool:/etc/*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockedTool {
    /// Which tools.
    pub tool: ToolPattern,
    /// Only where an argument is one of these paths.
    pub path: Option<PathGlob>,
}

impl BlockedTool {
    /// Reads `server:tool` or `server:tool:/path`. A final `/*` of the path is everything below it.
    ///
    /// # Errors
    /// When the text is neither; see [`InvalidToolPattern`].
    pub fn parse(text: &str) -> Result<Self, InvalidToolPattern> {
        let mut parts = text.splitn(3, ':');
        let (Some(server), Some(tool), path) = (parts.next(), parts.next(), parts.next()) else {
            return Err(InvalidToolPattern::NoServer);
        };
        Ok(Self {
            tool: ToolPattern::parse(&format!("{server}:{tool}"))?,
            path: path.map(PathGlob::parse_wide).transpose()?,
        })
    }

    /// Whether everything `other` blocks this blocks.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let path = match (&self.path, &other.path) {
            (None, _) => true,
            (Some(own), Some(theirs)) => own.covers(theirs),
            (Some(_), None) => false,
        };
        path && self.tool.covers(&other.tool)
    }
}

impl fmt::Display for BlockedTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}:{path}", self.tool),
            None => self.tool.fmt(f),
        }
    }
}

/// Which resources: `server:uri`. A `file:///` address is a pattern of paths; in others `*` is any characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourcePattern {
    server: Glob,
    uri: UriGlob,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum UriGlob {
    File(PathGlob),
    Other(Glob),
}

impl ResourcePattern {
    /// Reads `server:uri`.
    ///
    /// # Errors
    /// When the text is none; see [`InvalidToolPattern`].
    pub fn parse(text: &str) -> Result<Self, InvalidToolPattern> {
        let (server, uri) = text.split_once(':').ok_or(InvalidToolPattern::NoServer)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '*');
        if server.is_empty() || uri.is_empty() {
            return Err(InvalidToolPattern::NoServer);
        }
        if !server.chars().all(plain) || uri.chars().any(char::is_control) {
            return Err(InvalidToolPattern::Character);
        }
        let uri = match uri.strip_prefix("file://") {
            Some(path) => UriGlob::File(PathGlob::parse(path)?),
            None => UriGlob::Other(Glob::new(uri)),
        };
        Ok(Self {
            server: Glob::new(server),
            uri,
        })
    }

    /// The part before the colon.
    pub(super) fn server(&self) -> &str {
        self.server.as_str()
    }

    /// Whether the resource is certainly one of the pattern's.
    pub(super) fn surely(&self, server: &str, uri: &str) -> bool {
        self.server.matches(server)
            && match &self.uri {
                UriGlob::File(glob) => {
                    is_file(uri)
                        && PlainPath::of(uri, &Lexical).is_some_and(|path| path.surely(glob))
                }
                // `*` alone is every address, of files too.
                UriGlob::Other(glob) if glob.as_str() == "*" => true,
                UriGlob::Other(glob) => !is_file(uri) && is_plain_uri(uri) && glob.matches(uri),
            }
    }

    /// Whether it may be one of the pattern's.
    pub(super) fn maybe(&self, server: &str, uri: &str) -> bool {
        self.server.matches(server)
            && match &self.uri {
                UriGlob::File(glob) => {
                    is_file(uri) && PlainPath::of(uri, &Lexical).is_none_or(|path| path.maybe(glob))
                }
                UriGlob::Other(glob) => !is_plain_uri(uri) || glob.matches(uri),
            }
    }

    /// Whether every resource of `other` is one of this pattern's.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.server.covers(&other.server)
            && match (&self.uri, &other.uri) {
                (UriGlob::File(own), UriGlob::File(theirs)) => own.covers(theirs),
                (UriGlob::Other(own), UriGlob::Other(theirs)) => own.covers(theirs),
                (UriGlob::Other(own), UriGlob::File(_)) => own.as_str() == "*",
                (UriGlob::File(_), UriGlob::Other(_)) => false,
            }
    }
}

/// Schemes have no case.
fn is_file(uri: &str) -> bool {
    uri.get(..5)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"))
}

/// Whether an address is read in one way: no climbing, hidden characters, or escapes of what parts it.
fn is_plain_uri(uri: &str) -> bool {
    let climbs = |text: &str| {
        text.split(['/', '?', '#'])
            .any(|part| part == ".." || part == ".")
    };
    let plain = |text: &str| {
        !climbs(text)
            && !text.contains('\\')
            && !text
                .chars()
                .any(|c| c.is_control() || super::name::is_hidden(c))
    };
    plain(uri) && percent_decoded(uri).is_some_and(|decoded| plain(&decoded))
}

impl fmt::Display for ResourcePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.uri {
            UriGlob::File(path) => write!(f, "{}:file://{path}", self.server),
            UriGlob::Other(glob) => write!(f, "{}:{glob}", self.server),
        }
    }
}

macro_rules! as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}
as_text!(ToolPattern, BlockedTool, ResourcePattern, PathGlob, Glob);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_strictly() {
        for text in ["execute", ":x", "x:", "*", "a:b c", "a:b:/c", "a:\u{435}"] {
            assert!(ToolPattern::parse(text).is_err(), "{text}");
        }
        for text in ["a:b*", "*:x", "*:*", "files:read_*"] {
            assert_eq!(ToolPattern::parse(text).unwrap().to_string(), text);
        }
        assert!(BlockedTool::parse("fs:write:etc").is_err());
        assert_eq!(
            BlockedTool::parse("fs:write:/etc/*").unwrap().to_string(),
            "fs:write:/etc/**"
        );
    }

    #[test]
    fn a_resource_is_matched_in_its_plain_spelling() {
        let files = ResourcePattern::parse("files:file:///work/**").unwrap();
        for uri in ["file:///work/a", "file:///work/a%20b"] {
            assert!(files.surely("files", uri), "{uri}");
        }
        for uri in [
            "file:///etc/x",
            "file:///work/../etc/x",
            "file:///work/%2e%2e%2fetc",
            "http://x/work",
            "file:///work/%252e",
        ] {
            assert!(!files.surely("files", uri), "{uri}");
        }
        assert!(!files.surely("other", "file:///work/a"));
        let etc = ResourcePattern::parse("*:file:///etc/**").unwrap();
        for uri in [
            "file:///etc/x",
            "FILE:///etc/x",
            "file:///work/..%2fetc/x",
            "file:////etc//x",
        ] {
            assert!(etc.maybe("files", uri), "{uri}");
        }
        let web = ResourcePattern::parse("web:https://a.example/*").unwrap();
        assert!(web.surely("web", "https://a.example/x/y"));
        assert!(!web.surely("web", "https://a.example/x/../y"));
        assert!(!web.surely("web", "https://b.example/"));
    }
}
