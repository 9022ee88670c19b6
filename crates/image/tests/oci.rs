//! OCI layouts: what their layers make together, and what is refused.

mod support;

use belljar_image::{Built, Freshness, Image, ImageError, ImageName, Source, Store};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use support::{Layer, Layout, architecture, digest, gzip, zstd};
use tar::EntryType;

struct Scene {
    scratch: tempfile::TempDir,
    layout: Layout,
    store: Store,
}

impl Scene {
    fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("outside"), "untouched").expect("a file");
        let layout = Layout::new(&scratch.path().join("layout"));
        let store = Store::open(&scratch.path().join("state"));
        Self {
            scratch,
            layout,
            store,
        }
    }

    fn of(layers: Vec<Layer>) -> Self {
        Self::new().with(layers)
    }

    /// The same place with an image of these layers in it.
    fn with(mut self, layers: Vec<Layer>) -> Self {
        let layers: Vec<_> = layers
            .into_iter()
            .map(|layer| {
                let tar = layer.tar();
                (tar.clone(), tar)
            })
            .collect();
        let manifest = self.layout.image(&layers, &Value::Null);
        self.layout.add(manifest, "it");
        self
    }

    fn build(&self, reference: Option<&str>) -> Result<Built, ImageError> {
        let source = Source::Oci {
            layout: self.layout.path.clone(),
            reference: reference.map(str::to_owned),
        };
        let name = ImageName::new("it").expect("a name");
        self.store.build(&name, &source, Freshness::Cached)
    }

    fn image(&self) -> Image {
        self.build(None).expect("an image").image().clone()
    }

    /// It does not become an image, nothing outside has changed, and nothing is left.
    fn refused(&self) -> String {
        let error = self.build(None).expect_err("refused");
        assert!(matches!(
            self.store.find("it"),
            Err(ImageError::NotFound(_))
        ));
        let making = self.scratch.path().join("state/images/making");
        assert_eq!(fs::read_dir(making).map_or(0, Iterator::count), 0);
        let outside = self.scratch.path().join("outside");
        assert_eq!(fs::read_to_string(&outside).expect("there"), "untouched");
        assert_eq!(fs::metadata(outside).expect("there").nlink(), 1);
        error.to_string()
    }

    /// A path that leads from the tree in the making to the file outside.
    fn way_out(&self) -> String {
        self.scratch.path().join("outside").display().to_string()
    }
}

fn text(image: &Image, path: &str) -> String {
    fs::read_to_string(image.tree.join(path)).expect(path)
}

#[test]
fn layers_lie_over_each_other() {
    let scene = Scene::of(vec![
        Layer::new()
            .directory("./etc/")
            .file("etc/gone", "x")
            .file("etc/kept", "lower")
            .file("etc/changed", "lower")
            .directory("opt/")
            .file("opt/lower/a", "x")
            .file("tree/a/b", "x")
            .symlink("lib", "usr/lib"),
        Layer::new()
            .whiteout("etc/.wh.gone")
            .file("etc/changed", "upper")
            .file("opt/new", "upper")
            .whiteout("opt/.wh..wh..opq")
            .file("opt/newer", "upper")
            .whiteout(".wh.tree")
            .file("./lib/libc.so", "upper"),
        // A name is taken away and comes again in one layer, in either order.
        Layer::new()
            .file("etc/kept", "again")
            .whiteout("etc/.wh.kept")
            .whiteout("etc/.wh.never"),
    ]);
    let image = scene.image();
    assert_eq!(text(&image, "etc/changed"), "upper");
    assert_eq!(text(&image, "etc/kept"), "again");
    assert_eq!(text(&image, "opt/new"), "upper");
    assert_eq!(text(&image, "opt/newer"), "upper");
    for gone in [
        "etc/gone",
        "opt/lower",
        "tree",
        "etc/.wh.gone",
        "opt/.wh..wh..opq",
    ] {
        assert!(
            fs::symlink_metadata(image.tree.join(gone)).is_err(),
            "{gone}"
        );
    }
    // Where an earlier layer has a link there is a directory now, as on overlayfs; the link was not followed.
    assert_eq!(text(&image, "lib/libc.so"), "upper");
    assert!(!image.tree.join("usr").exists());
}

