//! Layers made by hand, as the kernel and whoever may write to them could leave them.

mod parts;
mod random;

use super::*;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

const ID: &str = "0123-abc";
/// The user of root's boxes.
const BOXED: u32 = 64_999;

struct Scene {
    _scratch: tempfile::TempDir,
    state: StateDir,
    store: PathBuf,
    host: PathBuf,
    layer: PathBuf,
    outside: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let base = scratch.path().canonicalize().expect("a path");
        let (host, outside) = (base.join("work"), base.join("outside"));
        for directory in [&host, &outside] {
            fs::create_dir(directory).expect("a directory");
        }
        fs::write(outside.join("file"), "untouched").expect("a file");
        let state = StateDir::at(base.join("state")).expect("state");
        let mut scene = Self {
            _scratch: scratch,
            state,
            store: PathBuf::new(),
            host,
            layer: PathBuf::new(),
            outside,
        };
        scene.begin();
        scene
    }

    /// A store like that of a box that has just started.
    fn begin(&mut self) {
        self.store = self.state.make_overlay(ID).expect("a store");
        let layers = self.store.join(crate::view::overlay_name(&self.host));
        self.layer = layers.join("changes");
        for name in ["changes", "scratch", "stand-ins"] {
            fs::create_dir_all(layers.join(name)).expect("a layer");
        }
        write_roots(
            &self.store,
            owner(),
            std::slice::from_ref(&self.host),
            &RunOrigin::default(),
        )
        .expect("roots");
    }

    /// The box ends: what is in the layers is the box's user's.
    fn settle(&self) -> Overlay {
        give(&self.layer);
        assert!(settle(&self.store).expect("a list"), "nothing was listed");
        self.open()
    }

    fn open(&self) -> Overlay {
        Overlay::open(&self.state, ID).expect("kept changes")
    }

    fn assert_outside_is_untouched(&self) {
        let seen: Vec<_> = tree(&self.outside).into_iter().collect();
        let [(name, what)] = seen.as_slice() else {
            panic!("{seen:?}")
        };
        assert_eq!(
            (name.as_os_str(), what.as_str()),
            (OsStr::new("file"), "644 untouched")
        );
    }
}

fn owner() -> u32 {
    match rustix::process::geteuid().is_root() {
        true => BOXED,
        false => rustix::process::geteuid().as_raw(),
    }
}

fn give(directory: &Path) {
    if rustix::process::geteuid().is_root() {
        let mut waiting = vec![directory.to_owned()];
        while let Some(path) = waiting.pop() {
            std::os::unix::fs::lchown(&path, Some(BOXED), Some(BOXED)).expect("an owner");
            if path.symlink_metadata().expect("metadata").is_dir() {
                let entries = fs::read_dir(&path).expect("entries");
                waiting.extend(entries.map(|entry| entry.expect("an entry").path()));
            }
        }
    }
}

/// Everything below a directory.
fn tree(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut seen = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).expect("entries") {
            let path = entry.expect("an entry").path();
            let metadata = path.symlink_metadata().expect("metadata");
            let mode = metadata.mode() & 0o7777;
            let what = if metadata.is_symlink() {
                format!("-> {:?}", fs::read_link(&path).expect("a link"))
            } else if metadata.is_dir() {
                waiting.push(path.clone());
                format!("{mode:o}/")
            } else {
                let bytes = fs::read(&path).expect("a file");
                format!("{mode:o} {}", String::from_utf8_lossy(&bytes))
            };
            let below = path.strip_prefix(directory).expect("below").to_owned();
            seen.insert(below, what);
        }
    }
    seen
}

fn whiteout(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).expect("a device");
}

