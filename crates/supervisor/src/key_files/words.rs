//! Files that a start-up file names, as far as that can be told without running it: the words of a shell's, with the home
//! directory, defaults and what the file itself assigns put in. What can't be known stands for anything.

use std::collections::HashMap;

/// What can't be known.
const ANYTHING: char = '*';
/// How many values of one variable are kept, and how many words may come of one.
const VALUES: usize = 16;
/// So long is what stands in brackets.
const LONGEST: usize = 4096;
/// How deep defaults lie in defaults.
const LEVELS: usize = 4;

/// A path that a file names, perhaps with [`ANYTHING`] in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) path: String,
    /// It is behind `.` or `source`.
    pub(super) is_run: bool,
}

/// What is known of where a file is read.
pub(super) struct Around<'a> {
    pub(super) home: &'a str,
    /// The file's own directory.
    pub(super) own: &'a str,
}

/// What a text names: absolute paths, and relative ones that are run, from each directory that the text goes to.
pub(super) fn named_in(text: &str, around: &Around<'_>, most: usize) -> Vec<Named> {
    let mut words = split(text, true);
    words.push(END.to_owned());
    // Within quotes there may be a command, or a name with a space.
    words.extend(split(text, false));
    let mut reader = Reader {
        around,
        values: HashMap::new(),
        places: vec![around.home.to_owned(), around.own.to_owned()],
    };
    for known in [
        ("HOME", ""),
        ("ZDOTDIR", ""),
        ("XDG_CONFIG_HOME", "/.config"),
    ] {
        let value = format!("{}{}", around.home, known.1);
        reader.values.insert(known.0.to_owned(), vec![value]);
    }
    reader.learn(&words);
    reader.read(&words, most)
}

/// The end of a command.
const END: &str = "\n";

struct Reader<'a> {
    around: &'a Around<'a>,
    values: HashMap<String, Vec<String>>,
    /// Where a relative path may be meant to begin.
    places: Vec<String>,
}

impl Reader<'_> {
    /// What the text assigns, and where it goes.
    fn learn(&mut self, words: &[String]) {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if let Some((name, value)) = word.split_once('=')
                && is_name(name)
            {
                self.add(name, value);
            } else if word == "for" || word == "foreach" {
                let Some(name) = words.next().filter(|name| is_name(name)) else {
                    continue;
                };
                for value in words.by_ref().take_while(|word| *word != END) {
                    self.add(name, value);
                }
            } else if matches!(word.as_str(), "cd" | "pushd") {
                for place in words
                    .next()
                    .map(|to| self.expand(to, 0))
                    .unwrap_or_default()
                {
                    if place.starts_with('/') && self.places.len() < VALUES {
                        self.places.push(place);
                    }
                }
            }
        }
    }

    fn add(&mut self, name: &str, value: &str) {
        for value in self.expand(value, 0) {
            let known = self.values.entry(name.to_owned()).or_default();
            if known.len() < VALUES && !known.contains(&value) {
                known.push(value);
            }
        }
    }

    fn read(&self, words: &[String], most: usize) -> Vec<Named> {
        let mut named = Vec::new();
        let mut is_run = false;
        for word in words {
            let value = word.rsplit_once('=').map_or(&**word, |(_, value)| value);
            for whole in self.expand(value, 0) {
                // Lists of paths, and `--option=path`.
                for path in whole.split([':', ',']).chain([&*whole]) {
                    let paths = match path.starts_with('/') {
                        true => vec![path.to_owned()],
                        false if is_run && !path.is_empty() && path != "*" => {
                            let from = |place: &String| format!("{place}/{path}");
                            self.places.iter().map(from).collect()
                        }
                        false => Vec::new(),
                    };
                    let paths = paths.into_iter().map(|path| Named { path, is_run });
                    named.extend(paths.filter(|named| named.path.len() < 4096));
                    if named.len() >= most {
                        return named;
                    }
                }
            }
            is_run = matches!(word.as_str(), "." | "source");
        }
        named.sort_by(|a, b| (&a.path, b.is_run).cmp(&(&b.path, a.is_run)));
        named.dedup_by(|a, b| a.path == b.path);
        named
    }

    /// All that a word may come to.
    fn expand(&self, word: &str, level: usize) -> Vec<String> {
        let mut found = vec![String::new()];
        let mut rest = word;
        if let Some(below) = rest.strip_prefix('~')
            && (below.is_empty() || below.starts_with('/'))
        {
            found = vec![self.around.home.to_owned()];
            rest = below;
        }
        while let Some(at) = rest.find(['$', '{']) {
            let (plain, special) = rest.split_at(at);
            found.iter_mut().for_each(|word| word.push_str(plain));
            let (values, after) = self.special(special, found == [""], level);
            found = found
                .iter()
                .flat_map(|word| values.iter().map(move |value| format!("{word}{value}")))
                .take(VALUES)
                .collect();
            rest = after;
        }
        found.iter_mut().for_each(|word| word.push_str(rest));
        found
    }

    /// What stands for a variable or a list in braces, at whose beginning a text is, and what is behind it.
    fn special<'t>(&self, text: &'t str, is_first: bool, level: usize) -> (Vec<String>, &'t str) {
        let unknown = |after: &str| match is_first && (after.is_empty() || after.starts_with('/')) {
            // Mostly it is the file's own directory, however it is found out.
            true => vec![self.around.own.to_owned()],
            false => vec![ANYTHING.to_string()],
        };
        if let Some((inner, after)) = text
            .strip_prefix('{')
            .and_then(|rest| closed(rest, '{', '}'))
        {
            return match inner.contains(',') && level < LEVELS {
                true => {
                    let parts = inner
                        .split(',')
                        .flat_map(|part| self.expand(part, level + 1));
                    (parts.take(VALUES).collect(), after)
                }
                false => (vec![ANYTHING.to_string()], after),
            };
        }
        if let Some((_, after)) = text
            .strip_prefix("$(")
            .and_then(|rest| closed(rest, '(', ')'))
        {
            return (unknown(after), after);
        }
        if let Some((inner, after)) = text
            .strip_prefix("${")
            .and_then(|rest| closed(rest, '{', '}'))
        {
            let end = inner.find(|c: char| !is_of_name(c)).unwrap_or(inner.len());
            let (name, operator) = inner.split_at(end);
            let mut values = self.values.get(name).cloned().unwrap_or_default();
            let default = operator.trim_start_matches(':');
            if let Some(default) = default.strip_prefix(['-', '=']).filter(|_| level < LEVELS) {
                values.extend(self.expand(default, level + 1));
            }
            return match values.is_empty() {
                true => (unknown(after), after),
                false => (values, after),
            };
        }
        let Some(rest) = text.strip_prefix('$') else {
            return (vec![String::new()], text.get(1..).unwrap_or_default());
        };
        let end = rest.find(|c: char| !is_of_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        match self.values.get(name) {
            Some(values) => (values.clone(), after),
            None if name.is_empty() => (vec![ANYTHING.to_string()], after),
            None => (unknown(after), after),
        }
    }
}

