//! The keeper's side of a box that is put up: begun before anybody knows what it will show, furnished when that is known,
//! and let go.

use super::grip::{Grip, Motion};
use super::idmap::{self, OwnerMap};
use super::init::{self, Groups, Start, Terminal, UserMap};
use super::launch::{LONGEST_LOOK, Launched, Stdio};
use super::lent;
use super::message::{Kind, LaunchError, Message, Stage};
use super::script::{self, KeeperTree, Made, Notes, SHEET_SIZE, Sheet};
use super::sight::Sightings;
use super::supplies::{BATCH, Supplies, send_descriptors};
use super::ways::{BoxSockets, Ways, Wiring};
use crate::cgroup::{Cgroup, Cgroups};
use crate::host::Host;
use crate::plan::{Entry, Freezer, Identity, Limits, Network, Ownership, Plan, Shows, Watch};
use crate::sys::{self, Fork, SharedMemory, SignalsBlocked};
use crate::tier::{Console, Tier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::CString;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What is known of a box from the first: all of its plan that takes no look at the host's files.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// As in [`Plan::id`].
    pub id: String,
    /// As in [`Plan::identity`].
    pub identity: Identity,
    /// As in [`Plan::private_bytes`].
    pub private_bytes: u64,
    /// As in [`Plan::limits`].
    pub limits: Limits,
    /// As in [`Plan::freezer`].
    pub freezer: Freezer,
    /// As in [`Plan::network`].
    pub network: Network,
    /// As in [`Plan::answered_port`].
    pub answered_port: Option<u16>,
}

impl Outline {
    /// The plan's.
    pub fn of(plan: &Plan) -> Self {
        Self {
            id: plan.id.clone(),
            identity: plan.identity,
            private_bytes: plan.private_bytes,
            limits: plan.limits.clone(),
            freezer: plan.freezer,
            network: plan.network.clone(),
            answered_port: plan.answered_port,
        }
    }
}

/// A box of which there is a first process, that makes its namespaces. Dropping it kills the box.
#[derive(Debug)]
pub struct Begun {
    launched: Launched,
    outline: Outline,
    tier: Tier,
    gate: OwnedFd,
    memory: SharedMemory<Sheet>,
    supplies: OwnedFd,
}

/// A box whose walls go up. Dropping it kills the box.
#[derive(Debug)]
pub struct Starting {
    launched: Launched,
    gate: OwnedFd,
    // Init has a hold of its own on it.
    _memory: SharedMemory<Sheet>,
    // Nobody needs it any more, but to be rid of its helper takes a moment that is better had later.
    _owner_map: Option<OwnerMap>,
}

/// A box whose walls stand. Dropping it kills the box.
#[derive(Debug)]
pub struct Standing {
    launched: Launched,
    gate: OwnedFd,
}

impl std::fmt::Debug for Notes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notes")
            .field("steps", &self.step_paths.len())
            .finish_non_exhaustive()
    }
}

/// Starts to put up a box for `plan`: as far as it goes without the plan's stand-ins.
pub fn start(plan: &Plan, tier: Tier, host: &Host, stdio: &Stdio) -> Result<Starting, LaunchError> {
    begin(Outline::of(plan), tier, host, stdio)?.furnish(plan, host)
}

/// Makes the first process of a box, which goes on by itself while its plan is made.
pub fn begin(
    outline: Outline,
    tier: Tier,
    host: &Host,
    stdio: &Stdio,
) -> Result<Begun, LaunchError> {
    // A group that is entered by the process itself can be made while that builds its view.
    let mut cgroup = match host.cgroups.is_entered_at_birth(outline.freezer) {
        true => make_group(&outline, &tier, host)?,
        false => None,
    };
    match clone_init(&outline, &tier, host, stdio, &mut cgroup) {
        Ok(parts) => Begun::complete(parts, outline, tier),
        Err(error) => {
            // No process has entered it.
            if let Some(group) = cgroup {
                group.remove();
            }
            Err(error)
        }
    }
}

fn make_group(outline: &Outline, tier: &Tier, host: &Host) -> Result<Option<Cgroup>, LaunchError> {
    let Outline {
        id,
        limits,
        freezer,
        ..
    } = outline;
    let limits = tier.group_limits(limits);
    Ok(Cgroup::create(&host.cgroups, id, &limits, *freezer)?)
}

/// What there is of a box when its first process is made.
struct Parts {
    launched: Launched,
    gate: OwnedFd,
    memory: SharedMemory<Sheet>,
    supplies: OwnedFd,
}