/// Makes directories below each other, deeper than any path may be, with a file at the end.
fn dig(at: &Path, name: &str, levels: usize) {
    let mut cursor = tree::Cursor::open(at).expect("a directory");
    for _ in 0..levels {
        let here = cursor.here().expect("here");
        rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o755)).expect("a directory");
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (
                rustix::fs::Uid::from_raw(BOXED),
                rustix::fs::Gid::from_raw(BOXED),
            );
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(here, name, Some(uid), Some(gid), flags).expect("an owner");
        }
        cursor.enter(OsStr::new(name)).expect("entered");
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let here = cursor.here().expect("here");
    let file = rustix::fs::openat(here, "deep", flags, Mode::from_raw_mode(0o644)).expect("a file");
    rustix::io::write(&file, b"text\n").expect("written");
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (
            rustix::fs::Uid::from_raw(BOXED),
            rustix::fs::Gid::from_raw(BOXED),
        );
        rustix::fs::fchown(file, Some(uid), Some(gid)).expect("an owner");
    }
}

#[test]
fn a_tree_of_any_depth_is_listed_applied_and_thrown_away() {
    for (name, levels) in [("d".to_owned(), 3200), ("n".repeat(255), 20)] {
        let mut scene = Scene::new();
        dig(&scene.layer, &name, levels);
        assert!(settle(&scene.store).expect("a list"));
        let overlay = scene.open();
        assert_eq!(overlay.troubles(), []);
        assert_eq!(overlay.changes().count(), levels + 1);
        let last = overlay.changes().last().expect("a change");
        assert!(last.path.ends_with("deep") && overlay.diff(&last).ends_with("+text\n"));
        overlay.apply().expect("applied");
        let mut cursor = tree::Cursor::open(&scene.host).expect("a directory");
        (0..levels).for_each(|_| cursor.enter(OsStr::new(&name)).expect("entered"));
        assert!(cursor.look(OsStr::new("deep")).expect("a look").is_some());
        // And back: the host's is as deep.
        scene.begin();
        whiteout(&scene.layer.join(&name));
        give(&scene.layer);
        write_roots(
            &scene.store,
            owner(),
            std::slice::from_ref(&scene.host),
            &RunOrigin::default(),
        )
        .expect("roots");
        assert!(settle(&scene.store).expect("a list"));
        scene.open().apply().expect("applied");
        assert_eq!(tree(&scene.host).len(), 0);
        if levels > 1000 {
            continue;
        }
        scene.begin();
        dig(&scene.layer, &name, levels);
        assert!(settle(&scene.store).expect("a list"));
        Overlay::discard(&scene.state, ID).expect("discarded");
        assert_eq!(
            fs::read_dir(scene.state.overlays())
                .expect("stores")
                .count(),
            0
        );
    }
}

/// Whoever can reach the layers makes something else of them after they were listed.
#[test]
fn only_what_was_listed_is_applied() {
    type Swap = fn(&Scene);
    let swaps: [(&str, Swap, &str); 6] = [
        (
            "content",
            |it| fs::write(it.layer.join("d/file"), "evil").expect("a file"),
            "d/file",
        ),
        (
            "longer",
            |it| fs::write(it.layer.join("d/file"), "good and more").expect("a file"),
            "d/file",
        ),
        (
            "a link for a file",
            |it| {
                fs::remove_file(it.layer.join("d/file")).expect("removed");
                symlink(it.outside.join("file"), it.layer.join("d/file")).expect("a link");
            },
            "d/file",
        ),
        (
            "a link for a directory",
            |it| {
                fs::rename(it.layer.join("d"), it.layer.join("e")).expect("renamed");
                symlink(&it.outside, it.layer.join("d")).expect("a link");
            },
            "d",
        ),
        (
            "a link's target",
            |it| {
                fs::remove_file(it.layer.join("link")).expect("removed");
                symlink("/etc/passwd", it.layer.join("link")).expect("a link");
            },
            "link",
        ),
        (
            "gone",
            |it| fs::remove_file(it.layer.join("d/file")).expect("removed"),
            "d/file",
        ),
    ];
    for (what, swap, name) in swaps {
        let scene = Scene::new();
        fs::create_dir(scene.layer.join("d")).expect("a directory");
        fs::write(scene.layer.join("d/file"), "good").expect("a file");
        symlink("d/file", scene.layer.join("link")).expect("a link");
        let overlay = scene.settle();
        swap(&scene);
        let refused = overlay.apply().expect_err(what);
        let ApplyError::Altered { path } = refused else {
            panic!("{what}: {refused:?}")
        };
        assert_eq!(path, scene.host.join(name), "{what}");
        let seen = tree(&scene.host);
        assert!(
            !seen
                .values()
                .any(|it| it.contains("evil") || it.contains("passwd")),
            "{what}: {seen:?}"
        );
        assert!(
            !seen
                .keys()
                .any(|it| it.to_string_lossy().contains("belljar")),
            "{what}: {seen:?}"
        );
        scene.assert_outside_is_untouched();
        // The words say so, too.
        if name == "d/file" && what != "gone" {
            let change = overlay.changes().find(|it| it.path.ends_with("d/file"));
            let shown = overlay.diff(&change.expect("the change"));
            assert!(
                shown.contains("no longer what was listed"),
                "{what}: {shown}"
            );
        }
    }
}

