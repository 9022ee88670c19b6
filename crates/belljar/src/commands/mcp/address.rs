//! Servers at an address: whom they are trusted by, and what only they are told.

use super::invalid;
use crate::exit::Failure;
use belljar_egress::{Roots, client_config};
use belljar_mcp::ServerFacts;
use belljar_mcp::http::{Address, Reach};
use belljar_policy::{McpServer, PathRule, Places, Rule, ServerHeader};
use belljar_supervisor::{find_places, server_header};

/// How a server of a policy's is reached at this address.
pub(super) fn listed(
    name: &str,
    rule: &Rule<McpServer>,
    url: &str,
    ca: Option<&PathRule>,
    headers: &[ServerHeader],
) -> Result<(Reach, ServerFacts), Failure> {
    let at = match (ca, headers) {
        (None, []) => parse(url)?,
        _ => {
            let here = std::env::current_dir()
                .map_err(|source| super::wrap::system("finding the directory", source))?;
            let (_, places) = find_places(&here)?;
            let mut at = match ca {
                None => parse(url)?,
                Some(file) => parse_trusting(url, Roots::Pem(vec![read(file, rule, &places)?]))?,
            };
            for header in headers {
                let what = format!("{}: server {name}", rule.origin);
                let value = server_header(header, &what, &places)?;
                let header = header.place.header_name();
                at = at.with_header(header, &value).map_err(wrong)?;
            }
            at
        }
    };
    Ok((Reach::Address(at), ServerFacts::remote(name, url)))
}

/// An address that is trusted by whom the host trusts.
pub(super) fn parse(text: &str) -> Result<Address, Failure> {
    parse_trusting(text, Roots::Host)
}

fn parse_trusting(text: &str, roots: Roots) -> Result<Address, Failure> {
    let trust = || client_config(roots).map_err(|error| error.to_string());
    Address::parse(text, trust).map_err(wrong)
}

fn wrong(error: belljar_mcp::http::InvalidAddress) -> Failure {
    invalid(&error.to_string(), error.hint())
}

/// No list of certificates is longer.
const LONGEST: u64 = 4 << 20;

fn read(file: &PathRule, rule: &Rule<McpServer>, places: &Places) -> Result<String, Failure> {
    let fail = |why: String| {
        let what = format!("{}: ca {file}: {why}", rule.origin);
        invalid(
            &what,
            "name a PEM file with the certificates of the server's authority",
        )
    };
    let path = file.resolve(places);
    let path = path.ok_or_else(|| fail("nowhere on this host".to_owned()))?;
    let opened = std::fs::File::open(path).map_err(|error| fail(error.to_string()))?;
    let text = std::io::read_to_string(std::io::Read::take(opened, LONGEST));
    text.map_err(|error| fail(error.to_string()))
}