/// Makes the box's first process. The control group goes with it, once there is one.
fn clone_init(
    outline: &Outline,
    tier: &Tier,
    host: &Host,
    stdio: &Stdio,
    cgroup: &mut Option<Cgroup>,
) -> Result<Parts, LaunchError> {
    let Identity { uid, gid, .. } = outline.identity;
    let terminal = terminal_for(stdio);
    let memory = SharedMemory::new(SHEET_SIZE).map_err(LaunchError::at(Stage::Processes))?;
    let gate = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
        .map_err(LaunchError::at(Stage::Admission))?;
    let keeper = init::own_handle().map_err(LaunchError::at(Stage::Processes))?;
    let (control, their_control) = channel()?;
    let (supplies, their_supplies) = channel()?;
    let wiring = Wiring::of(&outline.network);
    let inside = tier.inside(outline.identity);
    let own_map = (uid == rustix::process::geteuid().as_raw())
        .then(|| (map_of(inside.uid, uid), map_of(inside.gid, gid)));
    let start = Start {
        memory: &memory,
        control: their_control.as_fd(),
        supplies: Supplies::new(their_supplies.as_fd()),
        groups: match host.cgroups {
            Cgroups::V1(_) => Groups::Enter,
            _ => Groups::None,
        },
        wiring: wiring.as_ref().map(Wiring::borrowed),
        answered_port: outline.answered_port,
        private_size: &number(outline.private_bytes),
        uid: inside.uid,
        gid: inside.gid,
        rights: tier.rights(),
        stdio: [
            stdio.stdin.as_fd(),
            stdio.stdout.as_fd(),
            stdio.stderr.as_fd(),
        ],
        user_map: own_map
            .as_ref()
            .map_or(UserMap::Keeper, |(uid, gid)| UserMap::Own { uid, gid }),
        terminal,
        send_proc: matches!(host.cgroups, Cgroups::None { .. }),
        gate: gate.as_fd(),
        keeper: keeper.as_fd(),
    };
    // A handler of the host program's must not run in the copy.
    let quiet = SignalsBlocked::new();
    let into = cgroup.as_ref().and_then(Cgroup::directory);
    let (pid, handle) = match sys::clone_into(sys::BIRTH_NAMESPACES, into) {
        Ok(Fork::Child) => init::run(&start),
        Ok(Fork::Parent { pid, handle }) => (pid, handle),
        Err(errno) => return Err(LaunchError::at(Stage::Namespaces)(errno)),
    };
    drop(quiet);
    let group = cgroup.as_ref().and_then(Cgroup::version_2);
    let launched = Launched {
        pid,
        grip: Arc::new(Grip::new(handle, control, group.map(Path::to_owned))),
        notes: Notes::default(),
        cgroup: cgroup.take(),
        sampler: None,
        terminal,
        reaped: None,
        used: sys::Usage::default(),
        emptied: false,
        forks_refused: 0,
        ways: None,
        answered: None,
        sockets: None,
        sightings: None,
        accounting: tier.accounting(),
        mounts: None,
    };
    Ok(Parts {
        launched,
        gate,
        memory,
        supplies,
    })
}

impl Begun {
    /// Does for a new process what only its keeper may.
    fn complete(parts: Parts, outline: Outline, tier: Tier) -> Result<Self, LaunchError> {
        let Parts {
            launched,
            gate,
            memory,
            supplies,
        } = parts;
        if outline.identity.uid != rustix::process::geteuid().as_raw() {
            let mapped = launched.map_user(outline.identity, tier.inside(outline.identity));
            or_gone(mapped).map_err(LaunchError::at(Stage::UserMap))?;
        }
        Ok(Self {
            launched,
            outline,
            tier,
            gate,
            memory,
            supplies,
        })
    }

    /// A hold on it for other threads.
    pub fn grip(&self) -> Arc<Grip> {
        Arc::clone(&self.launched.grip)
    }

