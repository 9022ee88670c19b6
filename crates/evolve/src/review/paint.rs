//! A dossier as text for a terminal, and as a page by itself. What an agent wrote is shown and never obeyed.

use std::fmt::Write as _;

use super::dossier::{DiffLine, Dossier, FileChange, Kind};
use super::findings::{counted, risk_lines, until};
use super::standing::Standing;
use crate::evidence::{StageResult, Verdict};
use crate::proposal::Risk;

/// Whether a terminal shows colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// It does.
    On,
    /// It does not, or somebody asked for none.
    Off,
}

/// A part of a line of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tint {
    Plain,
    Keyword,
    Text,
    Comment,
    Number,
}

const KEYWORDS: &[&str] = &[
    "and", "as", "assert", "async", "await", "break", "class", "const", "continue", "def", "del",
    "elif", "else", "enum", "except", "export", "extends", "finally", "fn", "for", "from",
    "function", "if", "impl", "import", "in", "is", "lambda", "let", "loop", "match", "mod", "mut",
    "new", "not", "or", "pass", "pub", "raise", "return", "self", "static", "struct", "throw",
    "trait", "try", "type", "unsafe", "use", "var", "where", "while", "with", "yield",
];

/// Cuts a line into parts of one colour: keywords, texts, comments, numbers. Enough for a reader; no parser.
pub(super) fn tints(line: &str, comment: &str) -> Vec<(Tint, String)> {
    let mut parts: Vec<(Tint, String)> = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let (tint, length) = if !comment.is_empty() && rest.starts_with(comment) {
            (Tint::Comment, rest.len())
        } else if matches!(first, '"' | '\'' | '`') {
            (Tint::Text, text_length(rest, first))
        } else if first.is_alphanumeric() || first == '_' {
            let length = rest
                .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                .unwrap_or(rest.len());
            let word = &rest[..length];
            let tint = match word {
                _ if KEYWORDS.contains(&word) => Tint::Keyword,
                _ if first.is_ascii_digit() => Tint::Number,
                _ => Tint::Plain,
            };
            (tint, length)
        } else {
            (Tint::Plain, first.len_utf8())
        };
        let (part, after) = rest.split_at(length);
        match parts.last_mut() {
            Some((last, text)) if *last == tint => text.push_str(part),
            _ => parts.push((tint, part.to_owned())),
        }
        rest = after;
    }
    parts
}

/// How long a text in quotes is, with its quotes; to the end of the line if it is not closed.
fn text_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

pub(super) fn comment_of(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, end)| end) {
        Some("py" | "pyi" | "toml" | "yaml" | "yml" | "sh") => "#",
        Some("rs" | "js" | "mjs" | "ts" | "tsx" | "jsx") => "//",
        _ => "",
    }
}

/// Text that a terminal or a page shows as it is: what neither is to obey is spelled out.
fn harmless(text: &str) -> String {
    belljar_policy::harmless_text(text).replace('\t', "    ")
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail => "FAIL",
        Verdict::NotAsked => "not asked",
    }
}

fn kind(file: &FileChange) -> &'static str {
    match file.kind {
        Kind::Added => "added",
        Kind::Removed => "removed",
        Kind::Changed => "changed",
    }
}

pub(super) fn standing_words(standing: &Standing) -> Vec<String> {
    match standing {
        Standing::Approved(yes) if yes.by().is_empty() => {
            vec!["approved: this risk asks for nobody".to_owned()]
        }
        Standing::Approved(yes) => {
            let names: Vec<&str> = yes.by().iter().map(|name| name.as_str()).collect();
            vec![format!("approved by {}", names.join(", "))]
        }
        Standing::Rejected { by, reasons, text } => {
            let why: Vec<&str> = reasons.iter().map(|reason| reason.as_str()).collect();
            vec![format!(
                "rejected by {by} ({}): {}",
                why.join(", "),
                harmless(text)
            )]
        }
        Standing::Waiting { by, needed, void } => {
            let mut lines = vec![format!("{} of {needed} have approved", by.len())];
            for (who, why) in void {
                let who = who
                    .as_ref()
                    .map_or("somebody".to_owned(), ToString::to_string);
                lines.push(format!("what {who} said does not count: {why}"));
            }
            lines
        }
    }
}

