//! Trees and listings that nobody thought of.

use super::super::listing::{Listing, is_root};
use super::super::tree::is_name;
use super::*;
use proptest::prelude::*;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Thing {
    File(u32, Vec<u8>),
    Link(OsString),
    Directory(u32, BTreeMap<OsString, Thing>),
}

impl Thing {
    fn put(&self, path: &Path) {
        match self {
            Self::File(mode, bytes) => {
                fs::write(path, bytes).expect("a file");
                fs::set_permissions(path, fs::Permissions::from_mode(*mode)).expect("a mode");
            }
            Self::Link(target) => symlink(target, path).expect("a link"),
            Self::Directory(mode, inside) => {
                fs::create_dir(path).expect("a directory");
                inside
                    .iter()
                    .for_each(|(name, it)| it.put(&path.join(name)));
                fs::set_permissions(path, fs::Permissions::from_mode(*mode)).expect("a mode");
            }
        }
    }

    /// What an overlay's upper layer would have when `old` became this.
    fn put_over(&self, old: Option<&Self>, path: &Path) {
        let (Self::Directory(mode, inside), Some(Self::Directory(_, before))) = (self, old) else {
            if old != Some(self) {
                self.put(path);
            }
            return;
        };
        if old == Some(self) {
            return;
        }
        if !path.exists() {
            fs::create_dir(path).expect("a directory");
        }
        for (name, it) in inside {
            it.put_over(before.get(name), &path.join(name));
        }
        for name in before.keys().filter(|name| !inside.contains_key(*name)) {
            whiteout(&path.join(name));
        }
        fs::set_permissions(path, fs::Permissions::from_mode(*mode)).expect("a mode");
    }
}

fn any_name() -> impl Strategy<Value = OsString> {
    prop_oneof![
        3 => "[a-c]".prop_map(OsString::from),
        1 => prop::sample::select(vec![&b"new\nline"[..], b"\xff\xfe", b"\x1b[2K", b"...", b".belljar-0", b" ", b"\xc2\x9b1A"])
            .prop_map(|name| OsString::from_vec(name.to_vec())),
        1 => Just(OsString::from("n".repeat(255))),
    ]
}

fn any_thing() -> impl Strategy<Value = Thing> {
    let mode = prop::sample::select(vec![0o644, 0o600, 0o755, 0o444, 0o400]);
    let leaf = prop_oneof![
        3 => (mode, prop::collection::vec(any::<u8>(), 0..4)).prop_map(|(mode, bytes)| Thing::File(mode, bytes)),
        1 => any_name().prop_map(Thing::Link),
    ];
    let directory = prop::sample::select(vec![0o755, 0o700, 0o555, 0o500]);
    leaf.prop_recursive(4, 24, 5, move |inner| {
        (
            directory.clone(),
            prop::collection::btree_map(any_name(), inner, 0..5),
        )
            .prop_map(|(mode, inside)| Thing::Directory(mode, inside))
    })
}