    /// Tells the box what it is to be, as far as it goes without the plan's stand-ins. The plan is that of its outline.
    pub fn furnish(self, plan: &Plan, host: &Host) -> Result<Starting, LaunchError> {
        let Self {
            mut launched,
            outline,
            tier,
            gate,
            memory,
            supplies,
        } = self;
        // What was begun has the outline's limits and user; another plan's would be a promise nobody keeps.
        if outline != Outline::of(plan) {
            return Err(LaunchError::at(Stage::Processes)(Errno::INVAL));
        }
        let console = match launched.terminal {
            Terminal::Detached => Console::None,
            Terminal::Foreground | Terminal::Background => Console::Terminal,
        };
        let sampled = matches!(host.cgroups, Cgroups::None { .. });
        let mut wall = tier.wall(plan, sampled, console)?;
        launched.notes = script::publish(plan, &mut wall, host, &memory)?;
        let grip = Arc::clone(&launched.grip);
        let written = Message::new(Kind::Written, 0, 0).send(grip.control());
        or_gone(written).map_err(LaunchError::at(Stage::View))?;
        // From here on init works too. The map is made with a process of its own, which takes a while.
        let is_mapped = |tree: &KeeperTree| tree.ownership == Ownership::Mapped;
        let owner_map = match launched.notes.trees.iter().any(is_mapped) {
            true => Some(OwnerMap::new(plan.identity).map_err(LaunchError::at(Stage::UserMap))?),
            false => None,
        };
        let hand_over =
            |fds: &[BorrowedFd<'_>]| supply(supplies.as_fd(), fds, launched.grip.handle());
        for trees in launched.notes.trees.chunks(BATCH) {
            let cloned = trees.iter().map(|tree| {
                make_tree(tree, plan.identity, owner_map.as_ref()).map_err(|errno| {
                    LaunchError::Step {
                        stage: Stage::View,
                        errno,
                        path: Some(tree.source.clone()),
                    }
                })
            });
            let cloned = cloned.collect::<Result<Vec<OwnedFd>, LaunchError>>()?;
            let fds: Vec<BorrowedFd<'_>> = cloned.iter().map(AsFd::as_fd).collect();
            hand_over(&fds).map_err(LaunchError::at(Stage::View))?;
        }
        // A group that is entered by the process itself is made last, while that builds its view.
        if launched.cgroup.is_none() {
            launched.cgroup = make_group(&outline, &tier, host)?;
        }
        if let (Some(group), Cgroups::V1(_)) = (&mut launched.cgroup, &host.cgroups) {
            let entrances = group.take_entrances();
            let fds: Vec<BorrowedFd<'_>> = entrances.iter().map(AsFd::as_fd).collect();
            hand_over(&fds).map_err(LaunchError::at(Stage::ControlGroup))?;
        }
        if plan.entry != Entry::Closed {
            let (ours, theirs) = channel()?;
            hand_over(&[theirs.as_fd()]).map_err(LaunchError::at(Stage::Network))?;
            launched.sockets = Some(BoxSockets::new(ours));
        }
        if plan.watch == Watch::Files {
            let (ours, theirs) = channel()?;
            hand_over(&[theirs.as_fd()]).map_err(LaunchError::at(Stage::Processes))?;
            launched.sightings = Some(Sightings::new(ours));
        }
        Ok(Starting {
            launched,
            gate,
            _memory: memory,
            _owner_map: owner_map,
        })
    }
}

impl Starting {
    /// A hold on it for other threads.
    pub fn grip(&self) -> Arc<Grip> {
        Arc::clone(&self.launched.grip)
    }

    /// Lets the program start the moment its walls stand: nobody has to say so then.
    pub fn let_go_early(&self) -> Result<(), LaunchError> {
        open(&self.gate)
    }

    /// Goes on, now that the plan's stand-ins are in place.
    pub fn go_on(&self) -> Result<(), LaunchError> {
        if !self.launched.notes.awaits {
            return Ok(());
        }
        let ready = Message::new(Kind::Ready, 0, 0).send(self.launched.grip.control());
        or_gone(ready).map_err(LaunchError::at(Stage::View))
    }

    /// Waits until all walls stand, or one does not. Call [`Starting::go_on`] before.
    pub fn stand(mut self) -> Result<Standing, LaunchError> {
        self.launched.await_start()?;
        // What the walls were made from may be large, and is not needed any more.
        self.launched.notes.step_paths = Vec::new();
        self.launched.notes.trees = Vec::new();
        Ok(Standing {
            launched: self.launched,
            gate: self.gate,
        })
    }
}

impl Standing {
    /// Pid 1 of the box, in the keeper's pid namespace.
    pub fn pid(&self) -> i32 {
        self.launched.pid
    }

    /// The sockets that the box's network leads to, if it is not closed. Whoever takes them answers for it.
    pub fn take_ways(&mut self) -> Option<Ways> {
        self.launched.ways.take()
    }

    /// The listener on the plan's answered port. While nobody accepts, connections wait.
    pub fn take_answered(&mut self) -> Option<TcpListener> {
        self.launched.answered.take().map(TcpListener::from)
    }

    /// A way to make sockets inside the box, if the plan has one.
    pub fn take_sockets(&mut self) -> Option<BoxSockets> {
        self.launched.sockets.take()
    }

    /// What the box is seen to do, if the plan has it watched. Whoever takes it must listen: a box waits to be heard.
    pub fn take_sightings(&mut self) -> Option<Sightings> {
        self.launched.sightings.take()
    }

    /// The program was let start before.
    pub fn gone(self) -> Launched {
        self.launched
    }

