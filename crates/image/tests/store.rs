//! Images out of directories: made whole, found, kept while they are used, removed.

use belljar_image::{Built, Freshness, Image, ImageError, ImageName, Scope, Source, Store};
use rustix::fs::{FileType, Mode};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

struct Scene {
    scratch: tempfile::TempDir,
    store: Store,
}

impl Scene {
    fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::create_dir(scratch.path().join("source")).expect("a directory");
        let store = Store::open(&scratch.path().join("state"));
        Self { scratch, store }
    }

    fn source(&self) -> PathBuf {
        self.scratch.path().join("source")
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.source().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, text).expect("a file");
    }

    fn try_build(&self, name: &str) -> Result<Built, ImageError> {
        let name = ImageName::new(name).expect("a name");
        self.store
            .build(&name, &Source::Directory(self.source()), Freshness::Cached)
    }

    fn build(&self, name: &str) -> Image {
        self.try_build(name).expect("an image").image().clone()
    }

    fn making(&self) -> usize {
        let making = self.scratch.path().join("state/images/making");
        fs::read_dir(making).map_or(0, Iterator::count)
    }
}

fn text(image: &Image, path: impl AsRef<Path>) -> String {
    fs::read_to_string(image.tree.join(path)).expect("a file")
}

#[test]
fn a_directory_becomes_an_image_that_is_found_by_name_and_digest() {
    let scene = Scene::new();
    scene.put("bin/tool", "#!/bin/sh\n");
    symlink("/bin/tool", scene.source().join("tool")).expect("a link");
    let odd = OsStr::from_bytes(b"odd\xff name");
    fs::write(scene.source().join(odd), "odd").expect("a file");
    let built = scene.build("tools");
    assert_eq!(text(&built, "bin/tool"), "#!/bin/sh\n");
    assert_eq!(text(&built, odd), "odd");
    let link = fs::read_link(built.tree.join("tool")).expect("a link");
    assert_eq!(link, Path::new("/bin/tool"));
    for name in ["tools", built.digest.as_str(), built.digest.short()] {
        assert_eq!(scene.store.find(name).expect("found"), built, "{name}");
    }
    let unknown = scene.store.find("other");
    assert!(matches!(unknown, Err(ImageError::NotFound(name)) if name == "other"));
    assert_eq!(scene.making(), 0);
}

#[test]
fn what_gives_power_is_left_out() {
    let scene = Scene::new();
    scene.put("bin/su", "x");
    let su = scene.source().join("bin/su");
    fs::set_permissions(&su, Permissions::from_mode(0o6755)).expect("a mode");
    fs::create_dir(scene.source().join("tmp")).expect("a directory");
    fs::set_permissions(scene.source().join("tmp"), Permissions::from_mode(0o3777))
        .expect("a mode");
    let pipe = scene.source().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
    let image = scene.build("tools");
    let mode = |path: &str| fs::metadata(image.tree.join(path)).expect("there").mode() & 0o7777;
    assert_eq!(mode("bin/su"), 0o755);
    assert_eq!(mode("tmp"), 0o1777);
    assert!(!image.tree.join("pipe").exists());
    let left_out = image.record.left_out;
    assert_eq!((left_out.special_files, left_out.set_id_bits), (1, 1));
}

#[test]
fn names_of_one_file_stay_names_of_one_file() {
    let scene = Scene::new();
    scene.put("a", "one");
    fs::hard_link(scene.source().join("a"), scene.source().join("b")).expect("a link");
    let image = scene.build("tools");
    let inode = |path: &str| fs::metadata(image.tree.join(path)).expect("there").ino();
    assert_eq!(inode("a"), inode("b"));
    assert_ne!(
        inode("a"),
        fs::metadata(scene.source().join("a")).expect("there").ino()
    );
}

