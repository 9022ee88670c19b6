//! Entries for other people's tools: the Open Cybersecurity Schema Framework, as SIEMs take it in.
//!
//! Every event has what its class requires; what the schema has a place for stands there, and only the rest under `unmapped`.

use serde_json::{Map, Value, json};

/// The version of the schema the events follow.
pub const SCHEMA_VERSION: &str = "1.3.0";

/// Where an entry stands, and on which machine its log is.
#[derive(Clone, Copy, Debug)]
pub struct EntryPlace<'a> {
    /// The log's name.
    pub log: &'a str,
    /// The entry's number in it.
    pub index: u64,
    /// The machine's name.
    pub host: &'a str,
}

/// How one kind of entry is filed.
#[derive(Clone, Copy)]
struct Filing {
    class: Class,
    activity: u32,
    severity: u32,
    status: u32,
}

/// Classes of the schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    ProcessActivity = 1007,
    DetectionFinding = 2004,
    EntityManagement = 3004,
    NetworkActivity = 4001,
    ApiActivity = 6003,
}

const CREATE: u32 = 1;
const LAUNCH: u32 = 1;
const TERMINATE: u32 = 2;
const UPDATE: u32 = 3;
const DELETE: u32 = 4;
const REFUSE: u32 = 5;
const OTHER: u32 = 99;

const SUCCESS: u32 = 1;
const FAILURE: u32 = 2;

const INFORMATIONAL: u32 = 1;
const LOW: u32 = 2;
const MEDIUM: u32 = 3;
const HIGH: u32 = 4;
const CRITICAL: u32 = 5;

/// `action_id` and `disposition_id` of the profile `security_control`.
const DENIED: u32 = 2;
const BLOCKED: u32 = 2;

fn filing(kind: &str, what: &Map<String, Value>) -> Filing {
    use Class::{
        ApiActivity, DetectionFinding, EntityManagement, NetworkActivity, ProcessActivity,
    };
    let file = |class, activity, severity, status| Filing {
        class,
        activity,
        severity,
        status,
    };
    match kind {
        "run_launched" | "box_launched" | "started" | "task_started" => {
            file(ProcessActivity, LAUNCH, INFORMATIONAL, SUCCESS)
        }
        "run_ended" | "box_ended" | "ended" => {
            file(ProcessActivity, TERMINATE, INFORMATIONAL, SUCCESS)
        }
        "egress_refused" => file(NetworkActivity, REFUSE, MEDIUM, FAILURE),
        "mcp_call" if is_denied(what) => file(ApiActivity, OTHER, MEDIUM, FAILURE),
        "mcp_answered" if is_denied(what) => file(ApiActivity, OTHER, LOW, FAILURE),
        "mcp_held" | "mcp_answered" => file(ApiActivity, OTHER, LOW, SUCCESS),
        "mcp_suspicious" => file(DetectionFinding, CREATE, HIGH, SUCCESS),
        "run_refused" | "refused" | "box_failed" => file(ApiActivity, CREATE, MEDIUM, FAILURE),
        "issued" | "registered" | "root_admitted" => file(ApiActivity, CREATE, LOW, SUCCESS),
        "kill_switch_engaged" | "kill_report" => file(DetectionFinding, CREATE, CRITICAL, SUCCESS),
        "quarantined"
        | "stop_condition_triggered"
        | "revoked"
        | "workers_lost"
        | "epoch_bumped"
        | "clock_jumped" => file(DetectionFinding, CREATE, HIGH, SUCCESS),
        "token_created" => file(EntityManagement, CREATE, MEDIUM, SUCCESS),
        "token_revoked" => file(EntityManagement, DELETE, MEDIUM, SUCCESS),
        "key_changed" | "keys_changed" | "reviewer_changed" | "contract_set" | "mcp_tool" => {
            file(EntityManagement, UPDATE, MEDIUM, SUCCESS)
        }
        _ => file(ApiActivity, OTHER, INFORMATIONAL, SUCCESS),
    }
}

/// Whether a call of a tool was not made, by rule or by a person.
fn is_denied(what: &Map<String, Value>) -> bool {
    let said = |field: &str| what.get(field).and_then(Value::as_str);
    matches!(said("verdict"), Some("deny" | "hold_refused"))
        || matches!(said("answer"), Some("refused" | "timed_out"))
}

