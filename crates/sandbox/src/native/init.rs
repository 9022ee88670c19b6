//! The box's pid 1, and the way from a fresh copy of the keeper to the agent's first instruction.
//!
//! Nothing here may allocate, lock or panic: the process is a copy of one that may have had threads. After the start,
//! init reaps, passes signals on, and answers the filter's questions, until the last process of the box is gone.

use super::filter::{Verdict, rule_of};
use super::message::{Kind, Message, Stage};
use super::peer;
use super::script::{Landlock, Lower, Place, Script, Step};
use crate::plan;
use crate::sys::{self, ChildState, Notification, Reply, mount_flag};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use rustix::net::RecvFlags;
use std::ffi::CStr;

/// What the new process starts with.
pub(super) struct Start<'a> {
    pub(super) script: &'a Script,
    pub(super) control: BorrowedFd<'a>,
    /// Trees the keeper cloned, by number.
    pub(super) trees: &'a [OwnedFd],
    pub(super) stdio: [BorrowedFd<'a>; 3],
    pub(super) user_map: UserMap<'a>,
    pub(super) terminal: Terminal,
    /// Whether the keeper wants a handle on the box's /proc.
    pub(super) send_proc: bool,
}

/// Who writes the user map.
pub(super) enum UserMap<'a> {
    /// Init: one user, itself.
    Own { uid: &'a CStr, gid: &'a CStr },
    /// The keeper, who may map others; init then becomes that user.
    Keeper,
}

/// What becomes of the controlling terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Terminal {
    /// None: the program gets a session of its own.
    Detached,
    /// The program's group becomes the terminal's foreground.
    Foreground,
    /// It shares the terminal but is in the background, as its keeper is.
    Background,
}

/// Where a launch failed: the stage, and for the view the step's number.
struct Failure {
    stage: Stage,
    step: usize,
    errno: Errno,
}

fn at(stage: Stage) -> impl Fn(Errno) -> Failure {
    move |errno| Failure {
        stage,
        step: 0,
        errno,
    }
}

/// Runs as the box's pid 1. Never returns.
pub(super) fn run(start: &Start<'_>) -> ! {
    let Err(failure) = enclose(start).and_then(|()| begin(start));
    fail(start.control, &failure)
}

fn fail(control: BorrowedFd<'_>, failure: &Failure) -> ! {
    let place = failure.stage as i32 | (failure.step as i32) << 8;
    let _ = Message::new(Kind::Failed, place, failure.errno.raw_os_error()).send(control);
    sys::exit_now(1)
}

/// Everything up to the point where the view is the root.
fn enclose(start: &Start<'_>) -> Result<(), Failure> {
    for tasks in &start.script.cgroup_tasks {
        // "0" in a v1 `tasks` file moves the writer alone, which needs no system-wide lock: 0.02 ms instead of 11.
        rustix::io::write(tasks, b"0").map_err(at(Stage::ControlGroup))?;
    }
    become_box_user(start)?;
    // From here on its control group looks like the top one.
    sys::hide_cgroup().map_err(at(Stage::ControlGroup))?;
    let _ = rustix::system::sethostname(b"belljar");
    sys::raise_loopback().map_err(at(Stage::Loopback))?;
    let root = build_view(start)?;
    enter(root.as_fd()).map_err(at(Stage::Pivot))?;
    sys::set_mount_flags(root.as_fd(), mount_flag::READ_ONLY, false, None).map_err(at(Stage::Root))
}

fn become_box_user(start: &Start<'_>) -> Result<(), Failure> {
    match start.user_map {
        UserMap::Own { uid, gid } => {
            let put = |file: &CStr, text: &[u8]| -> Result<(), Errno> {
                let fd = rustix::fs::open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                rustix::io::write(&fd, text).map(drop)
            };
            put(c"/proc/self/setgroups", b"deny")
                .and_then(|()| put(c"/proc/self/uid_map", uid.to_bytes()))
                .and_then(|()| put(c"/proc/self/gid_map", gid.to_bytes()))
                .map_err(at(Stage::UserMap))?;
        }
        UserMap::Keeper => {
            match Message::receive(start.control, RecvFlags::empty()) {
                Ok(Some(Message {
                    kind: Kind::Mapped, ..
                })) => {}
                Ok(_) => return Err(at(Stage::UserMap)(Errno::CONNRESET)),
                Err(errno) => return Err(at(Stage::UserMap)(errno)),
            }
            sys::become_user(start.script.uid, start.script.gid).map_err(at(Stage::User))?;
        }
    }
    // After the last change of user, which clears it. A keeper that is already gone is noticed on the socket.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(at(Stage::User))
}

