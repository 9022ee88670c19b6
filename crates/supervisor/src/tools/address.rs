//! Servers at an address: whom they are trusted by, and what only they are told.

use belljar_egress::{Roots, client_config};
use belljar_mcp::ServerFacts;
use belljar_mcp::http::{Address, Reach};
use belljar_policy::{McpServer, PathRule, Places, Rule, ServerHeader};

use super::listed::Around;
use crate::error::RunError;
use crate::network::SecretReader;
use crate::places::find_places;

/// How a server of a policy's is reached at this address.
pub(super) fn listed(
    name: &str,
    rule: &Rule<McpServer>,
    url: &str,
    ca: Option<&PathRule>,
    headers: &[ServerHeader],
    around: &Around<'_>,
) -> Result<(Reach, ServerFacts), RunError> {
    let at = match (ca, headers) {
        (None, []) => address(url)?,
        _ => {
            let (_, places) = find_places(around.work)?;
            let mut at = match ca {
                None => address(url)?,
                Some(file) => parse_trusting(url, Roots::Pem(vec![read(file, rule, &places)?]))?,
            };
            let reader = SecretReader::new(&places, around.state);
            for header in headers {
                let what = format!("{}: server {name}", rule.origin);
                let value = reader.server_header(header, &what)?;
                let header = header.place.header_name();
                at = at.with_header(header, &value).map_err(wrong)?;
            }
            at
        }
    };
    Ok((Reach::Address(at), ServerFacts::remote(name, url)))
}

/// An address that is trusted by whom the host trusts.
///
/// # Errors
/// When it is none.
pub fn address(text: &str) -> Result<Address, RunError> {
    parse_trusting(text, Roots::Host)
}

fn parse_trusting(text: &str, roots: Roots) -> Result<Address, RunError> {
    let trust = || client_config(roots).map_err(|error| error.to_string());
    Address::parse(text, trust).map_err(wrong)
}

fn wrong(error: belljar_mcp::http::InvalidAddress) -> RunError {
    RunError::Invalid {
        what: error.to_string(),
        hint: error.hint().to_owned(),
    }
}

/// No list of certificates is longer.
const LONGEST: u64 = 4 << 20;

fn read(file: &PathRule, rule: &Rule<McpServer>, places: &Places) -> Result<String, RunError> {
    let fail = |why: String| RunError::Invalid {
        what: format!("{}: ca {file}: {why}", rule.origin),
        hint: "name a PEM file with the certificates of the server's authority".into(),
    };
    let path = file.resolve(places);
    let path = path.ok_or_else(|| fail("nowhere on this host".to_owned()))?;
    let opened = std::fs::File::open(path).map_err(|error| fail(error.to_string()))?;
    let text = std::io::read_to_string(std::io::Read::take(opened, LONGEST));
    text.map_err(|error| fail(error.to_string()))
}
