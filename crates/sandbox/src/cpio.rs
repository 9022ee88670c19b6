//! The "newc" archive format in which the kernel takes its first file system.

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

/// An archive being written; [`Archive::finish`] completes it.
pub struct Archive<W> {
    out: W,
    entries: u32,
    written: usize,
}

impl<W: Write> Archive<W> {
    /// An empty one.
    pub fn new(out: W) -> Self {
        Self {
            out,
            entries: 0,
            written: 0,
        }
    }

    /// A directory that anybody may look into.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, DIRECTORY | 0o755, &[])
    }

    /// A file.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, FILE | permissions, content)
    }

    /// Writes the trailer that ends every archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let length = u32::try_from(content.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let name_length =
            u32::try_from(path.len() + 1).map_err(|_| io::ErrorKind::InvalidFilename)?;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        // inode, mode, owner, group, links, time, size, device (2), node (2), name size, checksum
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            length,
            0,
            0,
            0,
            0,
            name_length,
            0,
        ];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.bytes(header.as_bytes())?;
        self.bytes(path.as_bytes())?;
        self.bytes(&[0])?;
        self.pad()?;
        self.bytes(content)?;
        self.pad()
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }

    /// Names and contents each end on a multiple of four bytes.
    fn pad(&mut self) -> io::Result<()> {
        let missing = self.written.next_multiple_of(4) - self.written;
        self.bytes(&[0; 3][..missing])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_laid_out_as_the_format_says() {
        let mut archive = Archive::new(Vec::new());
        archive.file("init", 0o755, b"hello").unwrap();
        let bytes = archive.finish().unwrap();

        let field = |start: usize, index: usize| {
            let from = start + 6 + index * 8;
            u32::from_str_radix(std::str::from_utf8(&bytes[from..from + 8]).unwrap(), 16).unwrap()
        };
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(field(0, 1), 0o100_755, "mode");
        assert_eq!(field(0, 6), 5, "size");
        assert_eq!(field(0, 11), 5, "name size, its NUL included");
        // 110 bytes of header and 5 of name end at 116; 5 of content at 124.
        assert_eq!(&bytes[110..115], b"init\0");
        assert_eq!(&bytes[116..121], b"hello");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(&bytes[234..245], b"TRAILER!!!\0");
        assert_eq!(bytes.len() % 4, 0);
    }
}