/// What is before the bracket that closes one, and what is behind it.
fn closed(text: &str, opens: char, closes: char) -> Option<(&str, &str)> {
    let mut depth = 1usize;
    for (at, c) in text.char_indices().take_while(|(at, _)| *at < LONGEST) {
        if c == opens {
            depth += 1;
        } else if c == closes {
            depth -= 1;
        }
        if depth == 0 {
            return Some((text.get(..at)?, text.get(at + c.len_utf8()..)?));
        }
    }
    None
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(is_of_name)
        && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// The words of a text, with [`END`] where a command ends. What is in quotes is one word, or as many as it looks like. What is
/// run to make a word is a part of it, and a text of its own.
fn split(text: &str, quotes_hold: bool) -> Vec<String> {
    let mut words = Vec::new();
    let mut inner = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(c) = rest.chars().next() else { break };
        at += c.len_utf8();
        let brackets = [("${", '{', '}'), ("$(", '(', ')')];
        let bracketed = brackets.iter().find_map(|(start, opens, closes)| {
            let (inside, _) = closed(rest.strip_prefix(start)?, *opens, *closes)?;
            Some((
                start.len() + inside.len() + closes.len_utf8(),
                inside,
                *opens,
            ))
        });
        match c {
            '$' if quote != Some('\'') && bracketed.is_some() => {
                if let Some((length, inside, opens)) = bracketed {
                    let whole = rest.get(..length).unwrap_or_default();
                    word.extend(whole.chars().filter(|c| !matches!(c, '\'' | '"')));
                    if opens == '(' {
                        inner.push(inside);
                    }
                    at += length - 1;
                }
            }
            // An apostrophe in it is no quote.
            '#' if quotes_hold && quote.is_none() && word.is_empty() => {
                at += rest.find('\n').unwrap_or(rest.len()).saturating_sub(1);
            }
            '\'' | '"' if !quotes_hold => end_word(&mut words, &mut word),
            '\'' | '"' if quote.is_none() => quote = Some(c),
            c if quote == Some(c) => quote = None,
            '\\' if quote != Some('\'') => {
                let escaped = text.get(at..).and_then(|rest| rest.chars().next());
                at += escaped.map_or(0, char::len_utf8);
                word.extend(escaped.filter(|c| *c != '\n'));
            }
            c if quote.is_some() => word.push(c),
            '\n' | ';' | '|' | '&' => {
                end_word(&mut words, &mut word);
                words.push(END.to_owned());
            }
            c if c.is_whitespace() || "()<>`[]".contains(c) => end_word(&mut words, &mut word),
            c => word.push(c),
        }
    }
    end_word(&mut words, &mut word);
    for text in inner {
        words.push(END.to_owned());
        words.extend(split(text, quotes_hold));
    }
    words
}

