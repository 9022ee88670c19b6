//! A family of manifests to attack.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary has its own copy and uses its part"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_manifest::keys::{Keyset, SecretKey};
use belljar_manifest::lineage::{
    CapabilityDocument, Digest, Envelope, Jti, PAYLOAD_TYPE, ParentLink, Payload, RejectReason,
    Rejection, Verified, WorkerId,
};
use belljar_policy::{
    Amount, Budget, Capability, DomainPattern, EgressEffect, EgressRule, EgressTerms, EnvAllow,
    FsMode, Origin, PathRule, Permission, Places, Rule, Source, ToolPattern,
};
use data_encoding::BASE64;
use serde_json::{Value, json};

pub fn places() -> Places {
    Places {
        home: PathBuf::from("/home/u"),
        work: PathBuf::from("/home/u/w"),
        homes: vec![PathBuf::from("/home"), PathBuf::from("/root")],
    }
}

/// Made by hand, so that no change of a profile changes the bytes under test.
pub fn capability() -> Capability {
    let mut capability = Capability::closed(Arc::from("capability.yaml"));
    capability.filesystem.mode = FsMode::ReadWrite;
    capability.filesystem.writable = vec![rule("src", 3)];
    capability.filesystem.readable = vec![rule("~/.config/tool", 5), rule("/srv/data", 6)];
    capability.filesystem.hidden = vec![rule("**/secrets", 8)];
    capability.egress = vec![Rule::new(
        EgressRule {
            domain: DomainPattern::parse("*.example.com").unwrap(),
            ports: vec![80, 443],
            rate_limit_per_min: 60,
            effect: EgressEffect::Allow,
            terms: EgressTerms::default(),
        },
        origin(10),
    )];
    capability.limits.memory_bytes = Some(512 << 20);
    capability.limits.cpu_time = Some(Duration::from_millis(1_500));
    capability.limits.cpu_percent = Some(12.5);
    capability.limits.processes = Some(64);
    capability.permissions = BTreeSet::from([Permission::SpawnSubprocess]);
    capability.env.allow = EnvAllow::Listed(BTreeMap::from([("EDITOR".to_owned(), origin(12))]));
    let tool = ToolPattern::parse("fs:*").unwrap();
    capability.tools.allowed = Some(vec![Rule::new(tool, origin(14))]);
    capability
}

pub fn origin(line: u32) -> Origin {
    Origin {
        file: Arc::from("capability.yaml"),
        line,
        column: 3,
        source: Source::Document,
    }
}

pub fn rule(path: &str, line: u32) -> Rule<PathRule> {
    Rule::new(PathRule::parse_hidden(path).unwrap(), origin(line))
}

pub fn document(capability: &Capability) -> CapabilityDocument {
    CapabilityDocument::new(capability, &places()).unwrap()
}

pub fn secret() -> SecretKey {
    SecretKey::ed25519(&[1; 32])
}

pub fn keyset(secret: &SecretKey) -> Keyset {
    let mut set = Keyset::new();
    set.add(&secret.identity(), 0, None).unwrap();
    set
}

/// A set that signs and verifies by HMAC: many times faster, where the algorithm is not the point.
pub fn quick() -> (SecretKey, Keyset) {
    let secret = SecretKey::hmac(&[2; 32]);
    let mut set = keyset(&secret);
    set.attach_hmac(Arc::new(SecretKey::hmac(&[2; 32])))
        .unwrap();
    (secret, set)
}

pub fn root() -> Payload {
    Payload {
        worker: WorkerId::from_u128(1),
        parent: None,
        depth: 0,
        depth_ceiling: 3,
        seq: 10,
        jti: Jti::from_u128(100),
        epoch: 5,
        not_before_ms: 1_000,
        expires_ms: Some(9_000),
        capability: document(&capability()),
        budget: Budget::filled(Amount::of(1_000)),
        program: Digest::of(b"program"),
        state: None,
        policy: Digest::of(b"contract"),
        reason: None,
    }
}

/// The least change that makes a child of a parent.
pub fn child_of(parent: &Verified, number: u128) -> Payload {
    let above = parent.payload();
    let mut budget = above.budget;
    budget.replicas = budget.replicas.less(Amount::of(1)).unwrap();
    Payload {
        worker: WorkerId::from_u128(number),
        parent: Some(ParentLink {
            worker: above.worker,
            envelope: parent.digest(),
        }),
        depth: above.depth + 1,
        seq: above.seq + 1,
        jti: Jti::from_u128(100 + number),
        budget,
        ..above.clone()
    }
}

pub fn seal(payload: &Payload, secret: &SecretKey) -> Envelope {
    let set = keyset(secret);
    Envelope::seal(payload, &set.signer(secret).unwrap()).unwrap()
}

/// What is signed, written here on its own.
pub fn signed_bytes(kind: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

/// An envelope around any bytes at all, with a signature that is genuine.
pub fn sign_anything(payload: &[u8], secret: &SecretKey) -> Vec<u8> {
    let signature = secret
        .sign_ed25519(&signed_bytes(PAYLOAD_TYPE, payload))
        .unwrap();
    envelope(
        PAYLOAD_TYPE,
        &BASE64.encode(payload),
        &secret.id().to_string(),
        &BASE64.encode(&signature),
    )
}

pub fn envelope(kind: &str, payload: &str, keyid: &str, sig: &str) -> Vec<u8> {
    // Written by hand, in the order that counts.
    let (kind, payload) = (json!(kind), json!(payload));
    let (keyid, sig) = (json!(keyid), json!(sig));
    format!(
        r#"{{"payloadType":{kind},"payload":{payload},"signatures":[{{"keyid":{keyid},"sig":{sig}}}]}}"#
    )
    .into_bytes()
}

/// The fields of an envelope as text.
pub fn fields(envelope: &Envelope) -> (String, String, String) {
    let value: Value = serde_json::from_slice(envelope.as_bytes()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let signature = &value["signatures"][0];
    (
        text(&value["payload"]),
        text(&signature["keyid"]),
        text(&signature["sig"]),
    )
}

pub fn payload_bytes(envelope: &Envelope) -> Vec<u8> {
    BASE64.decode(fields(envelope).0.as_bytes()).unwrap()
}

/// Parses and opens.
pub fn open(bytes: &[u8], keys: &Keyset) -> Result<Verified, Rejection> {
    Envelope::parse(bytes)?.open(keys)
}

#[track_caller]
pub fn refused(bytes: &[u8], keys: &Keyset) -> RejectReason {
    match open(bytes, keys) {
        Err(rejection) => {
            assert!(!rejection.detail.is_empty());
            rejection.reason
        }
        Ok(_) => panic!("accepted: {}", String::from_utf8_lossy(bytes)),
    }
}
