//! A file of settings as git itself reads it (`git_parse_source` in its `config.c`): comments, quotes, backslashes, lines that
//! go on. Where git gives up on a file it uses nothing of it; what was read before is told all the same.

use super::Setting;

/// All settings of a file.
pub(super) fn as_git(text: &[u8]) -> Vec<Setting> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut file = File { text, at: 0 };
    let mut found = Vec::new();
    let mut section = String::new();
    while let Some(byte) = file.next() {
        match byte {
            b'#' | b';' => file.skip_line(),
            b'[' => match file.header() {
                Some(name) => section = name,
                None => return found,
            },
            byte if byte.is_ascii_alphabetic() => match file.setting(byte) {
                Some((key, value)) => found.push(Setting {
                    section: section.clone(),
                    key,
                    value,
                }),
                None => return found,
            },
            byte if is_space(byte) => {}
            _ => return found,
        }
    }
    found
}

struct File<'t> {
    text: &'t [u8],
    at: usize,
}

impl File<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = *self.text.get(self.at)?;
        self.at += 1;
        if byte == b'\r' && self.text.get(self.at) == Some(&b'\n') {
            self.at += 1;
            return Some(b'\n');
        }
        Some(byte)
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|byte| byte != b'\n') {}
    }

    /// The first word of a header whose bracket was read.
    fn header(&mut self) -> Option<String> {
        let mut name = String::new();
        loop {
            match self.next()? {
                b']' => break,
                byte if is_space(byte) => {
                    self.subsection()?;
                    break;
                }
                byte if is_of_key(byte) || byte == b'.' => name.push(char::from(byte)),
                _ => return None,
            }
        }
        let word = name.split('.').next().unwrap_or_default();
        Some(word.to_ascii_lowercase())
    }

    /// The part of a header that stands in quotes, with the closing bracket.
    fn subsection(&mut self) -> Option<()> {
        loop {
            match self.next()? {
                b'"' => break,
                b'\n' => return None,
                byte if is_space(byte) => {}
                _ => return None,
            }
        }
        loop {
            match self.next()? {
                b'\n' => return None,
                b'"' => return (self.next()? == b']').then_some(()),
                b'\\' => {
                    self.next().filter(|byte| *byte != b'\n')?;
                }
                _ => {}
            }
        }
    }

    /// A setting whose first character was read. One without a value counts as `true`.
    fn setting(&mut self, first: u8) -> Option<(String, Vec<u8>)> {
        let mut key = String::from(char::from(first.to_ascii_lowercase()));
        let mut next = self.next();
        while let Some(byte) = next.filter(|byte| is_of_key(*byte)) {
            key.push(char::from(byte.to_ascii_lowercase()));
            next = self.next();
        }
        while matches!(next, Some(b' ' | b'\t')) {
            next = self.next();
        }
        match next {
            None | Some(b'\n') => Some((key, b"true".to_vec())),
            Some(b'=') => Some((key, self.value()?)),
            Some(_) => None,
        }
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        // How much of it is there without the spaces that it may end with.
        let mut length = 0;
        let mut is_quoted = false;
        loop {
            let byte = match self.next() {
                None | Some(b'\n') if is_quoted => return None,
                None | Some(b'\n') => break,
                Some(byte) => byte,
            };
            match byte {
                byte if is_space(byte) && !is_quoted => {
                    if !value.is_empty() {
                        value.push(byte);
                    }
                    continue;
                }
                b'#' | b';' if !is_quoted => {
                    self.skip_line();
                    break;
                }
                b'\\' => match self.next()? {
                    b'\n' => continue,
                    b't' => value.push(b'\t'),
                    b'b' => value.push(8),
                    b'n' => value.push(b'\n'),
                    byte @ (b'\\' | b'"') => value.push(byte),
                    _ => return None,
                },
                b'"' => is_quoted = !is_quoted,
                byte => value.push(byte),
            }
            length = value.len();
        }
        value.truncate(length);
        Some(value)
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_of_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_git_reads_them() {
        for (text, value) in [
            ("[a]b=c", Some("c")),
            ("[a] b = c d \r\n", Some("c d")),
            ("[a \"x\\\"]\"] b = \"c # d\" # e\n", Some("c # d")),
            ("[a]\nb = c\\\n  d\n", Some("c  d")),
            ("[a]\nb = c # \\\nd = e\n", Some("c")),
            ("[a]\nb = c\\\\\nd = e\n", Some("c\\")),
            ("[a]\nb\n", Some("true")),
            ("\u{feff}[a]\nb = \"\"", Some("")),
            // Git dies of these.
            ("[a]\nb = \"c\n", None),
            ("[a]\nb = c\\d\n", None),
            ("[a]\nb c\n", None),
            ("[a\nb = c\n", None),
        ] {
            let first = as_git(text.as_bytes()).into_iter().next();
            let found = first.map(|setting| {
                assert_eq!((&*setting.section, &*setting.key), ("a", "b"), "{text:?}");
                String::from_utf8(setting.value).expect("text")
            });
            assert_eq!(found.as_deref(), value, "{text:?}");
        }
    }

    /// What git itself says, where there is one to ask.
    #[test]
    fn git_says_the_same() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("config");
        for text in [
            "[core]\nx = y # \\\nfsmonitor = p\n",
            "[core]\nx = y\\\\\nfsmonitor = p\n",
            "[core]\nx = y \\\nfsmonitor = p\n",
            "[core \"b\\\\\"]x=1\n[core]fsmonitor=p ; x\\\n",
            "[CORE]\n\tFSMONITOR\t=\t\"p q\"r \\\n s\n",
            "[core]\nfsmonitor = p\\tq\\n\n",
        ] {
            std::fs::write(&file, text).expect("write");
            let mut git = std::process::Command::new("git");
            git.args(["config", "--null", "-f"]).arg(&file);
            let Ok(said) = git.args(["--get", "core.fsmonitor"]).output() else {
                return;
            };
            let mut settings = as_git(text.as_bytes()).into_iter();
            let ours = settings.find(|setting| setting.key == "fsmonitor");
            let ours = ours.map(|setting| [&setting.value[..], b"\0"].concat());
            assert_eq!(ours.unwrap_or_default(), said.stdout, "{text:?}");
        }
    }
}