fn build_view(start: &Start<'_>) -> Result<OwnedFd, Failure> {
    use rustix::mount::{MountPropagationFlags, mount_change};
    mount_change(
        c"/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .map_err(at(Stage::Root))?;
    // Before anything covers the host's /proc: the kernel wants to see a whole one.
    let proc_mount = new_proc().map_err(at(Stage::Proc))?;
    let root = new_root().map_err(at(Stage::Root))?;
    let root_fd = root.as_fd();
    for directory in [c"proc", c"dev"] {
        make_directory(root_fd, directory, 0o755).map_err(at(Stage::Root))?;
    }
    let own = Own::new(&start.script.private_size).map_err(at(Stage::Root))?;
    for (number, step) in start.script.steps.iter().enumerate() {
        perform(root_fd, step, start, &own).map_err(|errno| Failure {
            stage: Stage::View,
            step: number,
            errno,
        })?;
    }
    attach_in_ours(proc_mount.as_fd(), root_fd, c"proc").map_err(at(Stage::Proc))?;
    Ok(root)
}

fn new_proc() -> Result<OwnedFd, Errno> {
    let context = fsopen(c"proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Init itself is not to be seen: its memory began as a copy of the keeper's.
    fsconfig_set_string(context.as_fd(), c"hidepid", c"ptraceable")?;
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

fn new_tmpfs(size: &CStr, mode: &CStr) -> Result<OwnedFd, Errno> {
    let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), c"size", size)?;
    fsconfig_set_string(context.as_fd(), c"mode", mode)?;
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// The new root, hung where no source of the view can be.
fn new_root() -> Result<OwnedFd, Errno> {
    let root = new_tmpfs(c"4m", c"755")?;
    let hang = |place: &CStr| {
        move_mount(
            root.as_fd(),
            c"",
            CWD,
            place,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    hang(c"/sys").or_else(|_| hang(c"/boot"))?;
    Ok(root)
}

fn perform(root: BorrowedFd<'_>, step: &Step, start: &Start<'_>, own: &Own) -> Result<(), Errno> {
    let trees = start.trees;
    match step {
        Step::Directory { at, mode } => make_directory(root, at, *mode),
        Step::Touch { at } => touch(root, at),
        Step::Link { at, target } => rustix::fs::symlinkat(target.as_c_str(), root, at.as_c_str()),
        Step::Bind { source, at, flags } => {
            let tree = clone_tree(CWD, source)?;
            sys::set_mount_flags(tree.as_fd(), *flags, true, None)?;
            attach(tree.as_fd(), root, at)
        }
        Step::Attach { tree, at } => attach(trees.get(*tree).ok_or(Errno::BADF)?.as_fd(), root, at),
        Step::Private { name, at, mode } => {
            let private = own.private.as_fd();
            make_directory(private, name, *mode)?;
            // As asked, whatever the umask.
            rustix::fs::chmodat(
                private,
                name.as_c_str(),
                Mode::from_raw_mode(*mode),
                rustix::fs::AtFlags::empty(),
            )?;
            let tree = clone_tree(private, name)?;
            let flags = mount_flag::NO_SUID | mount_flag::NO_DEV;
            sys::set_mount_flags(tree.as_fd(), flags, false, None)?;
            attach(tree.as_fd(), root, at)
        }
        Step::Seal { at } => {
            let place = open_beneath(root, at)?;
            sys::set_mount_flags(place.as_fd(), mount_flag::READ_ONLY, false, None)
        }
        Step::Terminals { at } => {
            let context = fsopen(c"devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_set_flag(context.as_fd(), c"newinstance")?;
            fsconfig_set_string(context.as_fd(), c"ptmxmode", c"0666")?;
            fsconfig_set_string(context.as_fd(), c"mode", c"0600")?;
            fsconfig_create(context.as_fd())?;
            let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
            attach(mount.as_fd(), root, at)
        }
        Step::Await => match Message::receive(start.control, RecvFlags::empty())? {
            Some(Message {
                kind: Kind::Ready, ..
            }) => Ok(()),
            _ => Err(Errno::CONNRESET),
        },
        Step::Cover { at, kind } => {
            // Read-only as the file system it is cloned from.
            let tree = clone_opened(own.void(*kind))?;
            attach(tree.as_fd(), root, at)
        }
        Step::Overlay {
            lower,
            upper,
            work,
            at,
        } => overlay(root, lower, upper, work, at, trees),
    }
}

fn overlay(
    root: BorrowedFd<'_>,
    lower: &Lower,
    upper: &CStr,
    work: &CStr,
    at: &Place,
    trees: &[OwnedFd],
) -> Result<(), Errno> {
    let context = fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(context.as_fd(), c"userxattr")?;
    match lower {
        Lower::Path(layers) => {
            fsconfig_set_string(context.as_fd(), c"lowerdir", layers.as_c_str())?
        }
        Lower::Tree { tree, above } => {
            // A detached tree has no path, and overlays want one: the place the overlay itself will cover.
            attach(trees.get(*tree).ok_or(Errno::BADF)?.as_fd(), root, at)?;
            let place = open_beneath(root, &at.path)?;
            rustix::process::fchdir(&place)?;
            let mut layers = [0u8; 4200];
            let prefix = above.as_ref().map_or(&b""[..], |path| path.to_bytes());
            let colon: &[u8] = if prefix.is_empty() { b"" } else { b":" };
            let mut end = 0;
            for part in [prefix, colon, b".", b"\0"] {
                layers
                    .get_mut(end..end + part.len())
                    .ok_or(Errno::NAMETOOLONG)?
                    .copy_from_slice(part);
                end += part.len();
            }
            let layers = CStr::from_bytes_until_nul(&layers).map_err(|_| Errno::INVAL)?;
            fsconfig_set_string(context.as_fd(), c"lowerdir", layers)?;
        }
    }
    fsconfig_set_string(context.as_fd(), c"upperdir", upper)?;
    fsconfig_set_string(context.as_fd(), c"workdir", work)?;
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    attach(mount.as_fd(), root, at)
}

/// Clones what is at `path`. No symbolic link is followed anywhere: the plan's paths are resolved already, so one that
/// appears now was put there by somebody who wants another tree shown.
fn clone_tree(directory: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    // Right below the root there is nothing on the way.
    if matches!(path.to_bytes(), [b'/', name @ ..] if !name.contains(&b'/')) {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
            | OpenTreeFlags::AT_RECURSIVE;
        return open_tree(directory, path, flags);
    }
    clone_opened(open_beneath(directory, path)?.as_fd())
}

fn clone_opened(place: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(place, c"", flags)
}

fn open_beneath(directory: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(
        directory,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    )
}

fn attach(tree: BorrowedFd<'_>, root: BorrowedFd<'_>, at: &Place) -> Result<(), Errno> {
    if at.ours {
        return attach_in_ours(tree, root, &at.path);
    }
    let place = open_beneath(root, &at.path)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, c"", &place, c"", flags)
}

/// The same where no link can be on the way, in fewer calls.
fn attach_in_ours(tree: BorrowedFd<'_>, root: BorrowedFd<'_>, at: &CStr) -> Result<(), Errno> {
    move_mount(tree, c"", root, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// What private directories and covers are made of: the box's own file system, and in it one that nobody can write,
/// with an empty directory and an empty file. Both hang in the old root and vanish from sight with it; a cover or a
/// private directory is a clone of a part.
struct Own {
    private: OwnedFd,
    directory: OwnedFd,
    file: OwnedFd,
}

impl Own {
    fn new(size: &CStr) -> Result<Self, Errno> {
        let private = new_tmpfs(size, c"755")?;
        attach_in_ours(private.as_fd(), CWD, c"/proc")?;
        let void = new_tmpfs(c"64k", c"755")?;
        make_directory(void.as_fd(), c"directory", 0o555)?;
        touch(void.as_fd(), c"file")?;
        sys::set_mount_flags(void.as_fd(), mount_flag::READ_ONLY, false, None)?;
        make_directory(private.as_fd(), c".void", 0o755)?;
        attach_in_ours(void.as_fd(), private.as_fd(), c".void")?;
        Ok(Self {
            directory: open_beneath(void.as_fd(), c"directory")?,
            file: open_beneath(void.as_fd(), c"file")?,
            private,
        })
    }

    fn void(&self, kind: plan::Kind) -> BorrowedFd<'_> {
        match kind {
            plan::Kind::Directory => self.directory.as_fd(),
            plan::Kind::File => self.file.as_fd(),
        }
    }
}

fn make_directory(root: BorrowedFd<'_>, at: &CStr, mode: u32) -> Result<(), Errno> {
    match rustix::fs::mkdirat(root, at, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn touch(root: BorrowedFd<'_>, at: &CStr) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(root, at, flags, Mode::from_raw_mode(0o444)).map(drop)
}

fn enter(root: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(c".", c".")?;
    rustix::mount::unmount(c".", rustix::mount::UnmountFlags::DETACH)?;
    rustix::process::chdir(c"/")
}

/// Forks the agent's process and stays as pid 1.
fn begin(start: &Start<'_>) -> Result<std::convert::Infallible, Failure> {
    let stage = at(Stage::Processes);
    let children = sys::watch_children().map_err(&stage)?;
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(&stage)?;
    if start.send_proc {
        let directory = rustix::fs::open(
            c"/proc",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        directory
            .and_then(|fd| send_descriptor(start.control, fd.as_fd()))
            .map_err(&stage)?;
        // Without it, children that nobody waits for would take their CPU time with them. Only where it matters: the
        // first counter on a host makes the kernel wait.
        if start.script.counts_cpu
            && let Ok(counter) = sys::open_cpu_counter()
        {
            send_descriptor(start.control, counter.as_fd()).map_err(&stage)?;
        }
    }
    sys::empty_bounding_set().map_err(at(Stage::Capabilities))?;
    let main = sys::fork().map_err(&stage)?;
    if main == 0 {
        drop(ours);
        let Err(failure) = become_agent(start, theirs.as_fd());
        fail(start.control, &failure)
    }
    drop(theirs);
    let listener = receive_descriptor(ours.as_fd());
    drop(ours);
    stay(start, main, &children, listener)
}

/// From a copy of init to the agent's program.
fn become_agent(
    start: &Start<'_>,
    init: BorrowedFd<'_>,
) -> Result<std::convert::Infallible, Failure> {
    let script = start.script;
    take_terminal(start);
    sys::reset_signals();
    for (number, fd) in start.stdio.iter().enumerate() {
        let moved = match number {
            0 => rustix::stdio::dup2_stdin(fd),
            1 => rustix::stdio::dup2_stdout(fd),
            _ => rustix::stdio::dup2_stderr(fd),
        };
        moved.map_err(at(Stage::Processes))?;
    }
    sys::close_on_exec_from(3).map_err(at(Stage::Processes))?;
    rustix::process::chdir(script.workdir.as_c_str()).map_err(at(Stage::Workdir))?;
    rustix::thread::set_no_new_privs(true).map_err(at(Stage::Capabilities))?;
    if let Some(landlock) = &script.landlock {
        restrict_files(landlock).map_err(at(Stage::Landlock))?;
    }
    sys::drop_capabilities(0).map_err(at(Stage::Capabilities))?;
    let listener = sys::install_filter(&script.filter).map_err(at(Stage::Seccomp))?;
    send_descriptor(init, listener.as_fd()).map_err(at(Stage::Seccomp))?;
    drop(listener);
    // Last, because a low limit on open files would be in our own way.
    for (resource, value) in &script.limits {
        sys::set_limit(*resource, *value).map_err(at(Stage::Limits))?;
    }
    Message::new(Kind::Applied, 0, 0)
        .send(start.control)
        .map_err(at(Stage::Execute))?;
    let errno = sys::execute(&script.program, &script.argv, &script.env);
    Err(at(Stage::Execute)(errno))
}

fn take_terminal(start: &Start<'_>) {
    match start.terminal {
        Terminal::Detached => {
            let _ = rustix::process::setsid();
        }
        // A group of its own, so that job control works inside. All signals are still blocked, SIGTTOU among them.
        Terminal::Foreground | Terminal::Background => {
            let _ = rustix::process::setpgid(None, None);
            if start.terminal == Terminal::Foreground
                && let Some(terminal) = start.stdio.iter().find(|fd| rustix::termios::isatty(fd))
            {
                sys::set_foreground(*terminal, rustix::process::getpid().as_raw_nonzero().get());
            }
        }
    }
}

fn restrict_files(landlock: &Landlock) -> Result<(), Errno> {
    let rules = sys::LandlockRules::new(landlock.abi, landlock.handled, landlock.scoped)?;
    for (path, rights) in &landlock.grants {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::open(path.as_c_str(), flags, Mode::empty())?;
        // Rights that only directories have are refused on files.
        let is_directory = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode)
            == rustix::fs::FileType::Directory;
        const FILE_RIGHTS: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15;
        let rights = if is_directory {
            *rights
        } else {
            *rights & FILE_RIGHTS
        };
        rules.allow(place.as_fd(), rights)?;
    }
    rules.enforce()
}

fn send_descriptor(to: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        to,
        &[std::io::IoSlice::new(b"fd")],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )
    .map(drop)
}

fn receive_descriptor(from: BorrowedFd<'_>) -> Option<OwnedFd> {
    receive_with_descriptor(from).1
}

/// Receives a message, a descriptor, or nothing when the other side is gone.
pub(super) fn receive_with_descriptor(from: BorrowedFd<'_>) -> (Option<Message>, Option<OwnedFd>) {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0u8; Message::SIZE];
    let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
    let received = recvmsg(from, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let length = received.map_or(0, |received| received.bytes);
    (bytes.get(..length).and_then(Message::decode), fd)
}

/// What init remembers while it lives.
struct Stay<'a> {
    start: &'a Start<'a>,
    main: i32,
    listener: Option<OwnedFd>,
    /// How often each rule was hit.
    hits: [u32; 128],
    private_devices: peer::PrivateDevices,
}

/// Pid 1's life.
fn stay(start: &Start<'_>, main: i32, children: &OwnedFd, listener: Option<OwnedFd>) -> ! {
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // To look into the processes whose calls it answers; within the box's user namespace only.
    let _ = sys::drop_capabilities(sys::CAP_SYS_PTRACE);
    release_descriptors(start, children, listener.as_ref());
    if let Some(listener) = &listener {
        Notification::prefer_sync(listener.as_fd());
    }
    let private_devices = peer::PrivateDevices::of(&start.script.private_places);
    let mut stay = Stay {
        start,
        main,
        listener,
        hits: [0; 128],
        private_devices,
    };
    loop {
        let mut sources = [
            PollFd::new(children, PollFlags::IN),
            PollFd::from_borrowed_fd(start.control, PollFlags::IN),
            PollFd::from_borrowed_fd(
                stay.listener
                    .as_ref()
                    .map_or(start.control, |fd| fd.as_fd()),
                PollFlags::IN,
            ),
        ];
        let _ = poll(&mut sources, None);
        let [child, control, asked] = sources.each_ref().map(PollFd::revents);
        if !control.is_empty() {
            obey(&stay);
        }
        if stay.listener.is_some() && asked.contains(PollFlags::IN) {
            stay.answer();
        } else if asked.intersects(PollFlags::HUP | PollFlags::ERR) {
            // The last filtered process is gone; so will be its listener.
            stay.listener = None;
        }
        if !child.is_empty() {
            let _ = sys::next_signal(children.as_fd());
            stay.reap();
        }
    }
}

/// Keeps no pipe of the agent's open, and nothing else it has no use for.
fn release_descriptors(start: &Start<'_>, children: &OwnedFd, listener: Option<&OwnedFd>) {
    let mut keep = [
        start.control.as_raw_fd() as u32,
        children.as_raw_fd() as u32,
        listener.map_or(u32::MAX, |fd| fd.as_raw_fd() as u32),
    ];
    keep.sort_unstable();
    let mut from = 0;
    for fd in keep {
        if fd > from {
            sys::close_range(from, fd.saturating_sub(1));
        }
        from = fd.saturating_add(1);
    }
    if from != 0 {
        sys::close_range(from, u32::MAX);
    }
}

/// Does what the keeper says. A keeper that is gone says: end.
fn obey(stay: &Stay<'_>) {
    match Message::receive(stay.start.control, RecvFlags::DONTWAIT) {
        Ok(Some(Message {
            kind: Kind::Signal,
            a,
            ..
        })) => {
            let signal = rustix::process::Signal::from_named_raw(a);
            let pid = rustix::process::Pid::from_raw(stay.main);
            if let (Some(signal), Some(pid)) = (signal, pid) {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
        Ok(None) => sys::exit_now(1),
        Ok(Some(_)) | Err(_) => {}
    }
}

impl Stay<'_> {
    fn reap(&mut self) {
        loop {
            match sys::next_child_state() {
                ChildState::Ended { pid, status } if pid == self.main => {
                    let _ = Message::new(Kind::MainEnded, status, 0).send(self.start.control);
                }
                ChildState::Stopped { pid, signal } if pid == self.main => {
                    let _ = Message::new(Kind::MainStopped, signal, 0).send(self.start.control);
                }
                ChildState::Ended { .. } | ChildState::Stopped { .. } => {}
                ChildState::NoneWaiting => return,
                ChildState::NoChildren => {
                    self.report_totals();
                    let _ = Message::new(Kind::Emptied, 0, 0).send(self.start.control);
                    sys::exit_now(0)
                }
            }
        }
    }

    fn answer(&mut self) {
        let Some(listener) = self.listener.as_ref().map(|fd| fd.as_fd()) else {
            return;
        };
        let Ok(call) = Notification::receive(listener) else {
            return;
        };
        let rules = &self.start.script.rules;
        let Some(number) = rule_of(rules, call.number, &call.args) else {
            call.answer(listener, Reply::Fail(Errno::PERM));
            return;
        };
        match rules.get(number).map(|rule| rule.verdict) {
            Some(Verdict::Mediate) => {
                let control = self.start.control;
                let tell = || {
                    let _ = Message::new(Kind::Violation, number as i32, 1).send(control);
                };
                if peer::connect(&call, listener, &self.private_devices, tell)
                    == peer::Outcome::HostSocket
                {
                    self.count(number);
                }
            }
            Some(Verdict::Report(errno)) | Some(Verdict::Fail(errno)) => {
                call.answer(listener, Reply::Fail(errno));
                self.count(number);
            }
            None => call.answer(listener, Reply::Fail(Errno::PERM)),
        }
    }

    /// Tells the keeper at 1, 2, 4, 8… hits: an agent that hammers a wall must not drown its keeper.
    fn count(&mut self, rule: usize) {
        let Some(hits) = self.hits.get_mut(rule) else {
            return;
        };
        *hits = hits.saturating_add(1);
        if hits.is_power_of_two() {
            let _ =
                Message::new(Kind::Violation, rule as i32, *hits as i32).send(self.start.control);
        }
    }

    fn report_totals(&self) {
        for (rule, hits) in self.hits.iter().enumerate().filter(|(_, hits)| **hits > 2) {
            let _ =
                Message::new(Kind::Violation, rule as i32, *hits as i32).send(self.start.control);
        }
    }
}