#[test]
fn an_unchanged_source_is_not_copied_again_and_a_changed_one_is() {
    let scene = Scene::new();
    scene.put("etc/motd", "one");
    let first = scene.build("tools");
    let second = scene.try_build("tools").expect("an image");
    assert!(matches!(&second, Built::Cached(image) if *image == first));
    // Another name for the same is no copy either.
    let other = scene.try_build("other").expect("an image");
    assert!(matches!(&other, Built::Cached(image) if image.digest == first.digest));
    // Of the same length, and with its old time put back.
    let motd = scene.source().join("etc/motd");
    let before = fs::metadata(&motd)
        .expect("there")
        .modified()
        .expect("a time");
    fs::write(&motd, "two").expect("written");
    let file = fs::File::open(&motd).expect("there");
    file.set_modified(before).expect("a time");
    let third = scene.try_build("tools").expect("an image");
    assert!(matches!(&third, Built::Made(image) if text(image, "etc/motd") == "two"));
    assert_ne!(third.image().digest, first.digest);
    // Whoever holds the other name still has what it had.
    assert_eq!(
        text(&scene.store.find("other").expect("found"), "etc/motd"),
        "one"
    );
}

#[test]
fn the_same_files_elsewhere_are_the_same_image() {
    let scene = Scene::new();
    scene.put("a/b", "text");
    let first = scene.build("one");
    fs::rename(scene.source(), scene.scratch.path().join("old")).expect("moved");
    scene.put("a/b", "text");
    let second = scene.build("two");
    assert_eq!(first.digest, second.digest);
    fs::set_permissions(scene.source().join("a/b"), Permissions::from_mode(0o755)).expect("a mode");
    assert_ne!(scene.build("three").digest, first.digest);
}

#[test]
fn an_image_in_use_is_not_removed() {
    let scene = Scene::new();
    scene.put("a", "one");
    let image = scene.build("tools");
    let held = image.hold().expect("held");
    let tools = ImageName::new("tools").expect("a name");
    let refused = scene.store.prune(&Scope::Names(vec![tools.clone()]));
    assert!(matches!(refused, Err(ImageError::InUse(name)) if name == "tools"));
    let pruned = scene.store.prune(&Scope::All).expect("pruned");
    assert_eq!((pruned.names.len(), pruned.kept.len()), (0, 1));
    // Its name goes to another; the tree stays for whoever uses it.
    scene.put("a", "another");
    let newer = scene.build("tools");
    let pruned = scene.store.prune(&Scope::Unnamed).expect("pruned");
    assert_eq!((pruned.trees.len(), pruned.kept.len()), (0, 1));
    assert_eq!(text(&image, "a"), "one");
    drop(held);
    let pruned = scene.store.prune(&Scope::Unnamed).expect("pruned");
    assert_eq!(pruned.trees, std::slice::from_ref(&image.digest));
    assert!(!image.tree.exists());
    assert!(matches!(image.hold(), Err(ImageError::NotFound(_))));
    let pruned = scene
        .store
        .prune(&Scope::Names(vec![tools]))
        .expect("pruned");
    assert_eq!(pruned.trees, [newer.digest]);
    assert!(scene.store.list().expect("a list").is_empty());
    assert_eq!(scene.making(), 0);
}

#[test]
fn what_a_killed_builder_left_is_not_found_and_is_removed() {
    let scene = Scene::new();
    scene.put("a", "one");
    scene.build("tools");
    let left = scene
        .scratch
        .path()
        .join("state/images/making/left/tree/etc");
    fs::create_dir_all(&left).expect("directories");
    assert_eq!(scene.store.list().expect("a list").len(), 1);
    let pruned = scene.store.prune(&Scope::Unnamed).expect("pruned");
    assert_eq!((pruned.leftovers, pruned.trees.len()), (1, 0));
    assert_eq!(scene.making(), 0);
}

#[test]
fn a_store_inside_its_source_is_not_part_of_the_image() {
    let scene = Scene::new();
    scene.put("a", "one");
    let store = Store::open(&scene.source().join("state"));
    let name = ImageName::new("self").expect("a name");
    let source = Source::Directory(scene.source());
    let built = store
        .build(&name, &source, Freshness::Cached)
        .expect("an image");
    let tree = &built.image().tree;
    assert!(tree.join("a").exists() && tree.join("state").exists());
    assert!(!tree.join("state/images").exists());
}