    /// Waits for a box that was told to hold still to do so: a program that is let go before would get a few instructions
    /// in. Returns as well when it is thawed or killed meanwhile.
    pub fn await_still(&mut self) -> Result<(), LaunchError> {
        let grip = Arc::clone(&self.launched.grip);
        while grip.motion() == Motion::Freezing {
            // What init says about it is taken note of there.
            while self.launched.next_event().is_some() {}
            if grip.needs_holding() {
                grip.hold_still();
            }
            let mut heard = [PollFd::from_borrowed_fd(
                self.launched.events(),
                PollFlags::IN,
            )];
            let look = Timespec::try_from(LONGEST_LOOK).map_err(|_| Errno::INVAL);
            look.and_then(|look| poll(&mut heard, Some(&look)))
                .map_err(LaunchError::at(Stage::Admission))?;
            if self.launched.is_deaf() {
                break;
            }
            if grip.is_overdue(Instant::now()) {
                return Err(LaunchError::at(Stage::Admission)(Errno::TIMEDOUT));
            }
        }
        Ok(())
    }

    /// Lets the program start.
    pub fn go(self) -> Result<Launched, LaunchError> {
        open(&self.gate)?;
        Ok(self.launched)
    }
}

fn open(gate: &OwnedFd) -> Result<(), LaunchError> {
    rustix::io::write(gate, &1u64.to_ne_bytes())
        .map(drop)
        .map_err(LaunchError::at(Stage::Admission))
}

fn channel() -> Result<(OwnedFd, OwnedFd), LaunchError> {
    rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(LaunchError::at(Stage::Namespaces))
}

fn number(value: u64) -> CString {
    CString::new(value.to_string()).unwrap_or_default()
}

/// A map of one id.
fn map_of(inside: u32, outside: u32) -> CString {
    CString::new(format!("{inside} {outside} 1")).unwrap_or_default()
}

/// An init that failed can't be told anything. It has said why, which is heard where its start is waited for.
fn or_gone(sent: Result<(), Errno>) -> Result<(), Errno> {
    match sent {
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        other => other,
    }
}

/// Hands descriptors to init. Where many wait already, waits until it has taken some; but not for one that is gone.
fn supply(
    supplies: BorrowedFd<'_>,
    fds: &[BorrowedFd<'_>],
    init: BorrowedFd<'_>,
) -> Result<(), Errno> {
    loop {
        match send_descriptors(supplies, fds) {
            Err(Errno::AGAIN) => {}
            sent => return or_gone(sent),
        }
        let mut sources = [
            PollFd::from_borrowed_fd(init, PollFlags::IN),
            PollFd::from_borrowed_fd(supplies, PollFlags::OUT),
        ];
        poll(&mut sources, None)?;
        if !sources[0].revents().is_empty() {
            return Ok(());
        }
    }
}

/// Makes a tree that only the keeper may make: a clone of one whose owner is mapped, or of a file that the box's user can't
/// reach, or a device for that user.
fn make_tree(
    tree: &KeeperTree,
    identity: Identity,
    map: Option<&OwnerMap>,
) -> Result<OwnedFd, Errno> {
    let KeeperTree {
        source,
        flags,
        ownership,
        made,
    } = tree;
    match (ownership, map, made) {
        (_, _, Made::Lent) => lent::directory_with(source, identity),
        (Ownership::Mapped, Some(map), _) => map.clone_tree(source, *flags),
        (Ownership::Mapped, None, _) => Err(Errno::PERM),
        (Ownership::Host | Ownership::Image, _, Made::Clone) => {
            idmap::clone_only(source, *flags, None)
        }
        (Ownership::Host | Ownership::Image, _, Made::CloneOf(only)) => {
            idmap::clone_only(source, *flags, Some(*only))
        }
    }
}

/// Whether the plan needs what only root can do.
pub(crate) fn needs_mapped_owner(plan: &Plan) -> bool {
    plan.view.iter().any(|entry| {
        matches!(
            entry.shows,
            Shows::Host {
                ownership: Ownership::Mapped,
                ..
            } | Shows::Overlay {
                ownership: Ownership::Mapped,
                ..
            }
        )
    })
}

fn terminal_for(stdio: &Stdio) -> Terminal {
    let Some(terminal) = [&stdio.stdin, &stdio.stdout, &stdio.stderr]
        .into_iter()
        .find(|fd| rustix::termios::isatty(fd))
    else {
        return Terminal::Detached;
    };
    match rustix::termios::tcgetpgrp(terminal) {
        Ok(group) if group == rustix::process::getpgrp() => Terminal::Foreground,
        Ok(_) => Terminal::Background,
        // A terminal, but not ours to control.
        Err(_) => Terminal::Detached,
    }
}