/// A process of the box's user that kept a file of the layer open, and one that waits at its door.
#[test]
fn what_root_listed_is_out_of_reach_of_the_boxs_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new();
    fs::create_dir(scene.layer.join("d")).expect("a directory");
    fs::write(scene.layer.join("d/file"), "good").expect("a file");
    give(&scene.layer);
    let mut held = fs::OpenOptions::new();
    let held = held
        .write(true)
        .open(scene.layer.join("d/file"))
        .expect("a file");
    let overlay = scene.settle();
    assert_eq!(
        scene.store.metadata().expect("metadata").mode() & 0o777,
        0o700
    );
    for path in [
        scene.layer.clone(),
        scene.layer.join("d"),
        scene.layer.join("d/file"),
    ] {
        assert_eq!(
            path.metadata().expect("metadata").uid(),
            0,
            "{}",
            path.display()
        );
    }
    std::os::unix::fs::FileExt::write_all_at(&held, b"evil", 0).expect("written");
    assert!(matches!(overlay.apply(), Err(ApplyError::Altered { .. })));
    assert_eq!(tree(&scene.host).len(), 1, "more than the directory");
}

/// What belongs to somebody else than the box's user is not his to hand out; nobody reads it for him.
#[test]
fn what_can_t_be_listed_is_told_and_nothing_is_applied() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new();
    for name in ["good", "foreign"] {
        fs::write(scene.layer.join(name), "text").expect("a file");
    }
    give(&scene.layer);
    chown(scene.layer.join("foreign"), Some(12_345), None).expect("an owner");
    assert!(settle(&scene.store).expect("a list"));
    let overlay = scene.open();
    let [trouble] = overlay.troubles() else {
        panic!("{:?}", overlay.troubles())
    };
    assert_eq!(trouble.path, scene.host.join("foreign"));
    assert!(matches!(overlay.apply(), Err(ApplyError::Troubled(_))));
    assert_eq!(tree(&scene.host).len(), 0);
    Overlay::discard(&scene.state, ID).expect("discarded");
}

/// Somebody else works in the workspace and swaps directories for links while changes are made.
#[test]
fn a_race_for_the_workspace_leads_nowhere() {
    let mut scene = Scene::new();
    let (at, away) = (scene.host.join("d"), scene.host.join("away"));
    fs::create_dir_all(at.join("e")).expect("a directory");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (host, outside) = (scene.host.clone(), scene.outside.clone());
        let over = &over;
        scope.spawn(move || {
            let link = host.join("link");
            symlink(&outside, &link).expect("a link");
            while !over.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                // A directory for the link and back, and one out of the way and back.
                rustix::fs::renameat_with(CWD, &link, CWD, &at, flags).expect("exchanged");
                std::thread::yield_now();
                rustix::fs::renameat_with(CWD, &at, CWD, &link, flags).expect("exchanged");
                if fs::rename(at.join("e"), &away).is_ok() {
                    let _ = fs::rename(&away, at.join("e"));
                }
            }
        });
        let _over = Over(over);
        for round in 0..60 {
            if round > 0 {
                scene.begin();
            }
            for name in ["d/e/file", "d/file", "d/new/file"] {
                let path = scene.layer.join(name);
                fs::create_dir_all(path.parent().expect("above")).expect("a directory");
                fs::write(path, format!("{round}")).expect("a file");
            }
            whiteout(&scene.layer.join("d/gone"));
            give(&scene.layer);
            settle(&scene.store).expect("a list");
            if let Ok(overlay) = Overlay::open(&scene.state, ID) {
                let _ = overlay.apply();
                drop(overlay);
                let _ = Overlay::discard(&scene.state, ID);
            }
            scene.assert_outside_is_untouched();
        }
    });
}

