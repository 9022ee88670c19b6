//! `belljar reviewer`: who may review proposals.

use belljar_evolve::review::totp::picture;
use belljar_evolve::review::{Desk, Reviewer as Person, make_key, read_key};
use belljar_manifest::keys::PublicKey;
use belljar_supervisor::{StateDir, key_source};
use serde_json::{Value, json};

use super::evolve_review::{now_s, outside, refused};
use crate::cli::reviewer::{AddReviewer, Reviewer};
use crate::cli::{Format, OutputFormat};
use crate::exit::{self, Failure};
use crate::print::{self, Line};

pub(crate) fn reviewer(what: &Reviewer) -> Result<u8, Failure> {
    outside()?;
    let state = match what {
        Reviewer::Add(_) => StateDir::find(),
        Reviewer::List { .. } | Reviewer::Enrol { .. } | Reviewer::Revoke { .. } => {
            StateDir::existing()
        }
    };
    let desk = Desk::of(state?.path(), key_source());
    match what {
        Reviewer::Add(new) => add(&desk, new),
        Reviewer::List { format } => list(&desk, format),
        Reviewer::Enrol { name, code } => enrol(&desk, name, code.as_deref()),
        Reviewer::Revoke { name, format } => {
            let one = desk.revoke(name, now_s()).map_err(refused)?;
            tell(&desk, &one, format)
        }
    }
}

fn add(desk: &Desk, new: &AddReviewer) -> Result<u8, Failure> {
    let public = match (&new.key, &new.public) {
        (Some(file), _) => {
            let key = if file.exists() {
                read_key(file)
            } else {
                make_key(file)
            };
            key.map_err(refused)?.public_key().ok_or_else(|| {
                Failure::Invalid(
                    "a reviewer's key is an Ed25519 key".into(),
                    "name a file that is not there yet, and one is made".into(),
                )
            })?
        }
        (None, Some(hex)) => PublicKey::from_hex(hex).map_err(|error| {
            Failure::Invalid(
                error.to_string(),
                "`belljar reviewer list` shows some".into(),
            )
        })?,
        (None, None) => {
            return Err(Failure::Invalid(
                "whose key?".into(),
                "give --key FILE or --public HEX".into(),
            ));
        }
    };
    let one = desk.add(&new.name, public, now_s()).map_err(refused)?;
    tell(desk, &one, &new.format)?;
    if new.format.output == OutputFormat::Text {
        let hint = format!("`belljar reviewer enrol {}` adds a second factor", one.name);
        print::line(Line::Hint, &hint);
    }
    Ok(exit::OK)
}

fn enrol(desk: &Desk, name: &str, code: Option<&str>) -> Result<u8, Failure> {
    if let Some(code) = code {
        desk.confirm(name, code, now_s()).map_err(refused)?;
        print::out(&format!("{name}  has a second factor\n"));
        return Ok(exit::OK);
    }
    let secret = desk.enrol(name).map_err(refused)?;
    let uri = secret.uri(name);
    if let Some(picture) = picture(&uri) {
        print::out(&picture);
    }
    print::out(&format!("{}\n", uri.as_str()));
    let hint = format!("then: belljar reviewer enrol {name} --code 123456");
    print::line(
        Line::Note,
        "read it with an authenticator; it is not shown again",
    );
    print::line(Line::Hint, &hint);
    Ok(exit::OK)
}

fn list(desk: &Desk, format: &Format) -> Result<u8, Failure> {
    let all = desk.reviewers().map_err(|error| refused(error.into()))?;
    if format.output == OutputFormat::Json {
        let told: Vec<Value> = all.iter().map(|one| described(desk, one)).collect();
        print::json(&json!({ "reviewers": told }));
        return Ok(exit::OK);
    }
    print::out(&format!(
        "{:<34}{:<18}{:<9}{:<15}ADDED\n",
        "NAME", "KEY", "STATE", "SECOND FACTOR"
    ));
    for one in all.iter() {
        let value = described(desk, one);
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        print::out(&format!(
            "{:<34}{:<18}{:<9}{:<15}{}\n",
            one.name.as_str(),
            text("key"),
            text("state"),
            if value["second_factor"] == true {
                "yes"
            } else {
                "no"
            },
            print::utc(one.added_s.saturating_mul(1000)),
        ));
    }
    Ok(exit::OK)
}

fn tell(desk: &Desk, one: &Person, format: &Format) -> Result<u8, Failure> {
    if format.output == OutputFormat::Json {
        print::json(&described(desk, one));
    } else {
        let state = if one.revoked_s.is_some() {
            "revoked"
        } else {
            "added"
        };
        print::out(&format!("{}  {state}  key {}\n", one.name, one.key.id()));
    }
    Ok(exit::OK)
}

fn described(desk: &Desk, one: &Person) -> Value {
    json!({
        "name": one.name, "key": one.key.id().to_string(), "public": one.key.to_string(),
        "state": if one.revoked_s.is_some() { "revoked" } else { "active" },
        "second_factor": desk.totp().is_enrolled(one.name.as_str()).unwrap_or(false),
        "added_s": one.added_s, "revoked_s": one.revoked_s,
    })
}
