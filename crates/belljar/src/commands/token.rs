//! `belljar token`: who may use the web API.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_api::Name;
use belljar_gate::record::RunEvent;
use belljar_gate::{Actor, Durability, RunGate, in_full};
use belljar_supervisor::StateDir;
use belljar_web::{NewToken, Role, TokenFile, TokenRecord};
use serde_json::{Value, json};

use crate::cli::{Create, Format, OutputFormat, Token, TokenRole};
use crate::exit::{self, Failure};
use crate::print::{self, Line};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn token(what: &Token) -> Result<u8, Failure> {
    let state = match what {
        Token::Create(_) => StateDir::find(),
        Token::List { .. } | Token::Revoke { .. } => StateDir::existing(),
    }?;
    let tokens = TokenFile::of(state.path());
    let mut log = RunGate::of(state.path(), belljar_supervisor::key_source());
    match what {
        Token::Create(new) => create(&tokens, &mut log, new),
        Token::List { format } => list(&tokens, format),
        Token::Revoke { id, format } => revoke(&tokens, &mut log, id, format),
    }
}

fn create(tokens: &TokenFile, log: &mut RunGate, new: &Create) -> Result<u8, Failure> {
    let role = match new.role {
        TokenRole::Viewer => Role::Viewer,
        TokenRole::Operator => Role::Operator,
        TokenRole::Admin => Role::Admin,
    };
    let name = new.name.as_deref().unwrap_or(role.as_str());
    let name = Name::new(name).map_err(|error| {
        let hint = "a name is one line of at most 128 bytes";
        Failure::Invalid(format!("the name can't be used: {error}"), hint.into())
    })?;
    let lifetime = (!new.never_expires).then(|| DAY * new.expires_days);
    let (record, text) = tokens.create(NewToken {
        name,
        role,
        lifetime,
    })?;
    let event = RunEvent::TokenCreated {
        token: record.id.to_string(),
        name: record.name.as_str().to_owned(),
        role: role.as_str().to_owned(),
        expires_ms: record.expires_ms,
        by: Some(Actor::this_user()),
    };
    if let Err(error) = log.note(event, Durability::Power) {
        // Nobody has seen it yet, and nobody will.
        tokens.revoke(record.id.as_str())?;
        return Err(Failure::Invalid(
            format!("the token can't be put on record: {}", in_full(&error)),
            error.hint(),
        ));
    }
    if new.format.output == OutputFormat::Json {
        let mut told = described(&record, now_ms());
        told["token"] = json!(text.reveal());
        print::json(&told);
        return Ok(exit::OK);
    }
    // The token alone goes to standard output, so that it can be put where it is needed without being seen.
    print::out(&format!("{}\n", text.reveal()));
    print::line(
        Line::Note,
        &format!(
            "token {} ({}, {role}), good {}; it is not shown again",
            record.id,
            record.name,
            record
                .expires_ms
                .map_or("until it is revoked".to_owned(), |end| format!(
                    "until {}",
                    print::utc(end)
                )),
        ),
    );
    Ok(exit::OK)
}

fn list(tokens: &TokenFile, format: &Format) -> Result<u8, Failure> {
    let records = tokens.list()?;
    let now = now_ms();
    if format.output == OutputFormat::Json {
        let told: Vec<Value> = records
            .iter()
            .map(|record| described(record, now))
            .collect();
        print::json(&json!({"tokens": told}));
        return Ok(exit::OK);
    }
    print::out(&format!(
        "{:<14}{:<10}{:<9}{:<26}{:<26}{:<26}NAME\n",
        "ID", "ROLE", "STATE", "CREATED", "EXPIRES", "LAST USED"
    ));
    let moment = |at: Option<u64>| at.map_or("never".to_owned(), print::utc);
    for record in &records {
        print::out(&format!(
            "{:<14}{:<10}{:<9}{:<26}{:<26}{:<26}{}\n",
            record.id.as_str(),
            record.role.as_str(),
            state(record, now),
            print::utc(record.created_ms),
            moment(record.expires_ms),
            moment(record.last_used_ms),
            print::harmless(record.name.as_str()),
        ));
    }
    Ok(exit::OK)
}

/// It counts no more, on record or not.
fn revoke(tokens: &TokenFile, log: &mut RunGate, id: &str, format: &Format) -> Result<u8, Failure> {
    let record = tokens.revoke(id)?;
    let event = RunEvent::TokenRevoked {
        token: record.id.to_string(),
        by: Some(Actor::this_user()),
    };
    if let Err(error) = log.note(event, Durability::Power) {
        let text = format!("it is done, and not on record: {}", in_full(&error));
        print::line(Line::Note, &text);
    }
    if format.output == OutputFormat::Json {
        print::json(&described(&record, now_ms()));
    } else {
        let name = print::harmless(record.name.as_str());
        print::out(&format!("{}  revoked  {name}\n", record.id));
    }
    Ok(exit::OK)
}

fn described(record: &TokenRecord, now: u64) -> Value {
    json!({
        "id": record.id, "name": record.name, "role": record.role, "state": state(record, now),
        "created_ms": record.created_ms, "expires_ms": record.expires_ms,
        "last_used_ms": record.last_used_ms, "revoked_ms": record.revoked_ms,
    })
}

fn state(record: &TokenRecord, now: u64) -> &'static str {
    match (record.revoked_ms, record.is_good(now)) {
        (Some(_), _) => "revoked",
        (None, true) => "good",
        (None, false) => "expired",
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