/// One entry as an event of the schema.
#[must_use]
pub fn event(place: &EntryPlace<'_>, entry: &Value) -> Value {
    let mut what = entry
        .get("what")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    what.retain(|_, value| !value.is_null());
    let kind = text(&mut what, "kind").unwrap_or_else(|| "unknown".to_owned());
    let filing = filing(&kind, &what);
    let class = filing.class as u32;
    let words = kind.replace('_', " ");
    let mut event = Map::new();
    event.insert("class_uid".into(), json!(class));
    event.insert("category_uid".into(), json!(class / 1000));
    event.insert("activity_id".into(), json!(filing.activity));
    if filing.activity == OTHER {
        event.insert("activity_name".into(), json!(words));
    }
    event.insert(
        "type_uid".into(),
        json!(u64::from(class) * 100 + u64::from(filing.activity)),
    );
    event.insert("severity_id".into(), json!(filing.severity));
    event.insert("status_id".into(), json!(filing.status));
    let time = entry.pointer("/at/wall_ms").and_then(Value::as_u64);
    event.insert("time".into(), json!(time.unwrap_or_default()));
    event.insert("message".into(), json!(words));
    event.insert("metadata".into(), metadata(place, &kind, filing.class));
    if let Some(code) = text(&mut what, "code") {
        event.insert("status_code".into(), json!(code));
    }
    let detail = ["why", "reason", "detail"].map(|field| text(&mut what, field));
    if let Some(detail) = detail.into_iter().flatten().next() {
        event.insert("status_detail".into(), json!(detail));
    }
    match filing.class {
        Class::ProcessActivity => process(place, &mut what, &mut event),
        Class::DetectionFinding => finding(place, &words, &mut event),
        Class::EntityManagement => entity(&kind, &mut what, &mut event),
        Class::NetworkActivity => network(place, &mut what, &mut event),
        Class::ApiActivity => api(place, &kind, &mut what, &mut event),
    }
    if !what.is_empty() {
        event.insert("unmapped".into(), Value::Object(what));
    }
    without_nulls(Value::Object(event))
}

fn metadata(place: &EntryPlace<'_>, kind: &str, class: Class) -> Value {
    let mut metadata = json!({
        "version": SCHEMA_VERSION,
        "product": {"name": "Belljar", "vendor_name": "Belljar"},
        "log_name": place.log,
        "uid": uid(place),
        "sequence": place.index,
        "event_code": kind,
    });
    if class == Class::NetworkActivity
        && let Some(metadata) = metadata.as_object_mut()
    {
        metadata.insert("profiles".into(), json!(["security_control"]));
    }
    metadata
}

fn uid(place: &EntryPlace<'_>) -> String {
    format!("{}/{}", place.log, place.index)
}

fn process(place: &EntryPlace<'_>, what: &mut Map<String, Value>, event: &mut Map<String, Value>) {
    let actor = actor(what);
    let mut process = Map::new();
    let uid = subject(what).unwrap_or_else(|| uid(place));
    process.insert("uid".into(), json!(uid));
    if let Some(program) = text(what, "program").filter(|program| !program.is_empty()) {
        let name = program.rsplit('/').next().unwrap_or_default();
        process.insert("name".into(), json!(name));
        // A regular file.
        process.insert(
            "file".into(),
            json!({"name": name, "path": program, "type_id": 1}),
        );
    }
    event.insert("actor".into(), actor);
    event.insert("device".into(), device(place));
    event.insert("process".into(), Value::Object(process));
    if let Some(code) = what.remove("exit_code") {
        event.insert("exit_code".into(), code);
    }
    if let Some(duration) = what.remove("duration_ms") {
        event.insert("duration".into(), duration);
    }
}

fn finding(place: &EntryPlace<'_>, words: &str, event: &mut Map<String, Value>) {
    event.insert(
        "finding_info".into(),
        json!({"title": words, "uid": uid(place)}),
    );
    event.insert("device".into(), device(place));
}

