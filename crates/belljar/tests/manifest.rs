//! `belljar manifest`: papers that hold pass anywhere, and papers that do not are refused by a stable code.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_gate::{Act, FleetGate, Papers, Standing, Wish};
use belljar_manifest::lineage::{CapabilityDocument, Digest};
use belljar_policy::{Amount, Budget, Contract, Places, SignerKind};
use belljar_replication::{Asked, Jti, WorkerId};
use serde_json::Value;
use support::{Finished, Record, finish};

const OK: i32 = 0;
const NO: i32 = 1;
const INVALID: i32 = 121;

/// A fleet, and the papers of one of its families: a root, its child, and the child's child.
struct Family {
    record: Record,
    fleet: Option<FleetGate>,
    files: Vec<PathBuf>,
}

fn wish(worker: u128, replicas: u64) -> Wish {
    let places = Places {
        home: PathBuf::from("/home/agent"),
        work: PathBuf::from("/home/agent/work"),
        homes: vec![PathBuf::from("/home")],
    };
    let capability = belljar_manifest::profile("strict").expect("a shipped profile");
    Wish {
        worker: WorkerId(worker),
        asked: Asked {
            replicas: Some(Amount::of(replicas)),
            ..Asked::default()
        },
        need: Budget::ZERO,
        standing: Standing {
            capability: CapabilityDocument::new(&capability, &places).expect("a document"),
            program: Digest::of(b"program"),
            state: None,
        },
        reason: "to see what happens".to_owned(),
    }
}

impl Family {
    fn new(signer: SignerKind) -> Family {
        let record = Record::new();
        let mut contract = Contract::new(3, 8, Duration::ZERO, None);
        contract.signer = signer;
        let fleet = record.fleet(contract);
        let root = fleet.admit_root(wish(1, 4), Jti(11)).expect("a root");
        let root = root.spend().papers;
        let child = fleet
            .replicate(&root, wish(2, 2), Jti(12))
            .expect("a child");
        let child = child.spend().papers;
        let grandchild = fleet
            .replicate(&child, wish(3, 0), Jti(13))
            .expect("a child's child");
        let all = [root, child, grandchild.spend().papers];
        let put = |(n, papers): (usize, &Papers)| {
            let file = record.beside(&format!("manifest{n}.json"));
            fs::write(&file, papers.envelope().as_bytes()).expect("a manifest");
            file
        };
        let files = all.iter().enumerate().map(put).collect();
        Family {
            record,
            fleet: Some(fleet),
            files,
        }
    }

    fn fleet(&self) -> &FleetGate {
        self.fleet.as_ref().expect("an open fleet")
    }

    fn verify(&self, files: &[&Path], words: &[&str]) -> (i32, Value) {
        let mut command = self
            .record
            .command(&["manifest", "verify", "--output", "json"]);
        command.args(files).args(words);
        answer(finish(command.spawn().expect("start belljar")))
    }

    fn chain(&self) -> Vec<&Path> {
        self.files.iter().map(PathBuf::as_path).collect()
    }

    #[track_caller]
    fn refused(&self, files: &[&Path], at: u64, code: &str) {
        let (exit, answer) = self.verify(files, &[]);
        assert_eq!(exit, NO, "{answer}");
        assert_eq!(
            (answer["code"].as_str(), answer["manifest"].as_u64()),
            (Some(code), Some(at)),
            "{answer}"
        );
        assert!(answer["hint"].is_string());
    }
}