fn end_word(words: &mut Vec<String>, word: &mut String) {
    if !word.is_empty() {
        words.push(std::mem::take(word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_start_up_file_runs_is_found_however_it_is_named() {
        let around = Around {
            home: "/h",
            own: "/h/own",
        };
        for (text, wanted) in [
            (". ~/x", "/h/x"),
            (". $HOME/x", "/h/x"),
            (". \"$HOME/x\"", "/h/x"),
            (". ${HOME}/x", "/h/x"),
            (". \"${HOME}\"/x", "/h/x"),
            (". \"${HOME}/a b/x\"", "/h/a b/x"),
            (". ~/a\\ b/x", "/h/a b/x"),
            ("source ${XDG_CONFIG_HOME:-$HOME/.conf}/x", "/h/.conf/x"),
            ("source \"${ZDOTDIR:-${HOME}}/x\"", "/h/x"),
            (". ${A-~/b}/x", "/h/b/x"),
            ("d=~/c; . $d/x", "/h/c/x"),
            ("d=$HOME/c\nf=\"$d/x\"\n[ -f \"$f\" ] && . \"$f\"", "/h/c/x"),
            ("for f in ~/a/*.sh; do . $f; done", "/h/a/*.sh"),
            ("for d in p q; do . ~/$d/x; done", "/h/q/x"),
            ("cd ~/d && . ./x", "/h/d/./x"),
            ("(cd ~/d; . x)", "/h/d/x"),
            (". ~/{a,b}/x", "/h/b/x"),
            (". ~/$UNKNOWN/x", "/h/*/x"),
            (". ${0:h}/x", "/h/own/x"),
            (". \"$(dirname \"$0\")/x\"", "/h/own/x"),
            (". ${BASH_SOURCE%/*}/x", "/h/own/x"),
            ("eval \"$(cat ~/x)\"", "/h/x"),
            ("export K=`cat ~/x`", "/h/x"),
            ("export K=$(< \"$HOME/x\")", "/h/x"),
            ("# don't\n. \"${HOME}\"/x", "/h/x"),
            ("alias k='. ~/x'", "/h/x"),
            ("K_FILE=~/x", "/h/x"),
            ("tool --file=~/x,/a/b", "/a/b"),
            (". x", "/h/x"),
        ] {
            let named = named_in(text, &around, 100);
            assert!(
                named.iter().any(|named| named.path == wanted),
                "{text}: {named:?}"
            );
        }
    }

    /// A prompt, as Debian's own start-up file has it: nothing in it is a path.
    #[test]
    fn what_begins_with_something_unknown_is_no_path() {
        let around = Around {
            home: "/h",
            own: "/h",
        };
        for text in [
            r"PS1='${debian_chroot:+($debian_chroot)}\[\033[01;32m\]\u@\h\[\033[00m\]:\[\033[01;34m\]\w\$ '",
            r#"PS1="\[\e]0;${debian_chroot:+($debian_chroot)}\u@\h: \w\a\]$PS1""#,
            "export PATH=\"$PYENV_ROOT:$PATH\"",
        ] {
            let named = named_in(text, &around, 100);
            let of_home = |named: &&Named| named.path.starts_with("/h") && named.path != "/h";
            assert!(!named.iter().any(|named| of_home(&named)), "{named:?}");
        }
    }

    #[test]
    fn no_text_is_too_much() {
        let around = Around {
            home: "/h",
            own: "/h",
        };
        for text in [
            "${".repeat(500),
            "$(".repeat(500),
            "{a,".repeat(500),
            "a=$a$a$a; ".repeat(200),
            ". ${a:-${b:-${c:-${d:-${e:-${f:-g}}}}}}".to_owned(),
            "'\"\\".to_owned(),
            ". ~/\u{fffd}é${é}".to_owned(),
        ] {
            assert!(named_in(&text, &around, 100).len() <= 200, "{text:.20}");
        }
    }
}