#[test]
fn every_compression_gives_the_same_tree() {
    for pack in [gzip, zstd, |bytes: &[u8]| bytes.to_vec()] {
        let mut scene = Scene::new();
        let tar = Layer::new().file("a", &"text ".repeat(10_000)).tar();
        let wishes = json!({
            "Env": ["PATH=/bin", "EMPTY=", "BARE"], "WorkingDir": "/srv", "User": "1000:1000",
            "Entrypoint": ["/bin/tool"], "Cmd": ["--help"],
        });
        let manifest = scene.layout.image(&[(tar.clone(), pack(&tar))], &wishes);
        scene.layout.add(manifest, "it");
        let image = scene.image();
        assert_eq!(text(&image, "a").len(), 50_000);
        let config = &image.config;
        let pairs = [("PATH", "/bin"), ("EMPTY", ""), ("BARE", "")];
        assert_eq!(config.env, pairs.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(config.workdir.as_deref(), Some(Path::new("/srv")));
        assert_eq!(config.user.as_deref(), Some("1000:1000"));
        assert_eq!(
            (&config.entrypoint[..], &config.cmd[..]),
            (&["/bin/tool".to_owned()][..], &["--help".to_owned()][..])
        );
    }
}

#[test]
fn nothing_is_unpacked_again_that_is_there() {
    let scene = Scene::of(vec![Layer::new().file("a", "x")]);
    let first = scene.image();
    assert!(matches!(scene.build(None).expect("an image"), Built::Cached(image) if image == first));
    let index = fs::read_to_string(scene.layout.path.join("index.json")).expect("an index");
    assert!(index.contains(first.digest.as_str()));
}

#[test]
fn an_index_is_asked_for_this_machine() {
    let mut scene = Scene::new();
    let mut manifests = Vec::new();
    for platform in ["other", architecture()] {
        let tar = Layer::new().file("for", platform).tar();
        let mut manifest = scene.layout.image(&[(tar.clone(), tar)], &Value::Null);
        manifest["platform"] = json!({"os": "linux", "architecture": platform});
        manifests.push(manifest);
    }
    let ours = manifests[1]["digest"].clone();
    let index = json!({"schemaVersion": 2, "manifests": manifests}).to_string();
    let media_type = "application/vnd.oci.image.index.v1+json";
    let index = scene.layout.blob(media_type, index.as_bytes());
    scene.layout.add(index, "many");
    let tar = Layer::new().file("for", "nobody").tar();
    let single = scene.layout.image(&[(tar.clone(), tar)], &Value::Null);
    scene.layout.add(single, "single");
    let message = scene.refused();
    assert!(message.contains("\"many\", \"single\""), "{message}");
    let error = scene.build(Some("none")).expect_err("refused").to_string();
    assert!(error.contains("no image none"), "{error}");
    let image = scene.build(Some("many")).expect("an image").image().clone();
    assert_eq!(text(&image, "for"), architecture());
    assert_eq!(image.digest.as_str(), ours);
}

#[test]
fn an_image_for_another_machine_is_refused() {
    let mut scene = Scene::new();
    let tar = Layer::new().file("a", "x").tar();
    let mut manifest = scene.layout.image(&[(tar.clone(), tar)], &Value::Null);
    let path = scene
        .layout
        .blob_path(manifest["digest"].as_str().expect("a digest"));
    let mut document: Value =
        serde_json::from_slice(&fs::read(path).expect("there")).expect("JSON");
    let config =
        json!({"os": "linux", "architecture": "vax", "rootfs": {"diff_ids": []}}).to_string();
    document["config"] = scene.layout.blob("", config.as_bytes());
    let blob = scene.layout.blob(
        "application/vnd.oci.image.manifest.v1+json",
        document.to_string().as_bytes(),
    );
    manifest = blob;
    scene.layout.add(manifest, "it");
    assert!(scene.refused().contains("linux/vax"));
}

#[test]
fn every_blob_must_be_what_its_digest_says() {
    let tar = Layer::new().file("a", "one").tar();
    let packed = gzip(&tar);
    // Which blob is changed, and how: another byte somewhere, of the same length.
    for which in ["layer", "config", "manifest"] {
        let mut scene = Scene::new();
        let manifest = scene
            .layout
            .image(&[(tar.clone(), packed.clone())], &Value::Null);
        let manifest_digest = manifest["digest"].as_str().expect("a digest").to_owned();
        scene.layout.add(manifest, "it");
        let path = scene.layout.blob_path(&manifest_digest);
        let document: Value =
            serde_json::from_slice(&fs::read(path).expect("there")).expect("JSON");
        let victim = match which {
            "layer" => document["layers"][0]["digest"]
                .as_str()
                .expect("a digest")
                .to_owned(),
            "config" => document["config"]["digest"]
                .as_str()
                .expect("a digest")
                .to_owned(),
            _ => manifest_digest,
        };
        let path = scene.layout.blob_path(&victim);
        let bytes = fs::read(&path).expect("there");
        let changed = match which {
            // Unpacked it is the same, and still not what was named: the time in gzip's header.
            "layer" => {
                let mut bytes = bytes;
                bytes[4] ^= 1;
                bytes
            }
            _ => String::from_utf8(bytes)
                .expect("text")
                .replacen("linux", "Linux", 1)
                .replacen("schema", "Schema", 1)
                .into_bytes(),
        };
        fs::write(&path, changed).expect("written");
        let message = scene.refused();
        assert!(
            message.contains("not what its digest says"),
            "{which}: {message}"
        );
    }
}

#[test]
fn a_layer_must_be_what_the_configuration_says() {
    let mut scene = Scene::new();
    let (one, two) = (
        Layer::new().file("a", "1").tar(),
        Layer::new().file("a", "2").tar(),
    );
    let manifest = scene.layout.image(&[(one, gzip(&two))], &Value::Null);
    scene.layout.add(manifest, "it");
    assert!(scene.refused().contains("not what its digest says"));
}

#[test]
fn a_blob_that_is_elsewhere_is_not_the_layouts() {
    let scene = Scene::of(vec![Layer::new().file("a", "x")]);
    let tar = Layer::new().file("a", "x").tar();
    let blob = scene.layout.blob_path(&digest(&tar));
    let moved = scene.scratch.path().join("moved");
    fs::rename(&blob, &moved).expect("moved");
    symlink(&moved, &blob).expect("a link");
    scene.refused();
}

#[test]
fn paths_that_lead_upwards_are_refused() {
    for name in [
        "../outside",
        "a/../../outside",
        "/../outside",
        ".wh...",
        "a/.wh...",
        ".wh.",
        ".wh..",
    ] {
        let scene = Scene::of(vec![
            Layer::new().directory("a/"),
            Layer::new().file(name, "evil"),
        ]);
        scene.refused();
    }
}

#[test]
fn an_absolute_path_is_below_the_images_root() {
    let scene = Scene::new();
    let way_out = scene.way_out();
    let scene = Scene::of(vec![Layer::new().file(&way_out, "evil")]);
    let image = scene.image();
    assert_eq!(text(&image, way_out.trim_start_matches('/')), "evil");
}

#[test]
fn nothing_goes_through_a_link() {
    for upwards in [true, false] {
        let through = |scene: &Scene| {
            let place = scene.scratch.path().display().to_string();
            if upwards {
                "../../../../..".to_owned()
            } else {
                place
            }
        };
        // In one layer it is refused; over an earlier one the link gives way to a directory.
        let scene = Scene::new();
        let target = through(&scene);
        let same = scene.with(vec![
            Layer::new()
                .symlink("door", &target)
                .file("door/outside", "evil"),
        ]);
        assert!(same.refused().contains("which is no directory"));
        let scene = Scene::new();
        let target = through(&scene);
        let later = scene.with(vec![
            Layer::new()
                .symlink("door", &target)
                .symlink("file", &format!("{target}/outside")),
            Layer::new()
                .file("door/outside", "evil")
                .file("file", "evil")
                .whiteout("door/.wh.outside"),
        ]);
        let image = later.image();
        assert_eq!(text(&image, "door/outside"), "evil");
        assert!(
            fs::symlink_metadata(image.tree.join("file"))
                .expect("there")
                .is_file()
        );
        assert_eq!(
            fs::read_to_string(later.scratch.path().join("outside")).expect("there"),
            "untouched"
        );
        // Nor is anything taken away, linked to or given another mode through one.
        for layer in [
            Layer::new().whiteout("door/.wh.outside"),
            Layer::new().whiteout("door/.wh..wh..opq"),
        ] {
            let scene = Scene::new();
            let target = through(&scene);
            let scene = scene.with(vec![Layer::new().symlink("door", &target), layer]);
            let image = scene.image();
            assert!(
                fs::symlink_metadata(image.tree.join("door"))
                    .expect("there")
                    .is_symlink()
            );
            assert_eq!(
                fs::read_to_string(scene.scratch.path().join("outside")).expect("there"),
                "untouched"
            );
        }
        let scene = Scene::new();
        let target = through(&scene);
        scene
            .with(vec![
                Layer::new()
                    .symlink("door", &target)
                    .hard_link("stolen", "door/outside"),
            ])
            .refused();
    }
}

#[test]
fn hard_links_stay_inside() {
    for target in ["../outside", "a/../../outside", "missing", ""] {
        Scene::of(vec![
            Layer::new().directory("a").hard_link("stolen", target),
        ])
        .refused();
    }
    let scene = Scene::new();
    let way_out = scene.way_out();
    Scene::of(vec![Layer::new().hard_link("stolen", &way_out)]).refused();
    let scene = Scene::of(vec![
        Layer::new()
            .file("a", "one")
            .hard_link("b", "/a")
            .hard_link("b", "b"),
        Layer::new().file("b", "two"),
    ]);
    let image = scene.image();
    assert_eq!(
        (text(&image, "a"), text(&image, "b")),
        ("one".into(), "two".into())
    );
}

#[test]
fn devices_and_set_id_bits_are_dropped_and_counted() {
    let layer = Layer::new()
        .entry(EntryType::Char, b"dev/null", b"", 0o666, b"")
        .entry(EntryType::Block, b"dev/vda", b"", 0o666, b"")
        .entry(EntryType::Fifo, b"dev/pipe", b"", 0o666, b"")
        .entry(EntryType::Regular, b"bin/su", b"", 0o6755, b"x")
        .entry(EntryType::Regular, b"unreadable", b"", 0, b"x")
        .entry(EntryType::Directory, b"locked", b"", 0o2000, b"")
        .file("locked/inside", "x");
    let image = Scene::of(vec![layer]).image_and_scene();
    let (image, _scene) = image;
    let mode = |path: &str| fs::metadata(image.tree.join(path)).expect("there").mode() & 0o7777;
    assert_eq!(
        (mode("bin/su"), mode("unreadable"), mode("locked")),
        (0o755, 0o400, 0o700)
    );
    assert!(!image.tree.join("dev").exists());
    let left_out = image.record.left_out;
    assert_eq!((left_out.special_files, left_out.set_id_bits), (3, 1));
}

impl Scene {
    fn image_and_scene(self) -> (Image, Self) {
        (self.image(), self)
    }
}

#[test]
fn the_last_of_two_entries_counts() {
    let scene = Scene::of(vec![
        Layer::new()
            .file("a", "one")
            .file("a", "two")
            .directory("b")
            .file("b/c", "x")
            .file("b", "now a file")
            .symlink("d", "a")
            .directory("d")
            .file("d/e", "inside"),
    ]);
    let image = scene.image();
    assert_eq!(text(&image, "a"), "two");
    assert_eq!(text(&image, "b"), "now a file");
    assert_eq!(text(&image, "d/e"), "inside");
}

#[test]
fn what_claims_to_be_large_or_sparse_is_refused() {
    // The size is in the header only: nothing like it follows.
    let mut header = tar::Header::new_gnu();
    header.set_path("huge").expect("a name");
    header.set_size(9 << 30);
    header.set_mode(0o644);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(4096, 0);
    let mut scene = Scene::new();
    let manifest = scene.layout.image(&[(bytes.clone(), bytes)], &Value::Null);
    scene.layout.add(manifest, "it");
    scene.refused();
    let extended = |record: &[u8]| {
        Layer::new()
            .entry(EntryType::XHeader, b"x", b"", 0o644, record)
            .file("a", "x")
    };
    for layer in [
        Layer::new().entry(EntryType::GNUSparse, b"a", b"", 0o644, b""),
        extended(b"22 GNU.sparse.major=1\n"),
        extended(b"19 size=9999999999\n"),
        extended(b"99 path=short\n"),
        extended(b"16 path=../evil\n"),
        Layer::new().entry(EntryType::XGlobalHeader, b"g", b"", 0o644, b"10 path=a\n"),
        Layer::new()
            .entry(
                EntryType::GNULongName,
                b"L",
                b"",
                0o644,
                &vec![b'a'; 2 << 20],
            )
            .file("a", "x"),
        Layer::new().entry(EntryType::new(b'Z'), b"a", b"", 0o644, b""),
    ] {
        Scene::of(vec![layer]).refused();
    }
}

/// What is skipped is unpacked all the same: a little for each entry is all there is.
#[test]
fn what_is_in_no_file_is_bounded() {
    let zeros = vec![0; 20 << 20];
    for (kind, name) in [
        (EntryType::Fifo, &b"pipe"[..]),
        (EntryType::Directory, b"d"),
        (EntryType::Symlink, b"link"),
        (EntryType::Regular, b".wh.gone"),
        (EntryType::Regular, b".wh..wh.plnk"),
    ] {
        let layer = Layer::new()
            .entry(kind, name, b"x", 0o644, &zeros)
            .file("a", "x");
        let result = Scene::of(vec![layer]).build(None);
        let is_mark = kind == EntryType::Regular;
        // A mark may be as long as a file, and counts as one.
        assert_eq!(
            matches!(result, Err(ImageError::TooLarge(_))),
            !is_mark,
            "{kind:?}"
        );
    }
    // Files themselves have bounds of their own.
    let full = Layer::new().entry(EntryType::Regular, b"full", b"", 0o644, &zeros);
    Scene::of(vec![full]).image();
}

#[test]
fn long_names_are_read_in_both_forms() {
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let record = |key: &str, value: &str| {
        let rest = format!(" {key}={value}\n");
        format!("{}{rest}", rest.len() + 3).into_bytes()
    };
    let odd = record("path", &format!("{}\nwith a line's end", "p".repeat(120)));
    let scene = Scene::of(vec![
        Layer::new()
            .entry(
                EntryType::GNULongName,
                b"././@LongLink",
                b"",
                0o644,
                long.as_bytes(),
            )
            .file("short", "long")
            .entry(EntryType::XHeader, b"x", b"", 0o644, &odd)
            .file("short", "odd"),
    ]);
    let image = scene.image();
    assert_eq!(text(&image, &long), "long");
    assert_eq!(
        text(&image, &format!("{}\nwith a line's end", "p".repeat(120))),
        "odd"
    );
}

#[test]
fn an_archive_that_ends_too_soon_is_refused() {
    for pack in [gzip, zstd, |bytes: &[u8]| bytes.to_vec()] {
        let mut scene = Scene::new();
        let whole = Layer::new().file("a", &"x".repeat(5000)).tar();
        let packed = pack(&whole);
        let cut = packed[..packed.len() / 2].to_vec();
        let manifest = scene.layout.image(&[(whole, cut)], &Value::Null);
        scene.layout.add(manifest, "it");
        scene.refused();
    }
}