#[track_caller]
fn answer(finished: Finished) -> (i32, Value) {
    let answer = serde_json::from_slice(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", finished.stdout(), finished.stderr()));
    (finished.code(), answer)
}

fn act() -> Act {
    Act {
        reason: "a test".to_owned(),
        by: belljar_gate::Actor::this_user(),
    }
}

#[test]
fn a_whole_chain_holds_and_a_part_of_it_does_not() {
    let family = Family::new(SignerKind::Ed25519);
    let (code, answer) = family.verify(&family.chain(), &[]);
    assert_eq!(code, OK, "{answer}");
    assert_eq!(answer["chain"].as_array().map(Vec::len), Some(3));
    assert_eq!(answer["depth"], 2);
    assert_eq!(answer["worker"], WorkerId(3).to_string());
    assert_eq!(answer["revocation_checked"], true);
    let [root, child, grandchild] = &family.chain()[..] else {
        panic!("three manifests");
    };
    assert_eq!(family.verify(&[root], &[]).0, OK);
    family.refused(&[child, grandchild], 0, "reject_chain");
    family.refused(&[root, grandchild], 1, "reject_chain");
    family.refused(&[child, root], 0, "reject_chain");
    family.refused(&[root, child, child], 2, "reject_chain");
    // One file may hold all of them.
    let bundle = family.record.beside("chain.jsonl");
    let all: Vec<String> = family
        .files
        .iter()
        .map(|file| fs::read_to_string(file).expect("a manifest"))
        .collect();
    fs::write(&bundle, all.join("\n") + "\n").expect("a bundle");
    assert_eq!(family.verify(&[&bundle], &[]).0, OK);
    fs::write(&bundle, "\n\n").expect("nothing");
    family.refused(&[&bundle], 0, "reject_chain");
    let said = family
        .record
        .belljar(&["manifest", "verify", "nowhere.json"]);
    assert_eq!(said.code(), INVALID, "{}", said.stderr());
}

#[test]
fn a_changed_manifest_is_refused() {
    let family = Family::new(SignerKind::Ed25519);
    let chain = family.chain();
    let good = fs::read_to_string(chain[2]).expect("a manifest");
    let put = |text: &str| fs::write(chain[2], text).expect("damage it");
    // In the payload, still base64: the signature tells.
    let at = good.find("\"payload\":\"").expect("a payload") + 40;
    let other = if good.as_bytes()[at] == b'A' {
        "B"
    } else {
        "A"
    };
    put(&format!("{}{other}{}", &good[..at], &good[at + 1..]));
    family.refused(&chain, 2, "reject_signature");
    put(&format!("{good} "));
    family.refused(&chain, 2, "reject_malformed");
    put("{}");
    family.refused(&chain, 2, "reject_malformed");
    put(&good);
    assert_eq!(family.verify(&chain, &[]).0, OK);
}

#[test]
fn the_fleets_log_knows_what_was_revoked() {
    let family = Family::new(SignerKind::Ed25519);
    family
        .fleet()
        .revoke(WorkerId(2), act())
        .expect("on record")
        .expect("revoked");
    let chain = family.chain();
    family.refused(&chain, 1, "reject_revoked");
    assert_eq!(family.verify(&chain[..1], &[]).0, OK, "the root is not");
    family.fleet().bump_epoch(act()).expect("on record");
    family.refused(&chain[..1], 0, "reject_epoch");
}

#[test]
fn a_log_that_was_changed_is_no_witness() {
    let mut family = Family::new(SignerKind::Ed25519);
    let revoked = family.fleet().revoke(WorkerId(3), act());
    revoked.expect("on record").expect("revoked");
    family.fleet = None;
    let log = family.record.state().join("fleet/ledger/tile/entries");
    let bundle = support::files_below(&log).pop().expect("entries");
    let good = fs::read(&bundle).expect("entries");
    let mark = format!(r#""kind":"revoked","worker":"{}"#, WorkerId(3));
    let at = good
        .windows(mark.len())
        .position(|window| window == mark.as_bytes())
        .expect("the revocation");
    // Somebody else is revoked now, if the log were to be believed.
    let mut bad = good.clone();
    bad[at + mark.len() - 1] = b'9';
    fs::write(&bundle, bad).expect("change the log");
    let mut command = family.record.command(&["manifest", "verify"]);
    command.args(&family.files);
    let said = finish(command.spawn().expect("start belljar"));
    assert_eq!(said.code(), NO, "{}", said.stdout());
    assert!(
        said.stderr().contains("the log of fleet"),
        "{}",
        said.stderr()
    );
    fs::write(&bundle, good).expect("put it back");
    family.refused(&family.chain(), 2, "reject_revoked");
}

#[test]
fn somebody_else_verifies_with_public_keys_alone_and_is_told_what_is_unknown() {
    let family = Family::new(SignerKind::Ed25519);
    let keyset = family.record.beside("keyset.json");
    fs::copy(family.record.keyset_file(), &keyset).expect("hand out the public keys");
    let elsewhere = |keyset: &Path, output: &[&str]| {
        let mut command = family.record.command(&["manifest", "verify"]);
        command
            .args(&family.files)
            .arg("--keyset")
            .arg(keyset)
            .args(output);
        command
            .env_remove("BELLJAR_STATE_DIR")
            .env("HOME", family.record.beside("home"));
        command.env("XDG_STATE_HOME", family.record.beside("xdg"));
        let other = family.record.beside("other");
        fs::create_dir_all(&other).expect("a directory");
        command.env("BELLJAR_STATE_DIR", other);
        finish(command.spawn().expect("start belljar"))
    };
    let (code, told) = answer(elsewhere(&keyset, &["--output", "json"]));
    assert_eq!(code, OK, "{told}");
    assert_eq!(told["revocation_checked"], false);
    let said = elsewhere(&keyset, &[]);
    assert!(
        said.stderr().contains("revoked is not known"),
        "{}",
        said.stderr()
    );
    let stranger = Record::of(1);
    let (code, told) = answer(elsewhere(&stranger.keyset_file(), &["--output", "json"]));
    assert_eq!(
        (code, told["code"].as_str()),
        (NO, Some("reject_key_unknown"))
    );
}

#[test]
fn a_compromised_key_vouches_for_nobody() {
    let mut family = Family::new(SignerKind::Ed25519);
    family.fleet = None;
    let listed = family.record.json(&["keys", "list", "--output", "json"]);
    let key = listed["signing"].as_str().expect("a key").to_owned();
    assert_eq!(family.record.belljar(&["keys", "rotate"]).code(), OK);
    assert_eq!(
        family.verify(&family.chain(), &[]).0,
        OK,
        "a retired key still vouches"
    );
    assert_eq!(
        family.record.belljar(&["keys", "compromise", &key]).code(),
        OK
    );
    family.refused(&family.chain(), 0, "reject_key_compromised");
}

#[test]
fn hmac_manifests_verify_where_their_key_is() {
    let family = Family::new(SignerKind::Hmac);
    let (code, told) = family.verify(&family.chain(), &[]);
    assert_eq!(code, OK, "{told}");
    assert_eq!(told["revocation_checked"], true);
    let public = family.record.state().join("keys/hmac/keyset.json");
    let public = public.to_str().expect("a plain path").to_owned();
    let (code, told) = family.verify(&family.chain(), &["--keyset", &public]);
    assert_eq!(
        (code, told["code"].as_str()),
        (NO, Some("reject_key_missing"))
    );
}

#[test]
fn show_prints_what_nobody_checked() {
    let family = Family::new(SignerKind::Ed25519);
    let file = family.files[1].to_str().expect("a plain path");
    let told = family
        .record
        .json(&["manifest", "show", file, "--output", "json"]);
    assert_eq!(told["verified"], false);
    assert_eq!(told["payload"]["worker"], WorkerId(2).to_string());
    assert_eq!(told["payload"]["reason"], "to see what happens");
    let said = family.record.belljar(&["manifest", "show", file]);
    assert_eq!(said.code(), OK);
    assert!(
        said.stdout().contains("to see what happens"),
        "{}",
        said.stdout()
    );
    assert!(
        said.stderr().contains("nothing of this was checked"),
        "{}",
        said.stderr()
    );
    let junk = family.record.beside("junk.json");
    fs::write(&junk, "\u{1b}[2J").expect("junk");
    let said = family
        .record
        .belljar(&["manifest", "show", junk.to_str().expect("a plain path")]);
    assert_eq!(said.code(), NO);
    assert!(!said.stdout().contains('\u{1b}'));
}
