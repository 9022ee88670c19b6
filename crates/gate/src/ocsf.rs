//! Entries for other people's tools: the Open Cybersecurity Schema Framework, as SIEMs take it in.

use serde_json::{Value, json};

/// The version of the schema the events follow.
pub const SCHEMA_VERSION: &str = "1.3.0";

/// How one kind of entry is filed.
struct Filing {
    class: u32,
    activity: u32,
    severity: u32,
    status: u32,
}

/// Classes of the schema.
const PROCESS_ACTIVITY: u32 = 1007;
const DETECTION_FINDING: u32 = 2004;
const ENTITY_MANAGEMENT: u32 = 3004;
const NETWORK_ACTIVITY: u32 = 4001;
const API_ACTIVITY: u32 = 6003;

const SUCCESS: u32 = 1;
const FAILURE: u32 = 2;

const INFORMATIONAL: u32 = 1;
const LOW: u32 = 2;
const MEDIUM: u32 = 3;
const HIGH: u32 = 4;
const CRITICAL: u32 = 5;

fn filing(kind: &str) -> Filing {
    let file = |class, activity, severity, status| Filing {
        class,
        activity,
        severity,
        status,
    };
    match kind {
        "run_launched" | "started" => file(PROCESS_ACTIVITY, 1, INFORMATIONAL, SUCCESS),
        "run_ended" | "ended" => file(PROCESS_ACTIVITY, 2, INFORMATIONAL, SUCCESS),
        "egress_refused" => file(NETWORK_ACTIVITY, 5, MEDIUM, FAILURE),
        "mcp_call" => file(API_ACTIVITY, 99, INFORMATIONAL, SUCCESS),
        "mcp_held" => file(API_ACTIVITY, 99, LOW, SUCCESS),
        "mcp_suspicious" => file(DETECTION_FINDING, 1, HIGH, SUCCESS),
        "run_refused" | "refused" => file(API_ACTIVITY, 1, MEDIUM, FAILURE),
        "issued" | "registered" => file(API_ACTIVITY, 1, LOW, SUCCESS),
        "kill_switch_engaged" | "kill_report" => file(DETECTION_FINDING, 1, CRITICAL, SUCCESS),
        "quarantined"
        | "stop_condition_triggered"
        | "revoked"
        | "workers_lost"
        | "epoch_bumped"
        | "clock_jumped" => file(DETECTION_FINDING, 1, HIGH, SUCCESS),
        "key_changed" => file(ENTITY_MANAGEMENT, 3, MEDIUM, SUCCESS),
        _ => file(API_ACTIVITY, 99, INFORMATIONAL, SUCCESS),
    }
}

/// One entry as an event of the schema. What the schema has no field for stands under `unmapped`.
#[must_use]
pub fn event(log: &str, index: u64, entry: &Value) -> Value {
    let what = &entry["what"];
    let kind = what["kind"].as_str().unwrap_or("unknown");
    let filing = filing(kind);
    json!({
        "class_uid": filing.class,
        "category_uid": filing.class / 1000,
        "activity_id": filing.activity,
        "type_uid": u64::from(filing.class) * 100 + u64::from(filing.activity),
        "severity_id": filing.severity,
        "status_id": filing.status,
        "status_code": what["code"].as_str(),
        "status_detail": what["why"].as_str().or(what["reason"].as_str()),
        "time": entry["at"]["wall_ms"],
        "message": kind.replace('_', " "),
        "metadata": {
            "version": SCHEMA_VERSION,
            "product": {"name": "Belljar", "vendor_name": "Belljar"},
            "log_name": log,
            "uid": format!("{log}/{index}"),
            "sequence": index,
            "event_code": kind,
        },
        "unmapped": what,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_where_in_which_log_it_stands() {
        let entry = json!({"v": 1, "at": {"wall_ms": 9}, "what": {"kind": "run_refused", "code": "deny_kill_switch"}});
        let event = event("runs", 3, &entry);
        assert_eq!(event["type_uid"], 600_301);
        assert_eq!(event["status_id"], 2);
        assert_eq!(event["status_code"], "deny_kill_switch");
        assert_eq!(event["metadata"]["uid"], "runs/3");
        assert_eq!(event["time"], 9);
    }
}
