//! Holding a thread by tracing it: whatever signals it gets, it runs again only when its tracer says so, or is gone.
//! And following a process with all that it makes, to answer for the calls that a filter asks its tracer about.

use super::check;
use rustix::io::Errno;

// From <linux/ptrace.h>.
const SEIZE: libc::c_long = 0x4206;
const INTERRUPT: libc::c_long = 0x4207;
const DETACH: libc::c_long = 17;
const CONTINUE: libc::c_long = 7;
const LISTEN: libc::c_long = 0x4208;
const GET_REGISTERS: libc::c_long = 0x4204;
const SET_REGISTERS: libc::c_long = 0x4205;
const GENERAL_REGISTERS: usize = 1;
/// Processes and threads that a followed one makes are followed; a filter may ask; none outlives its tracer.
const FOLLOW_ALL: libc::c_int = libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACESECCOMP
    | libc::PTRACE_O_EXITKILL;

/// Takes hold of a thread of this pid namespace. It stops as soon as it leaves the kernel.
pub(crate) fn hold_thread(thread: u32) -> Result<(), Errno> {
    trace(SEIZE, thread)?;
    trace(INTERRUPT, thread)
}

/// Lets go of a thread that was held and has stopped.
pub(crate) fn release_thread(thread: u32) -> Result<(), Errno> {
    trace(DETACH, thread)
}

/// Follows a process of this pid namespace and all that it will make. Each stops when it is made, at every signal, and where
/// its filter asks its tracer.
pub(crate) fn follow(process: i32) -> Result<(), Errno> {
    request(SEIZE, process, 0, FOLLOW_ALL as usize)
}

/// Lets a followed thread that stopped go on, with this signal or none.
pub(crate) fn go_on(thread: i32, signal: i32) -> Result<(), Errno> {
    request(CONTINUE, thread, 0, signal as usize)
}

/// Leaves a followed thread stopped, as whoever stopped it meant it, until it is continued.
pub(crate) fn stay_stopped(thread: i32) -> Result<(), Errno> {
    request(LISTEN, thread, 0, 0)
}

/// A call that a filter asked about, and whose thread waits for the answer.
pub(crate) struct HeldCall {
    thread: i32,
    registers: libc::user_regs_struct,
}

impl HeldCall {
    /// The call at which a followed thread stopped.
    pub(crate) fn of(thread: i32) -> Result<Self, Errno> {
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        exchange(GET_REGISTERS, thread, &mut registers)?;
        Ok(Self { thread, registers })
    }

    /// Its answer becomes this error; it is not made. The thread still waits to go on.
    pub(crate) fn refuse(mut self, errno: Errno) -> Result<(), Errno> {
        let answer = i64::from(-errno.raw_os_error()) as u64;
        self.set_answer(answer);
        exchange(SET_REGISTERS, self.thread, &mut self.registers)
    }
}

#[cfg(target_arch = "x86_64")]
impl HeldCall {
    pub(crate) fn number(&self) -> i32 {
        self.registers.orig_rax as i32
    }

    pub(crate) fn arguments(&self) -> [u64; 6] {
        let r = &self.registers;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
    }

    fn set_answer(&mut self, answer: u64) {
        // No call has this number: none is made.
        self.registers.orig_rax = u64::MAX;
        self.registers.rax = answer;
    }
}

#[cfg(target_arch = "aarch64")]
impl HeldCall {
    pub(crate) fn number(&self) -> i32 {
        self.registers.regs[8] as i32
    }

    pub(crate) fn arguments(&self) -> [u64; 6] {
        let [a, b, c, d, e, f, ..] = self.registers.regs;
        [a, b, c, d, e, f]
    }

    fn set_answer(&mut self, answer: u64) {
        // No call has this number: none is made.
        self.registers.regs[8] = u64::MAX;
        self.registers.regs[0] = answer;
    }
}

/// Reads or writes the registers of a thread that stopped.
fn exchange(
    what: libc::c_long,
    thread: i32,
    registers: &mut libc::user_regs_struct,
) -> Result<(), Errno> {
    let mut place = libc::iovec {
        iov_base: std::ptr::from_mut(registers).cast(),
        iov_len: size_of::<libc::user_regs_struct>(),
    };
    let at = (&raw mut place) as usize;
    request(what, thread, GENERAL_REGISTERS, at)
}

fn trace(what: libc::c_long, thread: u32) -> Result<(), Errno> {
    request(what, thread as i32, 0, 0)
}

fn request(what: libc::c_long, thread: i32, address: usize, data: usize) -> Result<(), Errno> {
    // SAFETY: of the requests made here only those for registers touch memory of ours: `data` is then the address of an
    // iovec that describes a whole `user_regs_struct`, and both outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            what,
            libc::c_long::from(thread),
            address,
            data,
        )
    })
    .map(drop)
}
