//! `belljar image`, the real binary: directories, OCI layouts, a real Debian suite; builders that are killed and that meet
//! each other.

mod support;

use belljar_image::{Digest, Store};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::{
    ImagePlace as Place, Who, eventually, for_each_user, path_text as text, runner_is_root,
};

const INVALID: i32 = 121;
const REFUSED: i32 = 122;

for_each_user!(
    a_directory_is_built_listed_and_pruned,
    an_oci_layout_is_named_with_its_reference,
    a_killed_builder_leaves_nothing_that_is_found,
    one_of_two_builders_waits_for_the_other,
    an_image_in_use_stays,
);

fn a_directory_is_built_listed_and_pruned(who: Who) {
    let place = Place::new(who);
    let first = place.build_source();
    assert_eq!(
        (&first["cached"], &first["entries"]),
        (&json!(false), &json!(5))
    );
    let tree = PathBuf::from(first["tree"].as_str().expect("a path"));
    assert_eq!(
        fs::read_to_string(tree.join("etc/motd")).expect("there"),
        "hello"
    );
    assert_eq!(
        fs::metadata(tree.join("etc/motd")).expect("there").uid(),
        who.uid()
    );
    assert_eq!(place.build_source()["cached"], json!(true));
    place.put("source/etc/motd", "other");
    let second = place.build_source();
    assert_eq!(second["cached"], json!(false));
    assert_ne!(first["digest"], second["digest"]);
    let listed = place.json(&["list"]);
    let names: Vec<&Value> = listed["images"]
        .as_array()
        .expect("images")
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, [&json!("tools"), &first["digest"]]);
    let table = place.run(&["list"]).stdout;
    let table = String::from_utf8(table).expect("text");
    assert!(
        table
            .lines()
            .nth(1)
            .is_some_and(|line| line.starts_with("tools ")),
        "{table}"
    );
    let pruned = place.json(&["prune"]);
    assert_eq!(
        (&pruned["trees"], &pruned["names"]),
        (&json!([first["digest"]]), &json!([]))
    );
    assert!(!tree.exists());
    let pruned = place.json(&["prune", "tools"]);
    assert_eq!(pruned["names"], json!(["tools"]));
    assert_eq!(place.json(&["list"]), json!({"images": []}));
    assert!(
        place
            .refused(&["prune", "tools"], INVALID)
            .contains("no image tools")
    );
    let missing = place.at("missing");
    let said = place.refused(&["build", "x", "--from-dir", text(&missing)], INVALID);
    assert!(said.contains("No such file"), "{said}");
    assert!(
        place
            .refused(&["build", "../x", "--from-dir", "/"], INVALID)
            .contains("can't be the name")
    );
}

/// With layers as GNU tar and zstd write them.
fn an_oci_layout_is_named_with_its_reference(who: Who) {
    let place = Place::new(who);
    let tar = Command::new("tar")
        .args(["--create", "--directory", text(&place.at("source")), "."])
        .output()
        .expect("tar");
    let packed = place.at("layer.tar.zst");
    fs::write(place.at("layer.tar"), &tar.stdout).expect("a file");
    let zstd = Command::new("zstd")
        .args(["-q", text(&place.at("layer.tar")), "-o", text(&packed)])
        .status();
    assert!(zstd.expect("zstd").success());
    let blob = |bytes: &[u8], media_type: &str| {
        let digest = Digest::of(bytes);
        place.put(&format!("lay:out/blobs/sha256/{}", digest.hex()), "");
        fs::write(
            place.at(&format!("lay:out/blobs/sha256/{}", digest.hex())),
            bytes,
        )
        .expect("a blob");
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    };
    let layer = blob(
        &fs::read(&packed).expect("packed"),
        "application/vnd.oci.image.layer.v1.tar+zstd",
    );
    let config = json!({
        "config": {"Env": ["LANG=C"], "WorkingDir": "/srv"},
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&tar.stdout)]},
    });
    let config = blob(
        config.to_string().as_bytes(),
        "application/vnd.oci.image.config.v1+json",
    );
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
    let mut manifest = blob(
        manifest.to_string().as_bytes(),
        "application/vnd.oci.image.manifest.v1+json",
    );
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": "tool:1"});
    place.put(
        "lay:out/index.json",
        &json!({"schemaVersion": 2, "manifests": [manifest]}).to_string(),
    );
    place.put("lay:out/oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    let layout = place.at("lay:out");
    for named in [
        text(&layout).to_owned(),
        format!("{}:tool:1", text(&layout)),
    ] {
        let built = place.json(&["build", "x", "--oci", &named]);
        assert_eq!(built["digest"], manifest["digest"]);
        assert_eq!(built["config"]["env"], json!([["LANG", "C"]]));
        let tree = PathBuf::from(built["tree"].as_str().expect("a path"));
        assert_eq!(
            fs::read_to_string(tree.join("etc/motd")).expect("there"),
            "hello"
        );
    }
    let wrong = format!("{}:tool:2", text(&layout));
    assert!(
        place
            .refused(&["build", "x", "--oci", &wrong], INVALID)
            .contains("no image tool:2")
    );
    let source = place.at("source");
    assert!(
        place
            .refused(&["build", "x", "--oci", text(&source)], INVALID)
            .contains("not an OCI layout")
    );
}

