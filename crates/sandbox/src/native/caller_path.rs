//! A path as a watched call names it, taken from its caller. Part of init: nothing here allocates.

use super::peer::Text;
use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::ffi::CStr;

/// The longest path the kernel takes, its final NUL included.
pub(super) const LONGEST: usize = libc::PATH_MAX as usize;

/// A path as a call names it, with a NUL behind it.
pub(super) struct CallerPath {
    bytes: [u8; LONGEST + 32],
    used: usize,
}

impl CallerPath {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; LONGEST + 32],
            used: 0,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }

    pub(super) fn is_absolute(&self) -> bool {
        self.bytes().first() == Some(&b'/')
    }

    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }

    fn set(&mut self, parts: [&[u8]; 3]) -> bool {
        let mut bytes = [0u8; LONGEST + 32];
        let mut used = 0;
        for part in parts {
            // One stays for the NUL.
            match bytes.get_mut(used..used + part.len()) {
                Some(room) if used + part.len() < LONGEST + 32 => room.copy_from_slice(part),
                _ => return false,
            }
            used += part.len();
        }
        (self.bytes, self.used) = (bytes, used);
        true
    }

    /// Reads a path from another's memory, page by page: what is behind its end may not be there.
    pub(super) fn read(&mut self, thread: i32, address: u64) -> Result<(), Errno> {
        const PAGE: u64 = 4096;
        self.used = 0;
        while self.used < LONGEST {
            let at = address.checked_add(self.used as u64).ok_or(Errno::FAULT)?;
            let to_page_end = (PAGE - at % PAGE) as usize;
            let end = (self.used + to_page_end).min(LONGEST);
            let room = self.bytes.get_mut(self.used..end).ok_or(Errno::FAULT)?;
            let wanted = room.len();
            if sys::read_memory(thread, at, room)? != wanted {
                return Err(Errno::FAULT);
            }
            if let Some(nul) = room.iter().position(|byte| *byte == 0) {
                self.used += nul;
                self.bytes[self.used..].fill(0);
                return Ok(());
            }
            self.used = end;
        }
        Err(Errno::NAMETOOLONG)
    }

    /// The path in the address of a Unix socket.
    pub(super) fn read_unix_address(
        &mut self,
        thread: i32,
        at: u64,
        length: u64,
    ) -> Result<(), Errno> {
        let mut address = [0u8; size_of::<libc::sockaddr_un>()];
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let address = address.get_mut(..length).ok_or(Errno::INVAL)?;
        if sys::read_memory(thread, at, address)? != address.len() {
            return Err(Errno::FAULT);
        }
        let family = address.get(..2).and_then(|bytes| bytes.try_into().ok());
        let path = address.get(2..).unwrap_or_default();
        let end = path.iter().position(|byte| *byte == 0);
        let path = path.get(..end.unwrap_or(path.len())).unwrap_or_default();
        if family.map(u16::from_ne_bytes) != Some(libc::AF_UNIX as u16) || path.is_empty() {
            return Err(Errno::AFNOSUPPORT);
        }
        match self.set([path, b"", b""]) {
            true => Ok(()),
            false => Err(Errno::NAMETOOLONG),
        }
    }

    pub(super) fn read_link(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<(), Errno> {
        let room = &mut self.bytes[..LONGEST - 1];
        self.used = rustix::fs::readlinkat_raw(directory, name, room)?;
        Ok(())
    }

    /// Where a path goes through the caller's own entry in /proc, says so by number. Whether it did.
    pub(super) fn stand_in_for(&mut self, thread: i32) -> bool {
        const OWN: [(&[u8], &[u8]); 6] = [
            (b"/proc/self", b""),
            (b"/proc/thread-self", b""),
            (b"/dev/fd", b"/fd"),
            (b"/dev/stdin", b"/fd/0"),
            (b"/dev/stdout", b"/fd/1"),
            (b"/dev/stderr", b"/fd/2"),
        ];
        for (own, below) in OWN {
            let Some(rest) = self.bytes().strip_prefix(own) else {
                continue;
            };
            if rest.first().is_some_and(|byte| *byte != b'/') {
                continue;
            }
            let mut entry = Text::new();
            entry.push(b"/proc/");
            entry.push_number(thread.unsigned_abs());
            let Some(entry) = entry.as_c_str() else {
                return false;
            };
            let mut tail = [0u8; LONGEST];
            let length = rest.len();
            let Some(room) = tail.get_mut(..length) else {
                return false;
            };
            room.copy_from_slice(rest);
            return self.set([entry.to_bytes(), below, &tail[..length]]);
        }
        // Another process's entry, or a device.
        self.bytes().starts_with(b"/proc/")
    }

    /// Without slashes at its end, unless it is the root.
    pub(super) fn trim(&mut self) {
        while self.used > 1 && self.bytes[self.used - 1] == b'/' {
            self.used -= 1;
            self.bytes[self.used] = 0;
        }
    }

    /// Whether it names a directory by "." or "..", or is the root, so that nothing is left to keep.
    pub(super) fn ends_in_dots(&self) -> bool {
        let name = self.bytes().rsplit(|byte| *byte == b'/').next();
        matches!(name, Some(b"" | b"." | b".."))
    }

    /// The directory's path, if there is one, and the name in it.
    pub(super) fn split(&mut self) -> (Option<&CStr>, &CStr) {
        let Some(slash) = self.bytes().iter().rposition(|byte| *byte == b'/') else {
            return (None, self.as_c_str());
        };
        if slash == 0 {
            let name = CStr::from_bytes_until_nul(&self.bytes[1..]).unwrap_or(c"");
            return (Some(c"/"), name);
        }
        self.bytes[slash] = 0;
        let (directory, name) = self.bytes.split_at(slash + 1);
        (
            CStr::from_bytes_until_nul(directory).ok(),
            CStr::from_bytes_until_nul(name).unwrap_or(c""),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CallerPath {
        let mut path = CallerPath::new();
        assert!(path.set([text.as_bytes(), b"", b""]));
        path
    }

    #[test]
    fn a_callers_own_entry_is_named_by_number() {
        let check = |text: &str, expect: &str, through: bool| {
            let mut path = path(text);
            assert_eq!(path.stand_in_for(42), through, "{text}");
            assert_eq!(path.bytes(), expect.as_bytes(), "{text}");
        };
        check("/proc/self/cwd/x", "/proc/42/cwd/x", true);
        check("/proc/thread-self", "/proc/42", true);
        check("/dev/fd/3", "/proc/42/fd/3", true);
        check("/dev/stdin", "/proc/42/fd/0", true);
        check("/proc/selfish", "/proc/selfish", true);
        check("/dev/fdx", "/dev/fdx", false);
        check("proc/self", "proc/self", false);
    }

    #[test]
    fn a_path_comes_apart_at_its_last_name() {
        let check = |text: &str, directory: Option<&str>, name: &str| {
            let mut path = path(text);
            path.trim();
            let (found, last) = path.split();
            assert_eq!(found.map(|d| d.to_str().unwrap()), directory, "{text}");
            assert_eq!(last.to_str().unwrap(), name, "{text}");
        };
        check("name", None, "name");
        check("/name", Some("/"), "name");
        check("/a/b/", Some("/a"), "b");
        check("a//b", Some("a/"), "b");
        for text in ["/", "..", "a/..", "/a/.", "///"] {
            let mut path = path(text);
            path.trim();
            assert!(path.ends_in_dots(), "{text}");
        }
    }

    #[test]
    fn memory_is_read_up_to_its_end_and_no_further() {
        let own = std::process::id() as i32;
        let mut read = CallerPath::new();
        let text = c"/some/where";
        read.read(own, text.as_ptr() as u64).unwrap();
        assert_eq!(read.bytes(), b"/some/where");
        assert!(read.read(own, 0).is_err());
        assert!(read.read(own, u64::MAX).is_err());
        let endless = vec![b'x'; 3 * LONGEST];
        assert_eq!(
            read.read(own, endless.as_ptr() as u64),
            Err(Errno::NAMETOOLONG)
        );
    }
}
