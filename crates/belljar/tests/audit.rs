//! `belljar audit`: a record that holds passes, and one that does not is told by what is wrong with it.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use belljar_gate::LogKind;
use belljar_ledger::{Durability, Ledger, Options, Reader, SignError, Signer, Wait};
use belljar_manifest::keys::SecretKey;
use serde_json::Value;
use support::{Jail, Record, Who, finish, for_each_user, with_flipped};

const OK: i32 = 0;
const TAMPERED: i32 = 1;
const TRUNCATED: i32 = 3;
const UNSIGNED: i32 = 4;
const STALE: i32 = 5;
const UNREADABLE: i32 = 6;
const INVALID: i32 = 121;

/// More than one tile holds.
const MANY: usize = 260;
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn nothing_to_verify_is_no_fault_until_there_is_a_key() {
    let record = Record::new();
    for log in ["runs", "fleet"] {
        let (code, answer) = record.verify(&["--log", log]);
        assert_eq!((code, answer["status"].as_str()), (OK, Some("empty")));
    }
    assert_eq!(record.verify(&["--max-age", "1000"]).0, UNSIGNED);
    record.note("first");
    record.assert_holds();
    fs::remove_dir_all(record.log(LogKind::Runs)).expect("delete the log");
    assert_eq!(record.verify(&[]).0, UNSIGNED);
    // Whether there was a fleet can't be known without the log of runs.
    assert_eq!(record.verify(&["--log", "fleet"]).0, UNSIGNED);
}

#[test]
fn a_flipped_bit_in_any_file_is_noticed() {
    let record = Record::of(MANY);
    record.with_fleet();
    record.assert_holds();
    for log in LogKind::ALL {
        let files = record.files(log);
        assert!(files.len() >= 3, "{files:?}");
        for file in &files {
            let length = fs::metadata(file).expect("a file").len() as usize;
            for at in [0, length / 2, length - 1] {
                with_flipped(file, at, || {
                    let (code, answer) = record.verify(&["--log", log.as_str()]);
                    let is_noticed = [TAMPERED, TRUNCATED, UNSIGNED].contains(&code);
                    assert!(is_noticed, "{} at {at}: {answer}", file.display());
                    assert!(answer["hint"].is_string(), "{answer}");
                });
            }
        }
    }
    record.assert_holds();
}

#[test]
fn a_changed_entry_is_named() {
    let record = Record::of(MANY);
    let bundle = record.log(LogKind::Runs).join("tile/entries/000");
    let bytes = fs::read(&bundle).expect("entries");
    let at = bytes
        .windows(10)
        .position(|window| window == b"\"entry 77\"")
        .expect("the entry's text");
    with_flipped(&bundle, at + 7, || {
        let (code, answer) = record.verify(&[]);
        assert_eq!(code, TAMPERED);
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(message.contains("entry 77"), "{message}");
        let said = record.belljar(&["audit", "verify"]);
        assert!(said.stdout().starts_with("tampered  "), "{}", said.stdout());
        assert!(said.stderr().contains("hint:"), "{}", said.stderr());
    });
}

#[test]
fn entries_gone_from_the_end_are_a_truncation() {
    let record = Record::of(MANY);
    let entries = record.log(LogKind::Runs).join("tile/entries");
    fs::remove_dir_all(entries.join("001.p")).expect("delete the last bundle");
    let (code, answer) = record.verify(&[]);
    assert_eq!(code, TRUNCATED, "{answer}");
    // Reading stops there too, and with the same code.
    let shown = record.belljar(&["audit", "show"]);
    assert_eq!(shown.code(), TRUNCATED, "{}", shown.stderr());
    assert_eq!(shown.stdout().lines().count(), 256);
}

#[test]
fn a_log_put_back_is_noticed_with_what_was_kept_elsewhere() {
    let record = Record::of(3);
    let old = record.beside("old");
    copy(&record.log(LogKind::Runs), &old);
    record.note("fourth");
    let kept = record.beside("kept");
    let checkpoint = record.belljar(&["audit", "checkpoint"]);
    fs::write(&kept, &checkpoint.stdout).expect("keep a checkpoint");
    let kept = kept.to_str().expect("a plain path");
    record.note("fifth");
    assert_eq!(record.verify(&["--since", kept]).0, OK);
    fs::remove_dir_all(record.log(LogKind::Runs)).expect("delete the log");
    copy(&old, &record.log(LogKind::Runs));
    assert_eq!(record.verify(&[]).0, OK, "it was right once");
    assert_eq!(record.verify(&["--since", kept]).0, TRUNCATED);
    // Another history of the same length, signed by the same key.
    (0..4).for_each(|_| record.note("another"));
    assert_eq!(record.verify(&[]).0, OK);
    assert_eq!(record.verify(&["--since", kept]).0, TAMPERED);
}

