//! Processes that are there for their namespaces only.

use super::{last_errno, reap};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;

/// A process in new namespaces that does nothing but be there, for somebody to look at them. It shares this process's
/// memory: a copy would cost more than all that it is for. It ends when this is dropped, and with the thread that made it.
#[derive(Debug)]
pub(crate) struct Placeholder {
    pid: i32,
    /// Where it is told to end. To close it would tell nothing: boxes that other threads start at this moment have copies.
    gate: OwnedFd,
    // Both are its own until it is reaped.
    _seat: Box<Seat>,
    _stack: Box<[u64; 1024]>,
}

/// What a placeholder is given.
#[derive(Debug)]
struct Seat {
    parent: libc::pid_t,
    gate: OwnedFd,
}

impl Placeholder {
    pub(crate) fn new(namespaces: libc::c_int) -> Result<Self, Errno> {
        let (theirs, gate) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let seat = Box::new(Seat {
            parent: rustix::process::getpid().as_raw_nonzero().get(),
            gate: theirs,
        });
        let mut stack = Box::new([0u64; 1024]);
        let top = stack.as_mut_ptr_range().end;
        let given: *const Seat = &raw const *seat;
        // SAFETY: `sit` runs on a stack of its own, and that and what it is given live until it is reaped in `drop`. It
        // touches no other memory, allocates nothing and takes no lock. Descriptors and handlers are copies.
        let pid = unsafe {
            libc::clone(
                sit,
                top.cast(),
                libc::CLONE_VM | namespaces,
                given.cast_mut().cast(),
            )
        };
        if pid == -1 {
            return Err(last_errno());
        }
        Ok(Self {
            pid,
            gate,
            _seat: seat,
            _stack: stack,
        })
    }

    /// In our pid namespace.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Lets it end. Nobody needs to wait for that before the drop.
    pub(crate) fn dismiss(&self) {
        let _ = rustix::io::write(&self.gate, b"x");
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        self.dismiss();
        let _ = reap(self.pid);
    }
}

/// What a placeholder does: wait, by system calls alone, whose errors it does not look at. A parent that died before the
/// first of them sends no signal any more.
extern "C" fn sit(seat: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `Placeholder::new` passes a seat that outlives this process; the buffer is one byte long; the rest has no
    // pointers.
    unsafe {
        let seat = &*seat.cast::<Seat>();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() == seat.parent {
            let mut nothing = [0u8; 1];
            libc::read(seat.gate.as_raw_fd(), nothing.as_mut_ptr().cast(), 1);
        }
    }
    0
}