fn any_root() -> impl Strategy<Value = Thing> {
    prop::collection::btree_map(any_name(), any_thing(), 0..5)
        .prop_map(|inside| Thing::Directory(0o755, inside))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_becomes_the_one_that_was_listed(before in any_root(), after in any_root()) {
        let scene = Scene::new();
        fs::remove_dir(&scene.host).expect("room");
        before.put(&scene.host);
        let twin = scene.outside.join("twin");
        after.put(&twin);
        after.put_over(Some(&before), &scene.layer);
        fs::set_permissions(&scene.layer, fs::Permissions::from_mode(0o755)).expect("a mode");
        // The clock that stamps files is coarse: the box started after the host's files were written.
        write_roots(&scene.store, owner(), std::slice::from_ref(&scene.host), &RunOrigin::default()).expect("roots");
        give(&scene.layer);
        if settle(&scene.store).expect("a list") {
            let overlay = scene.open();
            prop_assert!(overlay.troubles().is_empty(), "{:?}", overlay.troubles());
            for change in overlay.changes() {
                prop_assert!(!overlay.diff(&change).contains("no longer what was listed"));
            }
            overlay.apply().expect("applied");
        }
        prop_assert_eq!(tree(&scene.host), tree(&twin));
        prop_assert!(!scene.store.exists());
        unlock_all(&scene.host);
        unlock_all(&twin);
    }

    /// Whatever is applied first, with the rest it is the whole; what is discarded is not.
    #[test]
    fn parts_add_up_to_the_whole(
        before in any_root(),
        after in any_root(),
        bits in prop::collection::vec(any::<bool>(), 1..16),
        more in any::<bool>(),
    ) {
        let scene = Scene::new();
        fs::remove_dir(&scene.host).expect("room");
        before.put(&scene.host);
        let twin = scene.outside.join("twin");
        after.put(&twin);
        after.put_over(Some(&before), &scene.layer);
        fs::set_permissions(&scene.layer, fs::Permissions::from_mode(0o755)).expect("a mode");
        write_roots(&scene.store, owner(), std::slice::from_ref(&scene.host), &RunOrigin::default()).expect("roots");
        give(&scene.layer);
        if settle(&scene.store).expect("a list") {
            let select = |overlay: &Overlay, is_chosen: &dyn Fn(usize) -> bool| {
                let mut selection = Selection::default();
                let chosen = overlay.changes().enumerate().filter(|(number, _)| is_chosen(*number));
                chosen.for_each(|(_, change)| selection.add(&change));
                selection
            };
            let overlay = scene.open();
            let some = select(&overlay, &|number| bits[number % bits.len()]);
            if !some.is_empty() {
                overlay.apply_selected(&some).expect("some of it");
                // What was opened before is not what waits any more.
                let all = select(&overlay, &|_| true);
                prop_assert!(!scene.store.exists() || overlay.apply_selected(&all).is_err());
            }
            if more && scene.store.exists() {
                let rest = scene.open();
                let every_other = select(&rest, &|number| number % 2 == 0);
                rest.apply_selected(&every_other).expect("more of it");
            }
            if scene.store.exists() {
                scene.open().apply().expect("the rest");
            }
        }
        prop_assert_eq!(tree(&scene.host), tree(&twin));
        prop_assert!(!scene.store.exists());
        unlock_all(&scene.host);
        unlock_all(&twin);
    }

    #[test]
    fn hostile_listings_never_lead_anywhere(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        end in any::<prop::sample::Index>(),
        whole in any::<bool>(),
        swap in prop::sample::select(vec![("\"a\"", "\"..\""), ("\"a\"", "\"x/y\""), ("\"depth\":2", "\"depth\":9"),
            ("\"name\":\"/w\"", "\"name\":\"/w/../etc\""), ("\"lines\":3", "\"lines\":2"), ("\"mode\":493", "\"mode\":-1"), ("x", "x")]),
    ) {
        let mut listing = Listing::new().expect("a listing");
        let top = listing.add(None, "/w".into(), None);
        let base = host::Base { own: None, within: None, changed_meanwhile: false };
        let made = Some(Made::Directory { mode: 0o755 });
        let entry = listing::Entry { kind: ChangeKind::Added, made, base, partly: Vec::new() };
        let a = listing.add(Some(top), "a".into(), Some(entry.clone()));
        listing.add(Some(a), OsString::from_vec(vec![0xff]), Some(entry));
        let mut bytes = Vec::new();
        listing.write(&mut bytes).expect("written");
        prop_assert_eq!(&Listing::read(bytes.as_slice()).expect("read"), &listing);
        let text = String::from_utf8(bytes).expect("text").replacen(swap.0, swap.1, 1);
        let is_swapped = swap.0 != swap.1;
        let mut bytes = text.into_bytes();
        if !whole {
            for (at, byte) in cuts {
                let length = bytes.len();
                bytes[at.index(length)] = byte;
            }
            bytes.truncate(end.index(bytes.len() + 1));
        } else if is_swapped {
            prop_assert!(Listing::read(bytes.as_slice()).is_err());
        }
        if let Ok(read) = Listing::read(bytes.as_slice()) {
            for node in &read.nodes {
                let fits = if node.depth == 0 { is_root(&node.name) } else { is_name(node.name.as_bytes()) };
                prop_assert!(fits, "{node:?}");
            }
        }
    }
}

/// What is in the way of whoever cleans up.
fn unlock_all(directory: &Path) {
    let mut cursor = tree::Cursor::open(directory.parent().expect("above")).expect("a directory");
    tree::remove(&mut cursor, directory.file_name().expect("a name")).expect("removed");
}