#[test]
fn a_log_put_back_behind_a_change_of_keys_is_stale() {
    let record = Record::of(3);
    record.with_fleet();
    let before = record.beside("before");
    for log in LogKind::ALL {
        copy(&record.log(log), &before.join(log.as_str()));
    }
    let rotated = record.belljar(&["keys", "rotate"]);
    assert_eq!(rotated.code(), OK, "{}", rotated.stderr());
    for log in LogKind::ALL {
        // A rotation signs the logs anew at once.
        assert_eq!(record.verify(&["--log", log.as_str()]).0, OK);
    }
    for log in LogKind::ALL {
        fs::remove_dir_all(record.log(log)).expect("delete the log");
        copy(&before.join(log.as_str()), &record.log(log));
    }
    for log in LogKind::ALL {
        let (code, answer) = record.verify(&["--log", log.as_str()]);
        assert_eq!(code, STALE, "{answer}");
        assert_eq!(answer["status"], "stale");
        assert!(answer["hint"].is_string(), "{answer}");
    }
}

#[test]
fn a_kept_checkpoint_that_is_none_is_refused() {
    let record = Record::of(2);
    record.with_fleet();
    let kept = record.beside("kept");
    let path = kept.to_str().expect("a plain path").to_owned();
    let of_runs = record.belljar(&["audit", "checkpoint"]).stdout;
    let of_fleet = record
        .belljar(&["audit", "checkpoint", "--log", "fleet"])
        .stdout;
    let mut forged = of_runs.clone();
    let size = "belljar/runs\n".len();
    forged[size] ^= 1;
    for bad in [&b""[..], &of_fleet, &forged, &[b'x'; 300 * 1024]] {
        fs::write(&kept, bad).expect("a file");
        let said = record.belljar(&["audit", "verify", "--since", &path]);
        assert_eq!(said.code(), INVALID, "{}", said.stderr());
        assert!(said.stderr().contains("hint:"));
    }
    fs::write(&kept, of_runs).expect("a file");
    assert_eq!(record.verify(&["--since", &path]).0, OK);
}

#[test]
fn a_signature_that_is_not_ours_does_not_count() {
    let record = Record::of(2);
    let stranger = Record::of(1);
    let keyset = stranger.keyset_file();
    let keyset = keyset.to_str().expect("a plain path");
    let (code, answer) = record.verify(&["--keyset", keyset]);
    assert_eq!(code, UNSIGNED, "{answer}");
    // The stranger's log in the place of ours.
    fs::remove_dir_all(record.log(LogKind::Runs)).expect("delete the log");
    copy(&stranger.log(LogKind::Runs), &record.log(LogKind::Runs));
    assert_eq!(record.verify(&[]).0, UNSIGNED);
    assert_eq!(record.verify(&["--keyset", keyset]).0, OK);
    fs::remove_file(record.log(LogKind::Runs).join("checkpoint")).expect("delete");
    assert_eq!(record.verify(&["--keyset", keyset]).0, UNSIGNED);
}

#[test]
fn the_first_signature_replayed_is_an_empty_log_where_none_should_be() {
    let record = Record::new();
    record.note("first");
    // The log begins with a signed nothing, which lies beside until the next signature.
    let log = record.log(LogKind::Runs);
    let nothing = fs::read_to_string(log.join("checkpoint.spare")).expect("the one before");
    assert!(nothing.starts_with("belljar/runs\n0\n"), "{nothing}");
    fs::write(log.join("checkpoint"), nothing).expect("put it back");
    let (code, answer) = record.verify(&[]);
    assert_eq!(code, UNSIGNED, "{answer}");
}

#[test]
fn an_old_signature_is_stale_where_a_young_one_is_asked_for() {
    let record = Record::of(1);
    assert_eq!(record.verify(&["--max-age", "0.000001"]).0, STALE);
    assert_eq!(record.verify(&["--max-age", "3000000000"]).0, OK);
}