/// An engine that says which image it has and then sends the beginning of it, and no more for as long as it is kept.
struct Stalling {
    listener: UnixListener,
    place: PathBuf,
}

impl Stalling {
    fn at(place: &Place) -> (Self, PathBuf) {
        let path = place.at("stalling.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let id = Some(place.who.uid());
        if runner_is_root() {
            chown(&path, id, id).expect("given away");
        }
        // What is sent ends in the middle of this.
        place.put("large", &"x".repeat(64 * 1024));
        let place = place.at("");
        (Self { listener, place }, path)
    }

    /// Serves one build until it waits for the rest.
    fn serve(&self) -> UnixStream {
        let (mut stream, _) = self.listener.accept().expect("a connection");
        let id = Digest::of(b"it");
        let body = json!({"Id": id}).to_string();
        read_request(&mut stream);
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        read_request(&mut stream);
        let tar = Command::new("tar")
            .args([
                "--create",
                "--file=-",
                "--directory",
                text(&self.place),
                "large",
            ])
            .output()
            .expect("tar");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1 << 30);
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(&tar.stdout[..8192]).expect("sent");
        stream
    }
}

fn read_request(stream: &mut UnixStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        head.extend(byte);
    }
}

/// The words that ask for an image of the engine's at a socket.
fn build_from(socket: &Path) -> [&str; 6] {
    let at = text(socket);
    ["build", "tools", "--engine", "it", "--socket", at]
}

fn a_killed_builder_leaves_nothing_that_is_found(who: Who) {
    let place = Place::new(who);
    let (engine, socket) = Stalling::at(&place);
    let build = build_from(&socket);
    let mut builder = place.command(&build).spawn().expect("belljar runs");
    let _stream = engine.serve();
    eventually("something is being made", || {
        let scratch = place.making().first()?.join("scratch");
        fs::read_dir(scratch).ok()?.next().map(drop)
    });
    // What is being made is not there to be found, nor to be cleared away.
    assert_eq!(place.json(&["list"]), json!({"images": []}));
    assert_eq!(place.json(&["prune"])["leftovers"], json!(0));
    builder.kill().expect("killed");
    builder.wait().expect("ended");
    assert_eq!(place.making().len(), 1);
    assert_eq!(place.json(&["list"]), json!({"images": []}));
    assert_eq!(place.build_source()["cached"], json!(false));
    assert_eq!(place.json(&["prune"])["leftovers"], json!(1));
    assert!(place.making().is_empty());
    assert_eq!(place.build_source()["cached"], json!(true));
}

