//! Many paths by few words.

use super::names::{StableName, stable_name};
use crate::observation::path_text;
use std::path::{Path, PathBuf};

/// A few names, and how many more.
pub(super) fn examples(place: &Path, names: &[&PathBuf]) -> String {
    const FEW: usize = 3;
    const MOST_EXAMPLES: usize = 1000;
    // Names of one run say nothing to whoever reads the file.
    let mut lasting: Vec<String> = Vec::new();
    for name in names {
        let below = name.strip_prefix(place).unwrap_or(name);
        let own = below
            .file_name()
            .and_then(|own| own.to_str())
            .map(stable_name);
        let shown = match own {
            Some(StableName::Nothing) => continue,
            Some(StableName::Of(stem)) => path_text(&below.with_file_name(stem)),
            Some(StableName::Whole) | None => path_text(below),
        };
        if !lasting.contains(&shown) {
            lasting.push(shown);
        }
        if lasting.len() > MOST_EXAMPLES {
            break;
        }
    }
    if lasting.is_empty() {
        return "temporary files".to_owned();
    }
    let mut text = lasting
        .iter()
        .take(FEW)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if lasting.len() > MOST_EXAMPLES {
        text.push_str(" and more");
    } else if lasting.len() > FEW {
        text.push_str(&format!(" and {} more", lasting.len() - FEW));
    }
    text
}

/// The same places by fewer paths: what is below another goes, and more than `most` in one place are that place if they `may`
/// be. `paths` are sorted.
pub(super) fn gather(paths: &[PathBuf], most: usize, may: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut out = Vec::new();
    gather_below(Path::new("/"), paths, most, may, &mut out);
    out
}

fn gather_below(
    at: &Path,
    paths: &[PathBuf],
    most: usize,
    may: &dyn Fn(&Path) -> bool,
    out: &mut Vec<PathBuf>,
) {
    if paths.first().is_some_and(|first| first == at) {
        out.push(at.to_owned());
        return;
    }
    let before = out.len();
    let mut rest = paths;
    while let Some(first) = rest.first() {
        let Some(name) = first.strip_prefix(at).ok().and_then(|p| p.iter().next()) else {
            rest = &rest[1..];
            continue;
        };
        let child = at.join(name);
        let many = rest.partition_point(|path| path.starts_with(&child));
        let (group, others) = rest.split_at(many.max(1));
        gather_below(&child, group, most, may, out);
        rest = others;
    }
    if out.len() - before > most && may(at) {
        out.truncate(before);
        out.push(at.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(paths: &[&str], most: usize, never: &str, expect: &[&str]) {
        let mut paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        paths.sort();
        let never = PathBuf::from(never);
        let found = gather(&paths, most, &|path| {
            path != never && path != Path::new("/")
        });
        let found: Vec<&str> = found.iter().filter_map(|path| path.to_str()).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn places_are_gathered_where_there_are_many() {
        check(&["/w/a", "/w/a/b", "/w/c"], 4, "", &["/w/a", "/w/c"]);
        check(&["/w/a", "/w/a-b", "/w/a/b"], 4, "", &["/w/a", "/w/a-b"]);
        check(&["/w/a", "/w/b", "/w/c"], 2, "", &["/w"]);
        check(
            &["/w/a", "/w/b", "/w/c"],
            2,
            "/w",
            &["/w/a", "/w/b", "/w/c"],
        );
        check(
            &["/w/x/a", "/w/x/b", "/w/x/c", "/w/y/d"],
            2,
            "",
            &["/w/x", "/w/y/d"],
        );
        check(&[], 2, "", &[]);
        check(&["/"], 2, "", &["/"]);
    }
}