#[test]
fn a_log_that_cannot_be_read_is_told_apart() {
    let record = Record::of(1);
    let checkpoint = record.log(LogKind::Runs).join("checkpoint");
    fs::remove_file(&checkpoint).expect("delete");
    fs::create_dir(&checkpoint).expect("a directory in its place");
    let (code, answer) = record.verify(&[]);
    assert_eq!(code, UNREADABLE, "{answer}");
}

#[test]
fn the_fleets_log_cut_back_or_replaced_shows_in_the_log_of_runs() {
    let record = Record::of(1);
    record.with_fleet();
    record.assert_holds();
    assert!(record.verify(&[]).1["fleet_anchors"].as_u64() >= Some(2));
    fs::remove_dir_all(record.log(LogKind::Fleet)).expect("delete the fleet's log");
    assert_eq!(record.verify(&[]).0, TRUNCATED);
    let (code, answer) = record.verify(&["--log", "fleet"]);
    assert_eq!(code, UNSIGNED, "{answer}");
    // Another fleet's log in its place, longer than the first and signed by the same key.
    record.with_fleet();
    record.with_fleet();
    for log in ["runs", "fleet"] {
        let (code, answer) = record.verify(&["--log", log]);
        assert_eq!(code, TAMPERED, "{answer}");
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(message.contains("the log of fleet"), "{message}");
    }
}

#[test]
fn an_entry_of_a_kind_unknown_here_is_reported_and_holds() {
    let record = Record::of(1);
    append_foreign(&record, b"\x1b[31mnot JSON\n");
    append_foreign(
        &record,
        br#"{"v":1,"at":{"boot_ns":1,"wall_ms":1},"what":{"kind":"from_the_future"}}"#,
    );
    append_foreign(
        &record,
        br#"{"what":{"kind":"\u001b[2J","\u001b]0;x":{"\u009b":1}}}"#,
    );
    let (code, answer) = record.verify(&[]);
    assert_eq!(code, OK);
    assert_eq!(answer["entries_not_understood"], 3);
    assert_eq!(answer["first_not_understood"], 1);
    assert_eq!(answer["notes"].as_array().map(Vec::len), Some(1));
    let shown = record.belljar(&["audit", "show"]).stdout();
    assert!(shown.contains("not_understood") && shown.contains("from_the_future"));
    assert_eq!(shown.lines().count(), 4);
    assert!(!shown.contains(['\x1b', '\u{9b}']), "{shown:?}");
    for words in [
        &["audit", "show", "--output", "json"][..],
        &["audit", "export", "--format", "ocsf"],
    ] {
        let out = record.belljar(words).stdout();
        assert_eq!(out.lines().count(), 4);
        out.lines()
            .for_each(|line| assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}"));
    }
}

#[test]
fn a_proof_needs_nothing_but_public_keys() {
    let record = Record::of(MANY);
    let proof = record.beside("entry.tlog-proof");
    let keyset = record.beside("keyset.json");
    fs::copy(record.keyset_file(), &keyset).expect("hand out the public keys");
    let path = proof.to_str().expect("a plain path");
    let proved = record.belljar(&["audit", "prove", "--entry", "130", "--out", path]);
    assert_eq!(proved.code(), OK, "{}", proved.stderr());
    let elsewhere = |words: &[&str]| {
        let mut command = record.command(&["audit", "verify", "--output", "json", "--proof"]);
        command.arg(&proof).arg("--keyset").arg(&keyset).args(words);
        command.env_remove("BELLJAR_STATE_DIR");
        let finished = finish(command.spawn().expect("start belljar"));
        let answer: Value = serde_json::from_slice(&finished.stdout).expect("an answer");
        (finished.code(), answer)
    };
    fs::remove_dir_all(record.state()).expect("delete the log and the keys");
    let (code, answer) = elsewhere(&[]);
    assert_eq!(code, OK, "{answer}");
    assert_eq!(answer["entry"], 130);
    assert_eq!(answer["content"]["what"]["reason"], "entry 130");
    assert_eq!(elsewhere(&["--entry", "130", "--log", "runs"]).0, OK);
    assert_eq!(elsewhere(&["--entry", "131"]).0, TAMPERED);
    assert_eq!(elsewhere(&["--log", "fleet"]).0, TAMPERED);
    let text = fs::read_to_string(&proof).expect("a proof");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    // Every line matters: a character changed anywhere, and it does not hold.
    for (n, line) in lines.iter().enumerate().filter(|(_, line)| line.len() > 1) {
        let at: usize = lines[..n].iter().map(|line| line.len()).sum::<usize>() + line.len() / 2;
        with_flipped(&proof, at, || {
            let (code, answer) = elsewhere(&[]);
            assert!(
                [TAMPERED, UNSIGNED, UNREADABLE].contains(&code),
                "line {n}: {answer}"
            );
        });
    }
    let without: String = lines
        .iter()
        .copied()
        .filter(|line| !line.starts_with("extra "))
        .collect();
    fs::write(&proof, without).expect("a proof without its entry");
    assert_eq!(elsewhere(&[]).0, UNREADABLE);
    fs::write(&proof, &text).expect("the proof");
    fs::copy(Record::of(1).keyset_file(), &keyset).expect("a stranger's keys");
    assert_eq!(elsewhere(&[]).0, UNSIGNED);
}

