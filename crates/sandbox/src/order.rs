//! What a kernel other than the host's is told to run: the part of a plan that is the program's own.

use crate::plan::{Plan, Spawn};
use crate::reach::Reach;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A program, who it runs as and what each of its processes may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) program: OsString,
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) workdir: OsString,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) may_spawn: bool,
    /// How many bytes `/dev/shm` may hold.
    pub(crate) shared_bytes: u64,
    /// Bytes of memory, and processes, that all together may have; 0 is no limit.
    pub(crate) memory_bytes: u64,
    pub(crate) processes: u64,
    /// What may be changed, and all below it.
    pub(crate) writable: Vec<OsString>,
    /// Which resource, and how much of it.
    pub(crate) limits: Vec<(u32, u64)>,
    pub(crate) reach: Reach,
}

impl Order {
    pub(crate) fn of(plan: &Plan) -> Self {
        let limits = &plan.limits;
        let files = limits.open_files.map(u64::from);
        let files = files.or_else(crate::descriptors::usual_limit);
        let each = [
            (libc::RLIMIT_CORE, Some(0)),
            (libc::RLIMIT_MEMLOCK, Some(8 << 20)),
            (libc::RLIMIT_MSGQUEUE, Some(1 << 20)),
            (libc::RLIMIT_NOFILE, files),
            (libc::RLIMIT_FSIZE, limits.file_size_bytes),
        ];
        Self {
            program: plan.program.clone().into_os_string(),
            argv: plan.argv.clone(),
            env: plan.env.clone(),
            workdir: plan.workdir.clone().into_os_string(),
            uid: plan.identity.uid,
            gid: plan.identity.gid,
            may_spawn: plan.spawn == Spawn::Allow,
            shared_bytes: plan.private_bytes,
            memory_bytes: limits.memory_bytes.unwrap_or(0),
            processes: limits.processes.map_or(0, u64::from),
            writable: plan
                .view
                .iter()
                .filter(|entry| entry.is_writable())
                .map(|entry| entry.path.clone().into_os_string())
                .collect(),
            limits: each
                .into_iter()
                .filter_map(|(resource, value)| value.map(|value| (resource, value)))
                .collect(),
            reach: Reach::of(plan),
        }
    }

    pub(crate) fn spawn(&self) -> Spawn {
        match self.may_spawn {
            true => Spawn::Allow,
            false => Spawn::Refuse,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        out.text(&self.program);
        out.text(&self.workdir);
        out.number(self.uid.into());
        out.number(self.gid.into());
        out.number(self.may_spawn.into());
        out.number(self.shared_bytes);
        out.number(self.memory_bytes);
        out.number(self.processes);
        out.number(self.argv.len() as u64);
        self.argv.iter().for_each(|word| out.text(word));
        out.number(self.env.len() as u64);
        for (name, value) in &self.env {
            out.text(name);
            out.text(value);
        }
        out.number(self.writable.len() as u64);
        self.writable.iter().for_each(|path| out.text(path));
        out.number(self.limits.len() as u64);
        for (resource, value) in &self.limits {
            out.number((*resource).into());
            out.number(*value);
        }
        self.reach.write(&mut out);
        out.0
    }

    /// What was encoded; nothing if it is anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Reader(bytes);
        let order = Self {
            program: bytes.text()?,
            workdir: bytes.text()?,
            uid: bytes.small()?,
            gid: bytes.small()?,
            may_spawn: bytes.number()? == 1,
            shared_bytes: bytes.number()?,
            memory_bytes: bytes.number()?,
            processes: bytes.number()?,
            argv: bytes.list(Reader::text)?,
            env: bytes.list(|bytes| Some((bytes.text()?, bytes.text()?)))?,
            writable: bytes.list(Reader::text)?,
            limits: bytes.list(|bytes| Some((bytes.small()?, bytes.number()?)))?,
            reach: Reach::read(&mut bytes)?,
        };
        bytes.0.is_empty().then_some(order)
    }
}

/// What the bridge adds to an order: it is in the box, where these are to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Surroundings {
    pub(crate) umask: u32,
    /// Whether the program talks to a terminal.
    pub(crate) has_terminal: bool,
    /// For the guest's kernel, which has no source of its own.
    pub(crate) entropy: [u8; 64],
}

impl Surroundings {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let terminal = [self.has_terminal.into()];
        [&self.umask.to_le_bytes()[..], &terminal, &self.entropy].concat()
    }

    /// These, and the order before them.
    pub(crate) fn split(bytes: &[u8]) -> Option<(&[u8], Self)> {
        let (rest, entropy) = bytes.split_last_chunk::<64>()?;
        let (rest, [terminal]) = rest.split_last_chunk::<1>()?;
        let (order, umask) = rest.split_last_chunk::<4>()?;
        let surroundings = Self {
            has_terminal: *terminal == 1,
            umask: u32::from_le_bytes(*umask),
            entropy: *entropy,
        };
        Some((order, surroundings))
    }
}

pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &OsStr) {
        self.number(text.len() as u64);
        self.0.extend(text.as_bytes());
    }
}

pub(super) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    pub(super) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    pub(super) fn text(&mut self) -> Option<OsString> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(OsString::from_vec(text.to_vec()))
    }

    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.number()?;
        (0..count).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_the_way_and_nothing_else_is_taken_for_one() {
        let order = Order {
            program: "/bin/echo".into(),
            argv: vec!["echo".into(), OsString::from_vec(vec![0xff, b'x'])],
            env: vec![("A".into(), "b=c".into())],
            workdir: "/tmp".into(),
            uid: 65_534,
            gid: 7,
            may_spawn: true,
            shared_bytes: 1 << 33,
            memory_bytes: 0,
            processes: 17,
            writable: vec!["/tmp".into(), OsString::from_vec(vec![b'/', 0xfe])],
            limits: vec![(7, 1024)],
            reach: Reach {
                network: crate::plan::Network::Guarded {
                    host_ports: vec![5432],
                },
                answered: Some(3129),
                published: vec![8000, 8001],
                doors: vec!["/belljar/agent.sock".into()],
            },
        };
        let bytes = order.encode();
        assert_eq!(Order::decode(&bytes), Some(order));
        for length in 0..bytes.len() {
            assert_eq!(Order::decode(&bytes[..length]), None, "{length}");
        }
        assert_eq!(Order::decode(&[&bytes[..], &[0]].concat()), None);
        let surroundings = Surroundings {
            umask: 0o27,
            has_terminal: true,
            entropy: [9; 64],
        };
        let all = [bytes.clone(), surroundings.encode()].concat();
        assert_eq!(Surroundings::split(&all), Some((&bytes[..], surroundings)));
    }
}