pub(super) fn commands(dossier: &Dossier) -> [String; 3] {
    let id = dossier.proposal.id.short();
    let code = if dossier.subject().risk == Risk::Critical {
        " --code 123456"
    } else {
        ""
    };
    [
        format!("belljar evolve approve {id} --as NAME --key FILE{code}"),
        format!("belljar evolve reject {id} --as NAME --key FILE --reason tests --message '…'"),
        format!("belljar evolve comment {id} --as NAME --key FILE --message '…'"),
    ]
}

fn names(set: &std::collections::BTreeSet<String>) -> String {
    set.iter()
        .map(|name| harmless(name))
        .collect::<Vec<_>>()
        .join(", ")
}

fn impact_lines(dossier: &Dossier) -> Vec<String> {
    let impact = &dossier.impact;
    let mut lines = Vec::new();
    for (what, set) in [
        ("new names that others can use", &impact.api_added),
        ("names that are gone", &impact.api_removed),
        ("names declared otherwise", &impact.api_changed),
        ("files that mention them", &impact.callers),
    ] {
        if !set.is_empty() {
            lines.push(format!("{what}: {}", names(set)));
        }
    }
    if lines.is_empty() {
        lines.push("nothing that others use changes its name or its form".to_owned());
    }
    lines
}

fn stage_line(stage: &StageResult) -> String {
    let time = format!("{:.1} s", stage.duration_ms as f64 / 1000.0);
    let cached = if stage.cached {
        ", from an earlier run on the same inputs"
    } else {
        ""
    };
    format!("{time}{cached}")
}

/// The review on a terminal.
#[must_use]
pub fn text(
    dossier: &Dossier,
    standing: &Standing,
    colours: Colours,
    utc: fn(u64) -> String,
) -> String {
    let style = |code: &str, text: &str| match colours {
        Colours::On => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        Colours::Off => text.to_owned(),
    };
    let proposal = &dossier.proposal;
    let mut page = String::new();
    let mut line = |text: String| {
        page.push_str(&text);
        page.push('\n');
    };
    line(format!(
        "{}  {}",
        style("1", &format!("Proposal {}", proposal.id.short())),
        harmless(&proposal.by)
    ));
    for part in proposal.description.lines() {
        line(format!("  {}", harmless(part)));
    }
    line(format!(
        "  risk {}   project {}",
        style("1", proposal.risk.as_str()),
        harmless(&proposal.project)
    ));
    for why in risk_lines(dossier) {
        line(format!("  - {}", harmless(&why)));
    }
    for reason in proposal.reasons.iter().filter(|one| one.stage != "risk") {
        line(format!(
            "  - {}: {}",
            harmless(&reason.code),
            harmless(&reason.message)
        ));
    }
    line(format!("\n{}", style("1", "Changes")));
    for file in &dossier.files {
        line(format!(
            "\n  {} ({}, +{} -{})",
            style("1", &harmless(&file.path)),
            kind(file),
            file.added,
            file.removed
        ));
        let comment = comment_of(&file.path);
        for one in &file.lines {
            line(format!("  {}", coloured(one, comment, colours)));
        }
        if file.lines.is_empty() {
            line("  not text, or its mode alone".to_owned());
        }
        if file.cut > 0 {
            line(format!("  … {} lines more", file.cut));
        }
    }
    line(format!("\n{}", style("1", "Impact")));
    impact_lines(dossier)
        .into_iter()
        .for_each(|text| line(format!("  {text}")));
    line(format!("\n{}", style("1", "Stages")));
    for stage in &dossier.stages {
        let code = match stage.verdict {
            Verdict::Pass => "32",
            Verdict::Fail => "1;31",
            Verdict::NotAsked => "2",
        };
        let verdict = style(code, &format!("{:<9}", word(stage.verdict)));
        line(format!(
            "  {:<16} {verdict} {}",
            harmless(&stage.stage),
            stage_line(stage)
        ));
        for counted in counted(stage) {
            line(format!("      {}", harmless(&counted)));
        }
        for reason in &stage.reasons {
            let at = reason
                .at
                .as_deref()
                .map_or(String::new(), |at| format!(" at {at}"));
            line(format!(
                "      {}{}: {}",
                harmless(&reason.code),
                harmless(&at),
                harmless(&reason.message)
            ));
        }
    }
    line(format!("\n{}", style("1", "How to go back")));
    for part in dossier.rollback_plan.lines() {
        line(format!("  {}", harmless(part)));
    }
    line(format!("\n{}", style("1", "Recommendation")));
    line(format!("  {}", dossier.recommendation()));
    line(format!("\n{}", style("1", "Decision")));
    standing_words(standing)
        .into_iter()
        .chain(until(standing, utc))
        .for_each(|text| line(format!("  {text}")));
    commands(dossier)
        .into_iter()
        .for_each(|text| line(format!("    {text}")));
    page
}