#[test]
fn a_proof_that_finds_no_room_leaves_the_one_that_was_there() {
    let record = Record::of(4);
    let proof = record.beside("entry.tlog-proof");
    let path = proof.to_str().expect("a plain path");
    let proved = record.belljar(&["audit", "prove", "--entry", "1", "--out", path]);
    assert_eq!(proved.code(), OK, "{}", proved.stderr());
    let before = fs::read(&proof).expect("a proof");
    // Files have no room, as on a full disk; a device has.
    let bounded = |out: &str| {
        let prove = record.command(&["audit", "prove", "--entry", "2", "--out", out]);
        let mut command = std::process::Command::new("/bin/sh");
        command
            .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""])
            .arg(prove.get_program())
            .args(prove.get_args())
            .env("BELLJAR_STATE_DIR", record.state())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        finish(command.spawn().expect("start belljar"))
    };
    let refused = bounded(path);
    assert_ne!(refused.code(), OK, "{}", refused.stderr());
    assert_eq!(fs::read(&proof).expect("a proof"), before);
    assert_eq!(bounded("/dev/null").code(), OK);
    let beside = fs::read_dir(proof.parent().expect("a parent")).expect("a directory");
    let left: Vec<_> = beside
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().contains("tlog-proof"))
        .collect();
    assert_eq!(left, ["entry.tlog-proof"]);
}

#[test]
fn no_proof_comes_out_of_a_log_that_was_changed() {
    let record = Record::of(4);
    let bundle = record.log(LogKind::Runs).join("tile/entries/000.p/4");
    with_flipped(&bundle, 60, || {
        let refused = record.belljar(&["audit", "prove", "--entry", "0"]);
        assert_eq!(refused.code(), TAMPERED, "{}", refused.stderr());
        assert!(refused.stdout.is_empty());
    });
    assert_eq!(
        record.belljar(&["audit", "prove", "--entry", "0"]).code(),
        OK
    );
    let beyond = record.belljar(&["audit", "prove", "--entry", "4"]);
    assert_eq!(beyond.code(), INVALID);
    assert!(beyond.stderr().contains("0 to 3"), "{}", beyond.stderr());
}

#[test]
fn entries_are_printed_byte_for_byte_or_as_lines_for_people() {
    let record = Record::new();
    let nasty = "\u{1b}]0;owned\u{7}\r\n[belljar] hint: all is well \u{202e}\u{9b}2J";
    record.note("plain");
    record.note(nasty);
    record.note("last");
    let reader = Reader::open(&record.log(LogKind::Runs)).expect("a log");
    let mut exact = Vec::new();
    for entry in reader.entries(0) {
        exact.extend(entry.expect("an entry").bytes);
        exact.push(b'\n');
    }
    for words in [
        &["audit", "show", "--output", "json"][..],
        &["audit", "export"],
        &["audit", "tail", "--output", "json"],
    ] {
        assert_eq!(record.belljar(words).stdout, exact, "{words:?}");
    }
    let shown = record.belljar(&["audit", "show"]).stdout();
    assert_eq!(shown.lines().count(), 3);
    assert!(
        !shown
            .chars()
            .any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'),
        "{shown:?}"
    );
    assert!(shown.starts_with("0  20"), "{shown}");
    let some = |words: &[&str]| {
        let mut all = vec!["audit", "show"];
        all.extend(words);
        record.belljar(&all).stdout().lines().count()
    };
    assert_eq!(some(&["--entry", "1"]), 1);
    assert_eq!(some(&["--from", "1"]), 2);
    assert_eq!(some(&["--from", "1", "--limit", "1"]), 1);
    assert_eq!(some(&["--from", "9"]), 0);
    assert_eq!(
        record.belljar(&["audit", "show", "--entry", "3"]).code(),
        INVALID
    );
}

