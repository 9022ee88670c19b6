//! Images of real engines: Docker's and Podman's, each of a test's own; engines that are killed and come back. As root alone.

mod support;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};
use support::{Dockerd, ImagePlace as Place, Who, eventually, path_text as text, processes_marked};

const REFUSED: i32 = 122;

/// What is said when the engine at this socket has no such image.
fn refused_for_want_of_it(place: &Place, socket: &Path) -> String {
    let build = ["build", "x", "--engine", "none:1", "--socket", text(socket)];
    place.refused(&build, REFUSED)
}

mod as_root_alone {
    use super::*;

    #[test]
    fn a_real_engines_image_is_taken_once_and_outlives_the_engine() {
        Who::Root.require();
        let place = Place::new(Who::Root);
        let engine = Dockerd::start(&place.at("engine"));
        let changes = "changes=ENV%20GREETING=hello&changes=WORKDIR%20/srv";
        let import = format!("/images/create?fromSrc=-&repo=base&tag=1&{changes}");
        engine.send(&import, &place.at("source"));
        // Another layer over it.
        place.put(
            "context/Dockerfile",
            "FROM base:1\nCOPY one /etc/motd\nUSER 1000\nCMD [\"/bin/tool\"]\n",
        );
        place.put("context/one", "from the second layer");
        engine.send("/build?t=it:1&version=1", &place.at("context"));
        let inspected: Value =
            serde_json::from_str(&engine.get("/images/it:1/json")).expect("JSON");
        let socket = engine.socket();
        let build = ["build", "it", "--engine", "it:1", "--socket", text(&socket)];
        let built = place.json(&build);
        assert_eq!(
            (&built["digest"], &built["cached"]),
            (&inspected["Id"], &json!(false))
        );
        let config = &built["config"];
        assert!(
            config["env"]
                .as_array()
                .expect("variables")
                .contains(&json!(["GREETING", "hello"]))
        );
        assert_eq!(
            (&config["workdir"], &config["user"]),
            (&json!("/srv"), &json!("1000"))
        );
        assert_eq!(config["cmd"], json!(["/bin/tool"]));
        let motd = PathBuf::from(built["tree"].as_str().expect("a path")).join("etc/motd");
        assert_eq!(
            fs::read_to_string(&motd).expect("there"),
            "from the second layer"
        );
        assert_eq!(place.json(&build)["cached"], json!(true));
        let mut by_variable = place.command(&["build", "it", "--engine", "it:1"]);
        by_variable.env("DOCKER_HOST", format!("unix://{}", text(&socket)));
        assert!(by_variable.output().expect("belljar runs").status.success());
        let said = refused_for_want_of_it(&place, &socket);
        assert!(
            said.contains("no image none:1") && said.contains("docker pull none:1"),
            "{said}"
        );
        // The name of an image that changed is another image.
        place.put("context/one", "changed");
        engine.send("/build?t=it:1&version=1", &place.at("context"));
        assert_eq!(place.json(&build)["cached"], json!(false));
        assert!(place.making().is_empty());
        // Whom the engine's socket is shut to is told so.
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).expect("a mode");
        let stranger = Place::new(Who::User);
        let said = stranger.refused(
            &["build", "x", "--engine", "it:1", "--socket", text(&socket)],
            REFUSED,
        );
        assert!(said.contains("you may not use"), "{said}");
        drop(engine);
        assert!(fs::metadata(&motd).is_ok());
        assert_eq!(place.json(&["list"])["images"][0]["name"], json!("it"));
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!mounts.contains(text(place.scratch.path())));
        assert!(processes_marked(place.scratch.path()).is_empty());
    }

    /// Passes on what the engine sends, and stops in the middle of it until it is told that the engine is gone.
    struct Between {
        socket: PathBuf,
        reached: Receiver<()>,
        go_on: Sender<()>,
    }

    impl Between {
        /// So much of the answer comes through: more than any head, less than the image.
        const MIDDLE: u64 = 1 << 20;

        fn at(place: &Place, engine: PathBuf) -> Self {
            let socket = place.at("between.sock");
            let listener = UnixListener::bind(&socket).expect("a socket");
            let (tell, reached) = channel();
            let (go_on, heard) = channel();
            std::thread::spawn(move || {
                let (client, _) = listener.accept().expect("a connection");
                let server = UnixStream::connect(engine).expect("the engine");
                let (mut asks, mut asked) = (clone(&client), clone(&server));
                std::thread::spawn(move || std::io::copy(&mut asks, &mut asked));
                let (mut server, mut client) = (server, client);
                let _ = std::io::copy(&mut (&mut server).take(Self::MIDDLE), &mut client);
                tell.send(()).expect("somebody waits");
                let _ = heard.recv();
                let _ = std::io::copy(&mut server, &mut client);
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
            Self {
                socket,
                reached,
                go_on,
            }
        }
    }

    fn clone(stream: &UnixStream) -> UnixStream {
        stream.try_clone().expect("the same socket")
    }

    #[test]
    fn an_engine_that_is_killed_breaks_a_build_off_and_concerns_no_box() {
        Who::Root.require();
        let place = Place::new(Who::Root);
        let engine = Dockerd::start(&place.at("engine"));
        engine.send(
            "/images/create?fromSrc=-&repo=it&tag=1",
            &support::image_tree(),
        );
        let socket = engine.socket();
        let build = ["build", "it", "--engine", "it:1", "--socket", text(&socket)];
        let built = place.json(&build);
        // A box in the image, while its engine is killed.
        place.put(
            "policy.yaml",
            "extends: moderate\nsandbox_tier: container\nimage: it\n",
        );
        fs::create_dir(place.at("work")).expect("a directory");
        let script =
            "echo up > up; while [ ! -e go ]; do sleep 0.02; done; cat /etc/made-for-tests";
        let boxed = Command::new(support::belljar())
            .args(["run", "--quiet", "--timeout", "120"])
            .args(["--config", text(&place.at("policy.yaml"))])
            .args(["--", "sh", "-c", script])
            .env("BELLJAR_STATE_DIR", place.at("state"))
            .current_dir(place.at("work"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("belljar runs");
        eventually("the box is up", || {
            place.at("work/up").exists().then_some(())
        });
        let between = Between::at(&place, engine.socket());
        let again = ["build", "other", "--engine", "it:1", "--refresh"];
        let again = [&again[..], &["--socket", text(&between.socket)]].concat();
        let builder = place
            .command(&again)
            .stderr(Stdio::piped())
            .spawn()
            .expect("belljar runs");
        between.reached.recv().expect("it is in the middle");
        engine.murder();
        between.go_on.send(()).expect("it waits");
        let output = builder.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(REFUSED), "{said}");
        assert!(
            said.contains("the engine broke off") && said.contains("build again"),
            "{said}"
        );
        // Nothing is left of it: no tree, no name, nothing to clear away, no lock.
        assert!(place.making().is_empty());
        let listed = place.json(&["list"]);
        assert_eq!(listed["images"].as_array().expect("images").len(), 1);
        assert_eq!(place.json(&["prune"])["leftovers"], json!(0));
        fs::write(place.at("work/go"), "").expect("the word to go on");
        let output = boxed.wait_with_output().expect("the box ends");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"the image's\n");
        // The engine comes back with what it had.
        let engine = Dockerd::start(&place.at("engine"));
        let again = ["build", "other", "--engine", "it:1", "--refresh"];
        let again = place.json(&[&again[..], &["--socket", text(&socket)]].concat());
        assert_eq!(again["digest"], built["digest"]);
        drop(engine);
    }

    /// Podman's answers differ from Docker's in what they leave out; its images are taken all the same.
    #[test]
    fn podmans_images_are_taken_too() {
        podmans_images(Who::Root);
    }

    /// Podman without root, as its user has it: files of one owner, an engine in a user namespace.
    #[test]
    fn an_ordinary_users_podmans_images_are_taken_too() {
        podmans_images(Who::User);
    }

    /// Podman as this user, with an image, listening. All of it ends with the process that is returned.
    fn start_podman(place: &Place, socket: &Path) -> Child {
        let uid = place.who.uid().to_string();
        // Podman wants its user to have an account.
        let accounts = fs::read_to_string("/etc/passwd").expect("accounts");
        let account = format!(
            "podman-tester:x:{uid}:{uid}::{}:/bin/sh\n",
            text(&place.at(""))
        );
        place.put("passwd", &(accounts + &account));
        let archive = place.at("source.tar");
        let source = place.at("source");
        // A user without more ids can have files of one owner only.
        let tar = ["-cf", text(&archive), "--owner=0", "--group=0", "-C"];
        let tar = [&tar[..], &[text(&source), "."]].concat();
        let packed = Command::new("tar").args(tar).status().expect("tar");
        assert!(packed.success());
        place.own(archive);
        const SCRIPT: &str = r#"cd "$1" && mount --bind passwd /etc/passwd || exit
            # Not in its place: who changes users does not end with its parent any more, and this shell does.
            setpriv --reuid "$2" --regid "$2" --clear-groups sh -ec '
            podman() { command podman --root "$PWD/podman" --runroot "$PWD/podman-run" --storage-driver vfs --cgroup-manager cgroupfs \
                --events-backend none --tmpdir "$PWD/podman-tmp" "$@"; }
            podman import --quiet --change ENV=GREETING=hello source.tar base:1 > id
            podman system service --time=0 "$0"' "unix://$3"
            exit"#;
        Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args([
                "sh",
                "-c",
                SCRIPT,
                "sh",
                text(&place.at("")),
                &uid,
                text(socket),
            ])
            .env("HOME", place.at("home"))
            .env("XDG_RUNTIME_DIR", place.at("podman-tmp"))
            .stdin(Stdio::null())
            .spawn()
            .expect("unshare")
    }

    fn podmans_images(who: Who) {
        Who::Root.require();
        let place = Place::new(who);
        for directory in ["home", "podman-tmp"] {
            fs::create_dir(place.at(directory)).expect("a directory");
            place.own(place.at(directory));
        }
        let socket = place.at("podman.sock");
        let mut service = start_podman(&place, &socket);
        eventually("it listens", || {
            let ended = service.try_wait().expect("look at it");
            assert!(ended.is_none(), "podman ended: {ended:?}");
            UnixStream::connect(&socket).ok().map(drop)
        });
        let id = fs::read_to_string(place.at("id")).expect("its image");
        for name in ["base:1", "localhost/base:1"] {
            let built = place.json(&["build", "it", "--engine", name, "--socket", text(&socket)]);
            assert!(id.contains(built["digest"].as_str().expect("a digest")));
            assert_eq!(built["config"]["env"], json!([["GREETING", "hello"]]));
            let tree = PathBuf::from(built["tree"].as_str().expect("a path"));
            assert_eq!(
                fs::read_to_string(tree.join("etc/motd")).expect("there"),
                "hello"
            );
        }
        let said = refused_for_want_of_it(&place, &socket);
        assert!(said.contains("podman pull"), "{said}");
        service.kill().expect("killed");
        service.wait().expect("ended");
        eventually("all of it is gone", || {
            let left = processes_marked(place.scratch.path());
            left.is_empty().then_some(())
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!mounts.contains(text(place.scratch.path())), "{mounts}");
    }
}