fn coloured(line: &DiffLine, comment: &str, colours: Colours) -> String {
    let shown = harmless(&line.text);
    if colours == Colours::Off {
        return format!("{} {shown}", line.mark);
    }
    let ground = match line.mark {
        '+' => "32",
        '-' => "31",
        '@' => return format!("\u{1b}[36m@ {shown}\u{1b}[0m"),
        _ => "0",
    };
    let mut text = format!("\u{1b}[{ground}m{}\u{1b}[0m ", line.mark);
    for (tint, part) in tints(&shown, comment) {
        let code = match tint {
            Tint::Plain => "0",
            Tint::Keyword => "35",
            Tint::Text => "33",
            Tint::Comment => "2",
            Tint::Number => "36",
        };
        let _ = write!(text, "\u{1b}[{code}m{part}\u{1b}[0m");
    }
    text
}

fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in harmless(text).chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #8884}\
pre{overflow-x:auto;background:#8881;padding:.6rem;border-radius:.3rem}code,pre,.d{font:13px/1.5 ui-monospace,monospace}\
.d{overflow-x:auto;border:1px solid #8884;border-radius:.3rem}.d div{white-space:pre;padding:0 .6rem}.p{background:#2a72}.m{background:#c332}.a{opacity:.6}\
.k{color:#a3c}.t{color:#a60}.c{opacity:.6}.n{color:#088}.f{font-weight:bold;color:#c33}";

/// The same as a page that needs nothing else: no script, no font, no address.
#[must_use]
pub fn html(dossier: &Dossier, standing: &Standing, utc: fn(u64) -> String) -> String {
    let proposal = &dossier.proposal;
    let mut page = String::new();
    // Nothing on the page may run or be fetched, whatever gets into it.
    let _ = write!(
        page,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Proposal {id}</title><style>{STYLE}</style>\
         <h1>Proposal {id}</h1><p>by {by}, risk <strong>{risk}</strong></p><p>{description}</p>",
        id = escaped(proposal.id.short()),
        by = escaped(&proposal.by),
        risk = proposal.risk.as_str(),
        description = proposal
            .description
            .lines()
            .map(escaped)
            .collect::<Vec<_>>()
            .join("<br>"),
    );
    let items = |lines: Vec<String>| {
        lines
            .iter()
            .map(|line| format!("<li>{}", escaped(line)))
            .collect::<String>()
    };
    let _ = write!(
        page,
        "<h2>Why the risk is {}</h2><ul>{}</ul>",
        proposal.risk.as_str(),
        items(risk_lines(dossier))
    );
    page.push_str("<h2>Changes</h2>");
    for file in &dossier.files {
        let _ = write!(
            page,
            "<h3><code>{}</code> {} (+{} −{})</h3><div class=\"d\">",
            escaped(&file.path),
            kind(file),
            file.added,
            file.removed
        );
        let comment = comment_of(&file.path);
        for line in &file.lines {
            let _ = write!(page, "{}", html_line(line, comment));
        }
        page.push_str("</div>");
        if file.cut > 0 {
            let _ = write!(page, "<p>… {} lines more</p>", file.cut);
        }
    }
    let _ = write!(
        page,
        "<h2>Impact</h2><ul>{}</ul>",
        items(impact_lines(dossier))
    );
    page.push_str("<h2>Stages</h2><table><tr><th>stage<th>result<th>what was found<th>time</tr>");
    for stage in &dossier.stages {
        let refused = stage
            .reasons
            .iter()
            .map(|reason| format!("{}: {}", reason.code, reason.message));
        let found: Vec<String> = refused
            .chain(counted(stage))
            .map(|line| escaped(&line))
            .collect();
        let class = if stage.verdict == Verdict::Fail {
            " class=\"f\""
        } else {
            ""
        };
        let _ = write!(
            page,
            "<tr><td>{}<td{class}>{}<td>{}<td>{}</tr>",
            escaped(&stage.stage),
            word(stage.verdict),
            found.join("<br>"),
            escaped(&stage_line(stage))
        );
    }
    let _ = write!(
        page,
        "</table><h2>How to go back</h2><p>{}</p><h2>Recommendation</h2><p>{}</p>",
        dossier
            .rollback_plan
            .lines()
            .map(escaped)
            .collect::<Vec<_>>()
            .join("<br>"),
        escaped(&dossier.recommendation())
    );
    let _ = write!(
        page,
        "<h2>Decision</h2><ul>{}</ul>",
        items(
            standing_words(standing)
                .into_iter()
                .chain(until(standing, utc))
                .collect()
        )
    );
    for command in commands(dossier) {
        let _ = write!(page, "<pre>{}</pre>", escaped(&command));
    }
    let digests = &dossier.digests;
    let _ = writeln!(
        page,
        "<h2>What an approval is about</h2><table><tr><td>tree before<td><code>{}</code></tr><tr><td>tree after<td><code>{}</code></tr>\
         <tr><td>evidence<td><code>{}</code></tr><tr><td>rules<td><code>{}</code></tr></table></html>",
        escaped(&digests.base_tree),
        escaped(&digests.candidate_tree),
        escaped(&digests.evidence),
        escaped(&digests.policy)
    );
    page
}

fn html_line(line: &DiffLine, comment: &str) -> String {
    let class = match line.mark {
        '+' => "p",
        '-' => "m",
        '@' => "a",
        _ => "s",
    };
    let mut html = format!(
        "<div class=\"{class}\">{} ",
        escaped(&line.mark.to_string())
    );
    for (tint, part) in tints(&harmless(&line.text), comment) {
        let class = match tint {
            Tint::Plain => "",
            Tint::Keyword => "k",
            Tint::Text => "t",
            Tint::Comment => "c",
            Tint::Number => "n",
        };
        if class.is_empty() {
            html.push_str(&escaped(&part));
        } else {
            let _ = write!(html, "<span class=\"{class}\">{}</span>", escaped(&part));
        }
    }
    html.push_str("</div>");
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_into_parts_that_make_the_line_again() {
        for line in [
            "def f(x): return \"a\\\"b\" # why",
            "let x = 'y",
            "é = 12",
            "",
            "if a == b: pass",
        ] {
            let joined: String = tints(line, "#").into_iter().map(|(_, part)| part).collect();
            assert_eq!(joined, line);
        }
        let parts = tints("def f(): # x", "#");
        assert_eq!(parts[0], (Tint::Keyword, "def".to_owned()));
        assert_eq!(parts.last().map(|(tint, _)| *tint), Some(Tint::Comment));
    }

    #[test]
    fn what_an_agent_wrote_is_shown_and_never_obeyed() {
        let evil = "\u{1b}[2J\u{202e}<script>alert('x')</script>\"&\u{200b}";
        for shown in [harmless(evil), escaped(evil)] {
            assert!(
                !shown.contains('\u{1b}')
                    && !shown.contains('\u{202e}')
                    && !shown.contains('\u{200b}')
            );
        }
        let line = DiffLine {
            mark: '+',
            text: format!("x = '{evil}' # {evil}"),
        };
        let html = html_line(&line, "#");
        assert!(
            !html.contains("<script") && !html.contains('\u{1b}'),
            "{html}"
        );
        assert!(!coloured(&line, "#", Colours::Off).contains('\u{1b}'));
        assert!(!coloured(&line, "#", Colours::On).contains("\u{1b}[2J"));
    }
}
