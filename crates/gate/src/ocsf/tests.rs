//! Events against what the published schema, version 1.3.0, requires of their classes and of the objects in them.

use belljar_replication::What;

use super::*;
use crate::FleetNote;

/// Attributes that each class requires; those of all classes first. Profiles that we don't use require more.
const REQUIRED: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "activity_id",
            "category_uid",
            "class_uid",
            "metadata",
            "severity_id",
            "time",
            "type_uid",
        ],
    ),
    ("1007", &["actor", "device", "process"]),
    ("2004", &["finding_info"]),
    ("3004", &["entity"]),
    // The last by the profile `security_control`, which ours name.
    ("4001", &["dst_endpoint", "action_id"]),
    ("6003", &["actor", "api", "src_endpoint"]),
];

/// What an object must have: all of the first, and at least one of the second.
const OBJECTS: &[(&str, &[&str], &[&str])] = &[
    (
        "actor",
        &[],
        &[
            "process",
            "user",
            "invoked_by",
            "session",
            "app_name",
            "app_uid",
        ],
    ),
    ("user", &[], &["account", "name", "uid"]),
    ("device", &["type_id"], &["ip", "uid", "name", "hostname"]),
    ("process", &[], &["pid", "uid"]),
    ("file", &["name", "type_id"], &[]),
    ("api", &["operation"], &[]),
    ("service", &[], &["name", "uid"]),
    (
        "src_endpoint",
        &[],
        &["ip", "uid", "name", "hostname", "svc_name"],
    ),
    (
        "dst_endpoint",
        &[],
        &["ip", "uid", "name", "hostname", "svc_name"],
    ),
    ("finding_info", &["title", "uid"], &[]),
    ("entity", &[], &["name", "uid"]),
    ("metadata", &["product", "version"], &[]),
    ("product", &["vendor_name"], &["name", "uid"]),
];

/// An entry of each kind there is, or of each way in which it is filed.
const SAMPLES: &[&str] = &[
    r#"{"kind":"run_launched","run":"r1","program":"/bin/sh","command_sha256":"ab","capability":"c","capability_sha256":"cd","tier":"seccomp","user":1000}"#,
    r#"{"kind":"run_refused","run":"r1","program":"/bin/sh","code":"deny_hidden","why":"it is hidden"}"#,
    r#"{"kind":"run_ended","run":"r1","exit_code":7,"signal":null,"killed_by":null,"duration_ms":4,"cpu_ms":3,"peak_memory_mb":2}"#,
    r#"{"kind":"egress_refused","run":"r1","way":"connect","host":"evil.example","port":443,"code":"deny_no_egress_rule","rule":null,"detail":null}"#,
    r#"{"kind":"mcp_call","run":"r1","server":"files","tool":"read","verdict":"deny","code":"deny_tool","rule":null,"duration_us":1,"result_bytes":0,"is_error":true,"arguments":{}}"#,
    r#"{"kind":"mcp_held","run":"r1","hold":"h","server":"files","tool":"read","code":"hold","rule":"r"}"#,
    r#"{"kind":"mcp_answered","run":"r1","hold":"h","answer":"refused","by":"owner","reason":"no"}"#,
    r#"{"kind":"mcp_tool","run":"r1","server":"files","tool":"read","change":"new","sha256":"ab"}"#,
    r#"{"kind":"mcp_suspicious","run":"r1","server":"files","tool":"read","code":"odd","detail":"odd"}"#,
    r#"{"kind":"log_recovered","dropped_entries":1,"dropped_bytes":2}"#,
    r#"{"kind":"key_changed","key":"ab","state":"retired","by":{"type":"user","uid":0,"name":"root"}}"#,
    r#"{"kind":"token_created","token":"ab","name":"ops","role":"operator","expires_ms":4}"#,
    r#"{"kind":"token_revoked","token":"ab","by":{"type":"user","uid":7}}"#,
    r#"{"kind":"fleet_anchored","size":3,"root":"ab"}"#,
    r#"{"kind":"attested","statement":{"x":null}}"#,
    r#"{"kind":"kill_switch_engaged","reason":"drill","killed":1,"survivors":0}"#,
    r#"{"kind":"kill_switch_reset","reason":"over"}"#,
    r#"{"kind":"reviewer_changed","reviewer":"ann","key":"ab","state":"added"}"#,
    r#"{"kind":"review_given","proposal":"p","reviewer":"ann","key":"ab","verdict":"approve","candidate_tree":"t","statement_sha256":"s","second_factor":true}"#,
    r#"{"kind":"rollout_moved","proposal":"p","candidate":"t","stage":"canary","why":"approved"}"#,
    r#"{"kind":"controller_started","boot":"ab"}"#,
    r#"{"kind":"contract_set","contract":{"name":"contract.yaml"}}"#,
    r#"{"kind":"issued","jti":"j","worker":"w","parent":"p","share":{},"lapses_ns":1}"#,
    r#"{"kind":"registered","jti":"j","worker":"w","expires_ns":null}"#,
    r#"{"kind":"root_admitted","jti":"j","worker":"w","share":{},"expires_ns":null}"#,
    r#"{"kind":"refused","code":"deny_quota","step":"issue","worker":"w","parent":"p","jti":"j"}"#,
    r#"{"kind":"withdrawn","jti":"j","why":"lapsed"}"#,
    r#"{"kind":"started","worker":"w"}"#,
    r#"{"kind":"ended","worker":"w","code":"exited"}"#,
    r#"{"kind":"quarantined","worker":"w","code":"quarantined_operator"}"#,
    r#"{"kind":"released","worker":"w"}"#,
    r#"{"kind":"revoked","worker":"w"}"#,
    r#"{"kind":"epoch_bumped","epoch":2}"#,
    r#"{"kind":"clock_jumped","by_ms":-4}"#,
    r#"{"kind":"clock_acknowledged"}"#,
    r#"{"kind":"usage_reported","worker":"w","usage":{"cpu_ms":1}}"#,
    r#"{"kind":"stop_condition_triggered","name":"crowd","worker":null}"#,
    r#"{"kind":"replication_requested","parent":"p","worker":"w","reason":"more"}"#,
    r#"{"kind":"task_started","worker":"w"}"#,
    r#"{"kind":"box_launched","worker":"w","manifest":"ab","program":"/bin/sh","command_sha256":"ab","capability":"c","capability_sha256":"cd","tier":"seccomp"}"#,
    r#"{"kind":"box_ended","worker":"w","exit_code":null,"signal":9,"killed_by":"memory","duration_ms":4,"cpu_ms":3,"peak_memory_mb":2}"#,
    r#"{"kind":"image_used","worker":"w","image":"i","digest":"d"}"#,
    r#"{"kind":"operator_acted","act":"kill","worker":"w","reason":"bad","user":0,"by":{"type":"token","id":"ab","name":"ops"}}"#,
    r#"{"kind":"operator_acted","act":"kill","worker":null,"reason":"bad","user":0,"by":{"type":"rule","name":"crowd"}}"#,
    r#"{"kind":"agent_said","worker":"w","act":"shutdown","reason":"done"}"#,
    r#"{"kind":"kill_report","killed":1,"boxes":1,"survivors":0,"elapsed_us":3}"#,
    r#"{"kind":"box_failed","worker":"w","why":"no"}"#,
    r#"{"kind":"keys_changed","signing":"ab"}"#,
    r#"{"kind":"workers_lost","workers":["w"]}"#,
    r#"{"kind":"workers_adopted","workers":["w"]}"#,
    r#"{"kind":"something_later","x":null}"#,
];