fn entity(kind: &str, what: &mut Map<String, Value>, event: &mut Map<String, Value>) {
    let actor = actor(what);
    let (field, called) = match kind {
        "token_created" | "token_revoked" => ("token", "token"),
        "reviewer_changed" => ("reviewer", "reviewer"),
        "mcp_tool" => ("tool", "tool"),
        "keys_changed" => ("signing", "key"),
        "contract_set" => ("contract", "contract"),
        _ => ("key", "key"),
    };
    let name = text(what, "name").or_else(|| {
        let contract = what.get("contract")?.as_object()?;
        contract.get("name")?.as_str().map(str::to_owned)
    });
    let mut entity = Map::new();
    entity.insert("type".into(), json!(called));
    entity.insert(
        "uid".into(),
        json!(text(what, field).unwrap_or_else(|| called.to_owned())),
    );
    if let Some(name) = name {
        entity.insert("name".into(), json!(name));
    }
    event.insert("entity".into(), Value::Object(entity));
    event.insert("actor".into(), actor);
}

fn network(place: &EntryPlace<'_>, what: &mut Map<String, Value>, event: &mut Map<String, Value>) {
    let mut destination = Map::new();
    let host = text(what, "host").unwrap_or_else(|| "unknown".to_owned());
    destination.insert("hostname".into(), json!(host));
    if let Some(port) = what.remove("port") {
        destination.insert("port".into(), port);
    }
    event.insert("dst_endpoint".into(), Value::Object(destination));
    event.insert("src_endpoint".into(), source(place, what));
    event.insert("device".into(), device(place));
    event.insert("action_id".into(), json!(DENIED));
    event.insert("disposition_id".into(), json!(BLOCKED));
}

fn api(
    place: &EntryPlace<'_>,
    kind: &str,
    what: &mut Map<String, Value>,
    event: &mut Map<String, Value>,
) {
    let actor = actor(what);
    let mut api = Map::new();
    let tool = text(what, "tool");
    let operation = text(what, "act").or(tool);
    api.insert(
        "operation".into(),
        json!(operation.unwrap_or_else(|| kind.to_owned())),
    );
    let service = text(what, "server").unwrap_or_else(|| "belljar".to_owned());
    api.insert("service".into(), json!({"name": service}));
    if let Some(code) = event.get("status_code") {
        api.insert("response".into(), json!({"error": code}));
    }
    event.insert("api".into(), Value::Object(api));
    event.insert("actor".into(), actor);
    event.insert("src_endpoint".into(), source(place, what));
}

/// Who did it: as far as the entry says; else the part of Belljar that writes.
fn actor(what: &mut Map<String, Value>) -> Value {
    let user = what.remove("user");
    let by = match what.remove("by") {
        // 0.1.0 put a name there.
        Some(Value::String(name)) => return json!({"user": {"name": name}}),
        Some(Value::Object(by)) => by,
        _ => {
            return match user {
                Some(uid) => json!({"user": {"uid": uid.to_string()}}),
                None => json!({"app_name": "belljar"}),
            };
        }
    };
    let said = |field: &str| by.get(field).filter(|value| !value.is_null());
    match by.get("type").and_then(Value::as_str) {
        Some("user") => json!({"user": {
            "uid": said("uid").map(ToString::to_string), "name": said("name"),
        }}),
        Some("token") => json!({
            "user": {"name": said("name")}, "session": {"uid": said("id"), "is_remote": true},
        }),
        Some("agent") => json!({"app_name": "agent", "app_uid": said("id")}),
        Some("rule") => json!({"app_name": "rule", "app_uid": said("name")}),
        _ => json!({"app_name": "belljar"}),
    }
}

/// The box that an entry is about.
fn subject(what: &mut Map<String, Value>) -> Option<String> {
    text(what, "run").or_else(|| text(what, "worker"))
}

/// Where something came from: a box, if it is about one, else this machine.
fn source(place: &EntryPlace<'_>, what: &mut Map<String, Value>) -> Value {
    match subject(what) {
        Some(uid) => json!({"uid": uid, "hostname": place.host}),
        None => json!({"hostname": place.host}),
    }
}

fn device(place: &EntryPlace<'_>) -> Value {
    // Of an unknown type.
    json!({"hostname": place.host, "type_id": 0})
}

fn text(what: &mut Map<String, Value>, field: &str) -> Option<String> {
    match what.remove(field) {
        Some(Value::String(text)) => Some(text),
        Some(other) => {
            what.insert(field.to_owned(), other);
            None
        }
        None => None,
    }
}

/// An absent field says what a null would, and readers of the schema expect no nulls.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name, without_nulls(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