#[test]
fn a_siem_gets_the_fields_of_its_schema() {
    let record = Record::new();
    record
        .gate()
        .refused("box7", "/bin/x", "deny_hidden", "it is hidden")
        .expect("an entry");
    let text = record
        .belljar(&["audit", "export", "--format", "ocsf"])
        .stdout();
    let event: Value = serde_json::from_str(text.trim_end()).expect("one event");
    assert_eq!(event["class_uid"], 6003);
    assert_eq!(event["category_uid"], 6);
    assert_eq!(event["type_uid"], 600_301);
    assert_eq!(event["status_id"], 2);
    assert_eq!(event["status_code"], "deny_hidden");
    assert_eq!(event["status_detail"], "it is hidden");
    assert_eq!(event["metadata"]["uid"], "runs/0");
    assert_eq!(event["metadata"]["product"]["name"], "Belljar");
    assert_eq!(event["src_endpoint"]["uid"], "box7");
    assert_eq!(event["actor"]["app_name"], "belljar");
    assert!(event["time"].as_u64() > Some(1_600_000_000_000));
}

#[test]
fn tail_follows_and_ends_with_its_reader() {
    let record = Record::of(3);
    let mut child = record
        .command(&["audit", "tail", "--follow", "-n", "1"])
        .spawn()
        .expect("start belljar");
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    let (send, lines) = mpsc::channel();
    let listener = std::thread::spawn(move || {
        for _ in 0..2 {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a line");
            send.send(line).expect("somebody listens");
        }
        // The reader goes away here.
    });
    let next = || lines.recv_timeout(PATIENCE).expect("a line in time");
    assert!(next().contains("entry 2"));
    record.note("something new");
    assert!(next().contains("something new"));
    listener.join().expect("the reader ended");
    assert_eq!(finish(child).code(), OK);
}

/// A real run, from launch to end, as the user who started it.
fn a_run_is_on_record(who: Who) {
    let jail = Jail::new(who);
    let run = jail.run(&["/bin/sh", "-c", "exit 7"]);
    let id = run.sandbox_id();
    let ask = |words: &[&str]| finish(jail.belljar(words).spawn().expect("start belljar"));
    assert_eq!(ask(&["audit", "verify"]).code(), OK);
    let shown = ask(&["audit", "show", "--output", "json"]).stdout();
    let entries: Vec<Value> = shown
        .lines()
        .map(|line| serde_json::from_str(line).expect("an entry"))
        .collect();
    let of_run: Vec<&Value> = entries
        .iter()
        .map(|entry| &entry["what"])
        .filter(|what| what["run"] == id)
        .collect();
    let [launched, ended] = of_run[..] else {
        panic!("{shown}");
    };
    assert_eq!(launched["kind"], "run_launched");
    assert_eq!(launched["user"], who.uid());
    assert_eq!(ended["kind"], "run_ended");
    assert_eq!(ended["exit_code"], 7);
}

for_each_user!(a_run_is_on_record);

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy(&from, &to),
            false => drop(fs::copy(from, to).expect("copy a file")),
        }
    }
}

/// Signs like the gate, for entries that the gate would not write.
struct Forger(SecretKey);

impl Signer for Forger {
    fn key_name(&self) -> &str {
        LogKind::Runs.origin()
    }

    fn verifying_key(&self) -> [u8; 32] {
        self.0.public_key().expect("an Ed25519 key").bytes()
    }

    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignError> {
        self.0.sign_ed25519(message).map_err(SignError::new)
    }
}

fn append_foreign(record: &Record, entry: &[u8]) {
    let keys = fs::read_dir(record.state().join("keys"))
        .expect("keys")
        .flatten();
    let file = keys
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "key"));
    let secret = fs::read(file.expect("a key")).expect("a secret");
    let signer = Arc::new(Forger(SecretKey::parse(&secret).expect("a key")));
    let directory = record.log(LogKind::Runs);
    let origin = LogKind::Runs.origin();
    let (mut ledger, _) =
        Ledger::lock_and_open(&directory, origin, signer, Options::default(), Wait::Block)
            .expect("the log");
    ledger.append(entry).expect("an entry");
    ledger.commit(Durability::Crash).expect("a commit");
}