/// Ends the race, however the test ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Killed between any two steps, and run again.
#[test]
fn what_was_broken_off_is_finished() {
    type Half = fn(&Path, &str);
    let halves: [(&str, Half); 7] = [
        ("nothing", |_, _| {}),
        ("a file made", |host, _| {
            fs::write(host.join("changed"), "new").expect("a file");
        }),
        ("a temporary file left", |host, token| {
            for index in 0..13 {
                let temporary = host.join(format!(".belljar-{token}-{index}"));
                match index % 2 {
                    0 => fs::write(temporary, "ne").expect("a file"),
                    _ => symlink("../outside/file", temporary).expect("a link"),
                }
            }
        }),
        ("a directory half gone", |host, _| {
            fs::remove_file(host.join("goes/one")).expect("removed");
        }),
        ("a directory gone that becomes a file", |host, _| {
            fs::remove_dir_all(host.join("becomes")).expect("removed");
        }),
        ("a directory made, not filled", |host, _| {
            fs::create_dir(host.join("fresh")).expect("a directory");
            let mode = fs::Permissions::from_mode(0o700);
            fs::set_permissions(host.join("fresh"), mode).expect("a mode");
        }),
        ("a file gone", |host, _| {
            fs::remove_file(host.join("lost")).expect("removed")
        }),
    ];
    for (what, half) in halves {
        let scene = Scene::new();
        for (name, text) in [
            ("changed", "old"),
            ("lost", "old"),
            ("goes/one", "1"),
            ("goes/two", "2"),
            ("becomes/inner", "3"),
        ] {
            let path = scene.host.join(name);
            fs::create_dir_all(path.parent().expect("above")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        write_roots(
            &scene.store,
            owner(),
            std::slice::from_ref(&scene.host),
            &RunOrigin::default(),
        )
        .expect("roots");
        fs::write(scene.layer.join("changed"), "new").expect("a file");
        fs::write(scene.layer.join("becomes"), "a file").expect("a file");
        fs::create_dir(scene.layer.join("fresh")).expect("a directory");
        fs::write(scene.layer.join("fresh/file"), "fresh").expect("a file");
        ["lost", "goes"]
            .iter()
            .for_each(|name| whiteout(&scene.layer.join(name)));
        let overlay = scene.settle();
        half(&scene.host, &overlay.listing.token);
        overlay
            .apply()
            .unwrap_or_else(|error| panic!("{what}: {error:?}"));
        let seen = tree(&scene.host);
        let names: Vec<_> = seen.keys().filter_map(|path| path.to_str()).collect();
        let left: Vec<_> = names
            .iter()
            .filter(|name| !name.contains("belljar"))
            .collect();
        assert_eq!(
            left,
            [&"becomes", &"changed", &"fresh", &"fresh/file"],
            "{what}"
        );
        // Only those of the names that stand for a file that is made are ours; the others are not touched.
        assert!(
            what.contains("temporary") || left.len() == names.len(),
            "{what}: {names:?}"
        );
        assert_eq!(
            seen[Path::new("becomes")]
                .split_once(' ')
                .expect("a file")
                .1,
            "a file"
        );
        scene.assert_outside_is_untouched();
    }
}

/// Sparse files stay sparse; set-id bits, sockets and pipes stay behind.
#[test]
fn odd_files_are_no_trouble() {
    let scene = Scene::new();
    let sparse = fs::File::create(scene.layer.join("sparse")).expect("a file");
    sparse.set_len(1 << 38).expect("a length");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"x", 1 << 37).expect("written");
    fs::write(scene.layer.join("set-id"), "x").expect("a file");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, scene.layer.join("pipe"), FileType::Fifo, mode, 0).expect("a pipe");
    let _socket = std::os::unix::net::UnixListener::bind(scene.layer.join("socket")).expect("one");
    fs::hard_link(scene.layer.join("set-id"), scene.layer.join("twin")).expect("a link");
    fs::create_dir(scene.layer.join("shut")).expect("a directory");
    fs::write(scene.layer.join("shut/file"), "x").expect("a file");
    give(&scene.layer);
    for (name, mode) in [("set-id", 0o6755), ("shut/file", 0), ("shut", 0)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(scene.layer.join(name), mode).expect("a mode");
    }
    assert!(settle(&scene.store).expect("a list"));
    let overlay = scene.open();
    let special = overlay.changes().filter(|it| it.file == Some("special"));
    assert_eq!(special.count(), 2);
    overlay.apply().expect("applied");
    let mode_of = |name: &str| {
        let metadata = scene.host.join(name).symlink_metadata().expect(name);
        (metadata.mode() & 0o7777, metadata.nlink())
    };
    assert_eq!(mode_of("shut").0, 0);
    assert_eq!(mode_of("set-id"), (0o755, 1));
    assert_eq!(mode_of("twin"), (0o755, 1));
    let sparse = scene.host.join("sparse").metadata().expect("metadata");
    assert!(
        sparse.len() == 1 << 38 && sparse.blocks() < 1 << 12,
        "{sparse:?}"
    );
    for name in ["pipe", "socket"] {
        assert!(!scene.host.join(name).exists(), "{name}");
    }
}