fn one_of_two_builders_waits_for_the_other(who: Who) {
    let place = Place::new(who);
    let (engine, socket) = Stalling::at(&place);
    let build = build_from(&socket);
    let mut first = place
        .command(&build)
        .stderr(Stdio::null())
        .spawn()
        .expect("belljar runs");
    let stream = engine.serve();
    let source = place.at("source");
    let build = [
        "build",
        "tools",
        "--from-dir",
        text(&source),
        "--output",
        "json",
    ];
    let mut others: Vec<_> = (0..4)
        .map(|_| {
            place
                .command(&build)
                .stdout(Stdio::piped())
                .spawn()
                .expect("belljar runs")
        })
        .collect();
    // The kernel says who waits for a lock.
    eventually("the others wait", || {
        let locks = fs::read_to_string("/proc/locks").expect("locks");
        let waits = |pid: u32| {
            locks.lines().any(|line| {
                line.contains("-> FLOCK")
                    && line.split_whitespace().any(|word| word == pid.to_string())
            })
        };
        others.iter().all(|other| waits(other.id())).then_some(())
    });
    assert_eq!(place.json(&["list"]), json!({"images": []}));
    drop(stream);
    assert!(!first.wait().expect("ended").success());
    let mut made = 0;
    for other in &mut others {
        let mut said = String::new();
        other
            .stdout
            .take()
            .expect("a pipe")
            .read_to_string(&mut said)
            .expect("text");
        assert!(other.wait().expect("ended").success());
        let said: Value = serde_json::from_str(&said).expect("JSON");
        made += usize::from(said["cached"] == json!(false));
    }
    assert_eq!(made, 1);
    assert!(place.making().is_empty());
}

fn an_image_in_use_stays(who: Who) {
    let place = Place::new(who);
    place.build_source();
    let image = Store::open(&place.at("state"))
        .find("tools")
        .expect("found");
    let held = image.hold().expect("held");
    let said = place.refused(&["prune", "tools"], REFUSED);
    assert!(
        said.contains("in use") && said.contains("belljar ps"),
        "{said}"
    );
    let pruned = place.json(&["prune", "--all"]);
    assert_eq!(
        pruned["kept"],
        json!([{"name": "tools", "digest": image.digest}])
    );
    assert!(image.tree.join("etc/motd").exists());
    drop(held);
    assert_eq!(place.json(&["prune", "--all"])["names"], json!(["tools"]));
    assert!(!image.tree.exists());
}

#[test]
fn an_engine_that_is_not_there_is_said_with_what_to_do() {
    let place = Place::new(Who::User);
    let socket = place.at("none.sock");
    let said = place.refused(
        &["build", "x", "--engine", "it", "--socket", text(&socket)],
        REFUSED,
    );
    assert!(
        said.contains("no engine's socket") && said.contains("docker.io"),
        "{said}"
    );
    let mut command = place.command(&["build", "x", "--engine", "it"]);
    let output = command
        .env("DOCKER_HOST", "tcp://127.0.0.1:1")
        .output()
        .expect("belljar runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no Unix socket"), "{said}");
    let said = place.refused(&["build", "x", "--engine", "../containers"], INVALID);
    assert!(said.contains("no reference"), "{said}");
}

mod as_root_alone {
    use super::*;

    #[test]
    fn a_real_suite_is_made_of_the_hosts_mirror_and_kept() {
        Who::Root.require();
        let place = Place::new(Who::Root);
        let release = fs::read_to_string("/etc/os-release").expect("a release");
        let suite = release
            .lines()
            .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        let suite = suite.expect("a suite");
        let build = ["build", "debian", "--debian", suite];
        let built = place.json(&build);
        let tree = PathBuf::from(built["tree"].as_str().expect("a path"));
        assert!(tree.join("usr/bin/dpkg").is_file() && tree.join("bin").exists());
        assert!(!tree.join("dev/null").exists());
        // Who changes to another user does it by a set-id bit, of which there are none here.
        assert!(built["left_out"]["set_id_bits"].as_u64() > Some(0));
        assert_eq!(
            fs::metadata(tree.join("bin/su")).expect("there").mode() & 0o6000,
            0
        );
        assert_eq!(place.json(&build)["cached"], json!(true));
        assert!(place.making().is_empty());
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!mounts.contains(text(place.scratch.path())));
        for bad in ["--help", "../x", ""] {
            let said = place.refused(&["build", "x", &format!("--debian={bad}")], INVALID);
            assert!(said.contains("is no suite"), "{said}");
        }
        let said = place.refused(
            &["build", "x", "--debian", suite, "--include=a,--hook"],
            INVALID,
        );
        assert!(said.contains("no package's name"), "{said}");
    }
}
