//! Parts of a capability file as its author wrote them, for a file that is made from it: what it says of secrets or models can't
//! be seen in a run, and would lose its comments and its sense if it were spelled anew.

/// A part of a file, and what to say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedText {
    /// Its lines, indented as at the top of a file.
    pub lines: Vec<String>,
    /// What stands before it, as a comment.
    pub why: String,
}

/// The text of a capability file in YAML.
#[derive(Clone, Debug)]
pub struct DocumentText<'a> {
    lines: Vec<&'a str>,
}

impl<'a> DocumentText<'a> {
    /// Takes it apart. Whether it is a capability file is for others to say.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        Self {
            lines: text.lines().collect(),
        }
    }

    /// What the file says under one of its own keys, where that begins a line.
    #[must_use]
    pub fn section(&self, key: &str) -> Option<Vec<String>> {
        let is_key = |line: &&str| {
            let rest = line
                .strip_prefix(key)
                .and_then(|rest| rest.strip_prefix(':'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
        };
        let start = self.lines.iter().position(is_key)?;
        let (first, rest) = self.lines.get(start..)?.split_first()?;
        let is_inside = |line: &&&str| {
            let is_item = **line == "-" || line.starts_with("- ");
            is_item || line.is_empty() || line.starts_with([' ', '\t', '#'])
        };
        let body = rest.iter().take_while(is_inside);
        Some(trimmed([*first].into_iter().chain(body.copied())))
    }

    /// The item of a list that begins in a line, counted from 1.
    #[must_use]
    pub fn item(&self, line: u32) -> Option<Vec<String>> {
        let start = usize::try_from(line).ok()?.checked_sub(1)?;
        let (first, rest) = self.lines.get(start..)?.split_first()?;
        let indent = indentation(first);
        if !first.get(indent..)?.starts_with("- ") {
            return None;
        }
        let is_inside = |line: &&&str| line.trim().is_empty() || indentation(line) > indent;
        let body = rest.iter().take_while(is_inside);
        let lines = [*first].into_iter().chain(body.copied());
        let without = lines.map(|line| line.get(indent..).unwrap_or_default());
        Some(trimmed(without))
    }
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Without empty lines and comments at the end: they are about what follows.
fn trimmed<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut lines: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
    let is_idle = |line: &String| line.is_empty() || line.starts_with('#');
    while lines.last().is_some_and(is_idle) {
        lines.pop();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# mine\nextends: moderate\nsecrets:\n- name: a   # why\n  env: A\n\n# next\nllm: {on_budget: refuse}\n\
        network_egress_rules:\n  - {domain: x}\n  - domain: y\n    http:\n      paths: [/a]\n  # z\n  - domain: z\nsecretsX: 1\n";

    #[test]
    fn parts_are_what_was_written() {
        let text = DocumentText::new(TEXT);
        let section = |key: &str| text.section(key).map(|lines| lines.join("|"));
        assert_eq!(section("extends").as_deref(), Some("extends: moderate"));
        assert_eq!(
            section("secrets").as_deref(),
            Some("secrets:|- name: a   # why|  env: A")
        );
        assert_eq!(section("llm").as_deref(), Some("llm: {on_budget: refuse}"));
        assert_eq!(section("mcp"), None);
        let item = |line: u32| text.item(line).map(|lines| lines.join("|"));
        assert_eq!(item(10).as_deref(), Some("- {domain: x}"));
        assert_eq!(
            item(11).as_deref(),
            Some("- domain: y|  http:|    paths: [/a]")
        );
        for line in [0, 1, 12, 99] {
            assert_eq!(item(line), None, "{line}");
        }
    }
}
