//! Where packages come from: where the host's own come from.

use crate::error::ImageError;
use std::process::{Command, Stdio};

/// Parts of a release that are kept apart and belong to it.
const PARTS: [&str; 3] = ["", "-updates", "-security"];

/// An archive, as a line of apt's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mirror {
    pub(super) uri: String,
    pub(super) suite: String,
    pub(super) components: &'static str,
}

impl Mirror {
    pub(super) fn line(&self) -> String {
        format!("deb {} {} {}", self.uri, self.suite, self.components)
    }
}

/// What apt would fetch from, for that suite: the main archive first. Nothing is fetched.
pub(super) fn mirrors(suite: &str) -> Result<Vec<Mirror>, ImageError> {
    let output = Command::new("apt-get")
        .args(["update", "--print-uris"])
        .stdin(Stdio::null())
        .output();
    let printed = output.map_err(|error| ImageError::Unavailable {
        what: format!("apt-get can't be asked for this host's mirror: {error}"),
        hint:
            "Debian images are built on Debian and its relatives; elsewhere use --oci or --engine"
                .into(),
    })?;
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let found = chosen(&String::from_utf8_lossy(&printed.stdout), &release, suite);
    if found.is_empty() {
        return Err(ImageError::Unavailable {
            what: format!("this host's apt has no mirror for {suite}"),
            hint: "`apt-get update --print-uris` shows what it has".into(),
        });
    }
    Ok(found)
}

fn chosen(printed: &str, release: &str, suite: &str) -> Vec<Mirror> {
    let field = |key: &str| {
        let lines = release.lines();
        let value = lines.filter_map(|line| line.strip_prefix(key)).next();
        value
            .map(|value| value.trim_matches('"'))
            .unwrap_or_default()
    };
    let components = match field("ID=") {
        "ubuntu" => "main universe",
        _ => "main",
    };
    let own = field("VERSION_CODENAME=");
    let archives: Vec<(&str, &str)> = printed
        .lines()
        .filter_map(|line| line.strip_prefix('\'')?.split('\'').next())
        .filter_map(|uri| uri.strip_suffix("/InRelease")?.split_once("/dists/"))
        .collect();
    let at = |name: String| archives.iter().find(|(_, listed)| *listed == name);
    // Another release than the host's is beside it.
    let source = |part: &str| at(format!("{suite}{part}")).or_else(|| at(format!("{own}{part}")));
    if source("").is_none() {
        return Vec::new();
    }
    let mirror = |part: &&str| {
        let (uri, _) = source(part)?;
        Some(Mirror {
            uri: (*uri).to_owned(),
            suite: format!("{suite}{part}"),
            components,
        })
    };
    // What is never updated has no such parts.
    let parts = if matches!(suite, "sid" | "unstable") {
        &PARTS[..1]
    } else {
        &PARTS[..]
    };
    parts.iter().filter_map(mirror).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
'http://mirror.example/debian/dists/bookworm/InRelease' x 0 
'http://mirror.example/debian/dists/bookworm-updates/InRelease' x 0 
'http://security.example/debian-security/dists/bookworm-security/InRelease' x 0 
'http://mirror.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' x 0 
'https://other.example/tools/dists/nodistro/InRelease' x 0 
";
    const RELEASE: &str = "ID=debian\nVERSION_CODENAME=bookworm\n";

    fn lines(suite: &str) -> Vec<String> {
        let found = chosen(PRINTED, RELEASE, suite);
        found.iter().map(Mirror::line).collect()
    }

    #[test]
    fn the_hosts_own_mirror_serves_its_own_and_other_releases() {
        assert_eq!(
            lines("bookworm"),
            [
                "deb http://mirror.example/debian bookworm main",
                "deb http://mirror.example/debian bookworm-updates main",
                "deb http://security.example/debian-security bookworm-security main",
            ]
        );
        assert_eq!(
            lines("trixie")[2],
            "deb http://security.example/debian-security trixie-security main"
        );
        assert_eq!(lines("sid"), ["deb http://mirror.example/debian sid main"]);
        assert!(chosen("", RELEASE, "bookworm").is_empty());
    }
}
