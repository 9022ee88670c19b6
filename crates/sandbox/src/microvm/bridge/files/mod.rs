//! The files of a guest: its kernel's requests, answered with the box's own view.
//!
//! What may be read and written is not decided here. This process is in the box as any program of the native tier is, so
//! the host's kernel shows it the plan's view and refuses what the plan refuses; a guest that lies to this server gets what
//! a program in that box gets. What the server adds: it opens nothing but regular files and directories, never more of them
//! than a number, and never looks below `/dev` and `/proc`, where a guest has its own.

mod abi;
mod nodes;
mod requests;

use abi::{Answer, Body, IN_HEADER, op, reply};
use nodes::Nodes;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Answers requests for files.
pub(super) struct Server {
    nodes: Mutex<Nodes>,
}

/// What became of a request.
pub(super) enum Outcome {
    /// This is to be sent.
    Answer(Vec<u8>),
    /// Nothing is to be said.
    Silence,
    /// It was none.
    Garbage,
}

impl Server {
    /// Shows the tree from `root` on.
    pub(super) fn new(root: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty())?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let most = nodes::most_nodes(limit.current.unwrap_or(u64::MAX));
        Ok(Self {
            nodes: Mutex::new(Nodes::new(root, most)?),
        })
    }

    /// Whether the guest should forget files.
    pub(super) fn is_crowded(&self) -> bool {
        self.nodes().is_crowded()
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        // Each change is one call, whole or not at all.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request.
    pub(super) fn serve(&self, request: &[u8]) -> Outcome {
        let Some((header, body)) = request.split_at_checked(IN_HEADER) else {
            return Outcome::Garbage;
        };
        let mut header = Body(header);
        let (Some(length), Some(code), Some(unique), Some(node)) =
            (header.u32(), header.u32(), header.u64(), header.u64())
        else {
            return Outcome::Garbage;
        };
        if length as usize != request.len() {
            return Outcome::Garbage;
        }
        match code {
            op::FORGET => {
                let lookups = Body(body).u64();
                self.nodes().forget(node, lookups.unwrap_or(0));
                Outcome::Silence
            }
            op::BATCH_FORGET => {
                self.forget_many(Body(body));
                Outcome::Silence
            }
            op::INTERRUPT => Outcome::Silence,
            _ => {
                let answer = self.answer(code, node, Body(body));
                Outcome::Answer(reply(unique, answer))
            }
        }
    }

    fn forget_many(&self, mut body: Body<'_>) {
        let count = body.u32().unwrap_or(0);
        let _ = body.u32();
        let mut nodes = self.nodes();
        for _ in 0..count {
            let (Some(node), Some(lookups)) = (body.u64(), body.u64()) else {
                return;
            };
            nodes.forget(node, lookups);
        }
    }

    fn answer(&self, code: u32, node: u64, body: Body<'_>) -> Result<Answer, Errno> {
        match code {
            op::INIT => self.agree(body),
            op::LOOKUP => self.look_up(node, body),
            op::GETATTR => self.attributes(node),
            op::SETATTR => self.set_attributes(node, body),
            op::READLINK => self.read_link(node),
            op::SYMLINK => self.make_link(node, body),
            op::MKNOD => self.make_node(node, body),
            op::MKDIR => self.make_directory(node, body),
            op::UNLINK => self.remove(node, body, rustix::fs::AtFlags::empty()),
            op::RMDIR => self.remove(node, body, rustix::fs::AtFlags::REMOVEDIR),
            op::RENAME => self.rename(node, body, requests::Renaming::Plain),
            op::RENAME2 => self.rename(node, body, requests::Renaming::WithFlags),
            op::LINK => self.link(node, body),
            op::OPEN => self.open(node, body),
            op::OPENDIR => self.open_directory(node),
            op::READ => self.read(body),
            op::WRITE => self.write(body),
            op::READDIR => self.read_directory(node, body),
            op::STATFS => self.room(node),
            op::RELEASE | op::RELEASEDIR => self.release(body),
            op::FSYNC | op::FSYNCDIR => self.synchronise(body),
            op::CREATE => self.create(node, body),
            op::FALLOCATE => self.allocate(body),
            op::LSEEK => self.seek(body),
            op::FLUSH | op::DESTROY => Ok(Answer::default()),
            _ => Err(Errno::NOSYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(code: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(((IN_HEADER + body.len()) as u32).to_le_bytes());
        bytes.extend(code.to_le_bytes());
        bytes.extend(7u64.to_le_bytes());
        bytes.extend(node.to_le_bytes());
        bytes.extend([0; 16]);
        bytes.extend(body);
        bytes
    }

    fn ask(server: &Server, code: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        match server.serve(&request(code, node, body)) {
            Outcome::Answer(bytes) => match i32::from_le_bytes(bytes[4..8].try_into().unwrap()) {
                0 => Ok(bytes[16..].to_vec()),
                error => Err(-error),
            },
            Outcome::Silence | Outcome::Garbage => panic!("no answer"),
        }
    }

    fn find(server: &Server, path: &str) -> Result<u64, i32> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(1, |node, name| {
                let found = ask(server, op::LOOKUP, node, format!("{name}\0").as_bytes())?;
                Ok(u64::from_le_bytes(found[..8].try_into().unwrap()))
            })
    }

    fn open(server: &Server, node: u64, flags: i32) -> Result<u64, i32> {
        let body = [&flags.to_le_bytes()[..], &[0; 4]].concat();
        let opened = ask(server, op::OPEN, node, &body)?;
        Ok(u64::from_le_bytes(opened[..8].try_into().unwrap()))
    }

    #[test]
    fn names_lead_down_and_nowhere_else() {
        let server = Server::new(Path::new("/")).unwrap();
        for name in ["..", ".", "", "etc/passwd", "../etc"] {
            let answer = ask(&server, op::LOOKUP, 1, format!("{name}\0").as_bytes());
            assert_eq!(answer, Err(libc::EINVAL), "{name:?}");
        }
        assert_eq!(
            ask(&server, op::LOOKUP, 1, b"etc"),
            Err(libc::EINVAL),
            "no end"
        );
        assert_eq!(find(&server, "no such thing"), Err(libc::ENOENT));
        assert_eq!(ask(&server, op::GETATTR, 4711, &[0; 16]), Err(libc::ESTALE));
    }

    #[test]
    fn what_the_guest_has_itself_is_closed_to_it_here() {
        let tree = tempfile::tempdir().unwrap();
        for name in [
            "dev",
            "proc",
            "dev/null",
            "dev/belljar",
            "proc/self",
            "proc/1",
        ] {
            std::fs::create_dir(tree.path().join(name)).unwrap();
        }
        let server = Server::new(tree.path()).unwrap();
        for place in ["dev", "proc"] {
            let node = find(&server, place).unwrap();
            for name in ["self", "null", "belljar", "1"] {
                let found = ask(&server, op::LOOKUP, node, format!("{name}\0").as_bytes());
                assert_eq!(found, Err(libc::ENOENT), "{place}/{name}");
            }
            let body = [&0o644u32.to_le_bytes()[..], &[0; 4], b"new\0"].concat();
            assert_eq!(ask(&server, op::MKDIR, node, &body), Err(libc::EACCES));
            let opened = ask(&server, op::OPENDIR, node, &[0; 8]).unwrap();
            let listing = [
                &opened[..8],
                &0u64.to_le_bytes(),
                &4096u32.to_le_bytes(),
                &[0; 20],
            ]
            .concat();
            assert_eq!(
                ask(&server, op::READDIR, node, &listing),
                Ok(Vec::new()),
                "{place}"
            );
        }
    }

    #[test]
    fn files_are_read_and_written_and_only_regular_ones_opened() {
        let place = tempfile::tempdir().unwrap();
        let server = Server::new(place.path()).unwrap();
        std::fs::write(place.path().join("file"), "as it was").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, place.path().join("fifo"), Mode::RWXU).unwrap();
        let file = find(&server, "file").unwrap();
        let handle = open(&server, file, libc::O_RDWR).unwrap();
        let at = |size: u32| {
            [
                &handle.to_le_bytes()[..],
                &3u64.to_le_bytes(),
                &size.to_le_bytes(),
                &[0; 20],
            ]
            .concat()
        };
        assert_eq!(
            ask(&server, op::READ, file, &at(100)),
            Ok(b"it was".to_vec())
        );
        assert_eq!(
            ask(&server, op::READ, file, &at(u32::MAX)),
            Err(libc::EINVAL),
            "more than was agreed on"
        );
        let written = ask(
            &server,
            op::WRITE,
            file,
            &[at(4), b"they".to_vec()].concat(),
        )
        .unwrap();
        assert_eq!(written[..4], 4u32.to_le_bytes());
        assert_eq!(
            std::fs::read(place.path().join("file")).unwrap(),
            b"as theyas"
        );

        // It would wait for a writer for ever.
        let fifo = find(&server, "fifo").unwrap();
        assert_eq!(open(&server, fifo, libc::O_RDONLY), Err(libc::EACCES));
        assert_eq!(
            open(&server, file, libc::O_RDONLY | libc::O_PATH).map(drop),
            Ok(()),
            "flags that mean nothing here"
        );
    }

    #[test]
    fn garbage_ends_in_an_error_and_never_in_a_panic() {
        let tree = tempfile::tempdir().unwrap();
        let server = Server::new(tree.path()).unwrap();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as u32
        };
        for round in 0..20_000 {
            let body: Vec<u8> = (0..random() % 120)
                .map(|_| (random() >> 8) as u8 % 4)
                .collect();
            let code = random() % 50;
            match server.serve(&request(code, u64::from(random() % 4), &body)) {
                Outcome::Answer(bytes) => assert!(bytes.len() >= 16, "{round}"),
                Outcome::Silence => {}
                Outcome::Garbage => panic!("a whole header is no garbage"),
            }
        }
        for length in 0..IN_HEADER {
            assert!(matches!(server.serve(&vec![1; length]), Outcome::Garbage));
        }
        let mut lying = request(op::GETATTR, 1, &[]);
        lying[0] = 99;
        assert!(matches!(server.serve(&lying), Outcome::Garbage));
    }
}
