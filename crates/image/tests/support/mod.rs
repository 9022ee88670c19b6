//! OCI layouts made by hand, hostile ones too.

use serde_json::{Value, json};
use sha2::Digest as _;
use std::fs;
use std::path::{Path, PathBuf};
use tar::{EntryType, Header};

/// A layer's archive. Names go in as they are given, which the crate that writes archives would not do.
#[derive(Default)]
pub(crate) struct Layer {
    bytes: Vec<u8>,
}

impl Layer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn entry(
        mut self,
        kind: EntryType,
        name: &[u8],
        link: &[u8],
        mode: u32,
        body: &[u8],
    ) -> Self {
        let mut header = Header::new_gnu();
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name);
        old.linkname[..link.len()].copy_from_slice(link);
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(body.len() as u64);
        header.set_mtime(1_000_000_000);
        header.set_cksum();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(body);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, body: &str) -> Self {
        self.entry(
            EntryType::Regular,
            name.as_bytes(),
            b"",
            0o644,
            body.as_bytes(),
        )
    }

    pub(crate) fn directory(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name.as_bytes(), b"", 0o755, b"")
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(
            EntryType::Symlink,
            name.as_bytes(),
            target.as_bytes(),
            0o777,
            b"",
        )
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(
            EntryType::Link,
            name.as_bytes(),
            target.as_bytes(),
            0o644,
            b"",
        )
    }

    pub(crate) fn whiteout(self, name: &str) -> Self {
        self.file(name, "")
    }

    pub(crate) fn tar(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("packed");
    encoder.finish().expect("packed")
}

/// In two frames, with one to be skipped between them.
pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    let (one, two) = bytes.split_at(bytes.len() / 2);
    let mut packed = compress_to_vec(one, CompressionLevel::Fastest);
    packed.extend_from_slice(&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
    packed.extend(compress_to_vec(two, CompressionLevel::Fastest));
    packed
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let hash = sha2::Sha256::digest(bytes);
    format!("sha256:{}", data_encoding::HEXLOWER.encode(&hash))
}

/// A layout in a directory.
pub(crate) struct Layout {
    pub(crate) path: PathBuf,
    manifests: Vec<Value>,
}

impl Layout {
    pub(crate) fn new(path: &Path) -> Self {
        fs::create_dir_all(path.join("blobs/sha256")).expect("directories");
        fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a file");
        Self {
            path: path.to_owned(),
            manifests: Vec::new(),
        }
    }

    pub(crate) fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        fs::write(self.blob_path(&digest), bytes).expect("a blob");
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    pub(crate) fn blob_path(&self, digest: &str) -> PathBuf {
        self.path.join("blobs").join(digest.replace(':', "/"))
    }

    /// An image of these layers, each with its stored form; says its manifest's descriptor.
    pub(crate) fn image(&self, layers: &[(Vec<u8>, Vec<u8>)], wishes: &Value) -> Value {
        let diffs: Vec<String> = layers.iter().map(|(tar, _)| digest(tar)).collect();
        let config = json!({
            "os": "linux", "architecture": architecture(), "config": wishes,
            "rootfs": {"type": "layers", "diff_ids": diffs},
        });
        let config = config.to_string();
        let config = self.blob(
            "application/vnd.oci.image.config.v1+json",
            config.as_bytes(),
        );
        let layers: Vec<Value> = layers
            .iter()
            .map(|(_, stored)| self.blob("application/vnd.oci.image.layer.v1.tar", stored))
            .collect();
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
        self.blob(
            "application/vnd.oci.image.manifest.v1+json",
            manifest.as_bytes(),
        )
    }

    pub(crate) fn add(&mut self, mut descriptor: Value, reference: &str) {
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": reference});
        self.manifests.push(descriptor);
        let index = json!({"schemaVersion": 2, "manifests": self.manifests});
        fs::write(self.path.join("index.json"), index.to_string()).expect("an index");
    }
}

pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