fn filed(sample: &str) -> Value {
    let what: Value = serde_json::from_str(sample).expect("a sample");
    let place = EntryPlace {
        log: "runs",
        index: 3,
        host: "here",
    };
    event(&place, &json!({"v": 1, "at": {"wall_ms": 9}, "what": what}))
}

/// What is wrong with an event.
fn faults(event: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let class = event["class_uid"].to_string();
    for (of, names) in REQUIRED {
        if of.is_empty() || *of == class {
            let missing = names.iter().filter(|name| event.get(name).is_none());
            faults.extend(missing.map(|name| format!("{name} is missing")));
        }
    }
    let known = REQUIRED.iter().any(|(of, _)| *of == class);
    if !known {
        faults.push(format!("no class {class}"));
    }
    objects(event, &mut faults);
    faults
}

fn objects(value: &Value, faults: &mut Vec<String>) {
    match value {
        Value::Null => faults.push("a null".to_owned()),
        Value::Array(items) => items.iter().for_each(|item| objects(item, faults)),
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| *name != "unmapped") {
                if let Some((_, all, some)) = OBJECTS.iter().find(|(object, ..)| object == name) {
                    let has = |field: &&str| value.get(*field).is_some();
                    if !all.iter().all(&has) || !(some.is_empty() || some.iter().any(has)) {
                        faults.push(format!("{name}: {value}"));
                    }
                }
                objects(value, faults);
            }
        }
        _ => {}
    }
}

#[test]
fn every_kind_of_entry_has_what_its_class_requires() {
    for sample in SAMPLES {
        let event = filed(sample);
        assert_eq!(faults(&event), Vec::<String>::new(), "{event}");
        assert!(!event.to_string().contains("null"), "{event}");
        let type_uid =
            event["class_uid"].as_u64().unwrap() * 100 + event["activity_id"].as_u64().unwrap();
        assert_eq!(event["type_uid"], type_uid);
        assert_eq!(event["metadata"]["uid"], "runs/3");
        assert_eq!(event["time"], 9);
    }
    let has_sample = |kind: &&&str| {
        SAMPLES
            .iter()
            .any(|s| s.contains(&format!("\"kind\":\"{kind}\"")))
    };
    let all = What::kinds().iter().chain(FleetNote::kinds());
    assert_eq!(all.filter(|kind| !has_sample(kind)).count(), 0);
}

#[test]
fn what_was_denied_is_a_failure() {
    for (sample, code) in [
        (SAMPLES[1], "deny_hidden"),
        (SAMPLES[3], "deny_no_egress_rule"),
        (SAMPLES[4], "deny_tool"),
    ] {
        let event = filed(sample);
        assert_eq!(
            (&event["status_id"], &event["status_code"]),
            (&json!(2), &json!(code))
        );
    }
    assert_eq!(filed(SAMPLES[6])["status_id"], 2, "a person's no");
    let allowed = filed(&SAMPLES[4].replace("\"deny\"", "\"allow\""));
    assert_eq!(allowed["status_id"], 1);
    assert_eq!(filed(SAMPLES[3])["action_id"], 2);
}

#[test]
fn what_has_a_place_in_the_schema_stands_there() {
    let ended = filed(SAMPLES[2]);
    assert_eq!(ended["exit_code"], 7);
    assert_eq!(ended["process"]["uid"], "r1");
    assert!(ended["unmapped"].get("run").is_none(), "{ended}");
    let act = SAMPLES
        .iter()
        .find(|s| s.contains("\"token\",\"id\""))
        .expect("an act by token");
    let act = filed(act);
    assert_eq!(act["actor"]["user"]["name"], "ops");
    assert_eq!(act["actor"]["session"]["uid"], "ab");
    assert_eq!(act["api"]["operation"], "kill");
    assert_eq!(act["src_endpoint"]["uid"], "w");
    assert_eq!(act["status_detail"], "bad");
}
