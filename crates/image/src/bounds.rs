//! How large an image may be. Sources are strangers': nothing of theirs is read or written without end.

/// What is unpacked at most. More is an error, never a part of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all files together, as unpacked, those that later layers replace included.
    pub bytes: u64,
    /// Bytes of one file.
    pub file: u64,
    /// Files, directories and links, in all layers together.
    pub entries: u64,
    /// Layers.
    pub layers: usize,
}

impl Bounds {
    /// Those that hold unless a caller says otherwise: 64 GiB in all, 8 GiB in one file, four million entries, 256 layers.
    pub const USUAL: Self = Self {
        bytes: 64 << 30,
        file: 8 << 30,
        entries: 4_000_000,
        layers: 256,
    };
}

/// Bytes of a path in an image: what a system call takes.
pub(crate) const MOST_PATH: usize = 4095;
/// Bytes of a name in it.
pub(crate) const MOST_NAME: usize = 255;
/// Bytes of a document: an index, a manifest, a configuration, a record.
pub(crate) const MOST_DOCUMENT: u64 = 8 << 20;