/// As 0.1.0 left it: paths in JSON, layers open, nothing below the depth it could go.
#[test]
fn what_the_first_release_kept_is_applied() {
    for touched in [false, true] {
        let scene = Scene::new();
        fs::write(scene.host.join("file"), "old").expect("a file");
        let roots = serde_json::to_vec(&[&scene.host]).expect("JSON");
        fs::write(scene.store.join("roots.json"), roots).expect("a file");
        dig(&scene.layer, "d", 1200);
        fs::write(scene.layer.join("file"), "new").expect("a file");
        if rustix::process::geteuid().is_root() {
            chown(scene.layer.join("file"), Some(BOXED), Some(BOXED)).expect("an owner");
            chown(scene.layer.parent().expect("layers"), Some(BOXED), None).expect("an owner");
        }
        let metadata = scene.host.join("file").metadata().expect("metadata");
        let own = serde_json::json!({"inode": metadata.ino(), "is_directory": false, "size": 3,
            "changed_s": metadata.ctime(), "changed_ns": metadata.ctime_nsec()});
        let changes = serde_json::json!([{"path": scene.host.join("file"), "kind": "modified", "kept": scene.layer.join("file"),
            "base": {"own": own, "within": null, "changed_meanwhile": false}}]);
        fs::write(scene.store.join("changes.json"), changes.to_string()).expect("a file");
        assert_eq!(Overlay::waiting(&scene.state), [ID]);
        if touched {
            fs::remove_file(scene.host.join("file")).expect("removed");
        }
        let overlay = scene.open();
        assert_eq!(overlay.changes().count(), 1202);
        match (overlay.apply(), touched) {
            (Ok(()), false) => {
                let text = fs::read_to_string(scene.host.join("file"));
                assert_eq!(text.expect("a file"), "new");
            }
            (Err(ApplyError::Conflicts(conflicts)), true) => assert_eq!(conflicts.len(), 1),
            (other, _) => panic!("{other:?}"),
        }
    }
}
