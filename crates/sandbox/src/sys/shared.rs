//! Memory that a process has in common with one that it makes: what is put in it later, that process sees as well.

use super::{check, check_pointer};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is published in shared memory: a value that may borrow from that memory.
pub(crate) trait Published {
    /// The value, in memory that lives for `'m`.
    type At<'m>: Copy;
}

/// Shared memory for one [`Published`] value and all it refers to. Nothing in it ever moves or changes once it is put.
///
/// A process made by [`super::clone_into`] takes part in it by [`SharedMemory::join`]: for reading, and at the same
/// address, so that references into it hold in both. Processes that other threads make at the same moment do not.
pub(crate) struct SharedMemory<P: Published> {
    base: NonNull<u8>,
    size: usize,
    file: OwnedFd,
    used: Cell<usize>,
    /// How long the file is by now.
    backed: Cell<usize>,
    value: PhantomData<P>,
}

// SAFETY: the memory is owned by this value alone within a process, and is written through `&self` by its one owner
// only: it is not `Sync`.
unsafe impl<P: Published> Send for SharedMemory<P> {}

/// What the memory begins with. `value` is written before `is_published`, and read after it.
#[repr(C)]
struct Head<T> {
    is_published: AtomicBool,
    value: std::mem::MaybeUninit<T>,
}

impl<P: Published> std::fmt::Debug for SharedMemory<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMemory")
            .field("size", &self.size)
            .field("used", &self.used.get())
            .finish_non_exhaustive()
    }
}

impl<P: Published> SharedMemory<P> {
    /// Room for so many bytes, none of which is taken from the host before it is used.
    pub(crate) fn new(size: usize) -> Result<Self, Errno> {
        let head = size_of::<Head<P::At<'static>>>();
        if size < head {
            return Err(Errno::NOMEM);
        }
        let file = memory_file()?;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let base = check_pointer(unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        })?;
        let memory = Self {
            base,
            size,
            file,
            used: Cell::new(0),
            backed: Cell::new(0),
            value: PhantomData,
        };
        let start = memory.base.as_ptr().cast();
        // SAFETY: the range is the mapping just made. From here on a copy of this process does not have it.
        let advised = unsafe { libc::madvise(start, size, libc::MADV_DONTFORK) };
        check(advised as _)?;
        // The kernel fills it with zeroes, which is a valid `Head` that is not published.
        memory.take(head, align_of::<Head<P::At<'static>>>())?;
        Ok(memory)
    }

    /// In a new process: has the memory, for reading.
    pub(crate) fn join(&self) -> Result<(), Errno> {
        // SAFETY: the mapping replaces none: where the range is taken, as it is in the process that made it, the call
        // fails.
        let place = check_pointer(unsafe {
            libc::mmap(
                self.base.as_ptr().cast(),
                self.size,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
                self.file.as_raw_fd(),
                0,
            )
        })?;
        match place == self.base {
            true => Ok(()),
            false => Err(Errno::EXIST),
        }
    }

    /// Takes some bytes that nobody has yet; where they begin.
    fn take(&self, bytes: usize, align: usize) -> Result<usize, Errno> {
        /// What most scripts need.
        const FIRST: usize = 256 << 10;
        let start = self.used.get().checked_next_multiple_of(align);
        let start = start.ok_or(Errno::NOMEM)?;
        let end = start.checked_add(bytes).filter(|end| *end <= self.size);
        let end = end.ok_or(Errno::NOMEM)?;
        if end > self.backed.get() {
            let length = end.max(FIRST).max(self.backed.get() * 2).min(self.size);
            rustix::fs::ftruncate(&self.file, length as u64)?;
            self.backed.set(length);
        }
        self.used.set(end);
        Ok(start)
    }

    /// Puts a copy of some values in.
    pub(crate) fn put_all<T: Copy>(&self, values: &[T]) -> Result<&[T], Errno> {
        let start = self.take(size_of_val(values), align_of::<T>())?;
        // SAFETY: what was taken is within the mapping and backed by the file, aligned for `T` (the mapping itself is
        // aligned to a page), and was given to nobody before. What is returned lives no longer than `self`, and nobody
        // writes there again.
        unsafe {
            let place = self.base.as_ptr().add(start).cast::<T>();
            std::ptr::copy_nonoverlapping(values.as_ptr(), place, values.len());
            Ok(std::slice::from_raw_parts(place, values.len()))
        }
    }

    /// Puts a copy of a C string in.
    pub(crate) fn put_c_str(&self, text: &CStr) -> Result<&CStr, Errno> {
        let bytes = self.put_all(text.to_bytes_with_nul())?;
        CStr::from_bytes_with_nul(bytes).map_err(|_| Errno::INVAL)
    }

    /// Lets the other process have the value, once.
    pub(crate) fn publish<'m>(&'m self, value: P::At<'m>) -> Result<(), Errno> {
        let head = self.head();
        // SAFETY: `head` points to a valid flag at the mapping's beginning.
        let flag = unsafe { &(*head).is_published };
        if flag.load(Ordering::Acquire) {
            return Err(Errno::EXIST);
        }
        // SAFETY: nobody reads the value before the flag is set, and only its one owner comes here.
        unsafe { (&raw mut (*head).value).write(std::mem::MaybeUninit::new(value)) };
        flag.store(true, Ordering::Release);
        Ok(())
    }

    /// The value, if there is one already.
    pub(crate) fn published<'m>(&'m self) -> Option<&'m P::At<'m>> {
        let head = self.head();
        // SAFETY: `head` points to a valid flag; where it is set the value was written whole, and borrows from this same
        // memory, which is at the same address in the process that wrote it and lives for `'m` in this one.
        unsafe {
            (*head)
                .is_published
                .load(Ordering::Acquire)
                .then(|| (*head).value.assume_init_ref())
        }
    }

    fn head<'m>(&'m self) -> *mut Head<P::At<'m>> {
        self.base.as_ptr().cast()
    }
}

/// A file without a name. No program can be made of it, which some hosts insist on.
fn memory_file() -> Result<OwnedFd, Errno> {
    let open = |flags| rustix::fs::memfd_create(c"belljar", flags);
    match open(MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => open(MemfdFlags::CLOEXEC),
        other => other,
    }
}

impl<P: Published> Drop for SharedMemory<P> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and all that was borrowed from it borrowed `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Words;

    impl Published for Words {
        type At<'m> = (&'m CStr, &'m [u32]);
    }

    #[test]
    fn what_is_published_is_seen_with_all_it_refers_to() {
        let memory = SharedMemory::<Words>::new(4096).unwrap();
        assert!(memory.published().is_none());
        let text = memory.put_c_str(c"abc").unwrap();
        let numbers = memory.put_all(&[1, 2, 3]).unwrap();
        memory.publish((text, numbers)).unwrap();
        assert_eq!(memory.published(), Some(&(c"abc", &[1, 2, 3][..])));
        assert_eq!(memory.publish((text, numbers)), Err(Errno::EXIST));
    }

    #[test]
    fn it_grows_as_far_as_it_may_and_is_joined_by_copies_alone() {
        let memory = SharedMemory::<Words>::new(1 << 20).unwrap();
        let large = memory.put_all(&[7u8; 600 << 10]).unwrap();
        assert_eq!(large.last(), Some(&7));
        assert_eq!(memory.join(), Err(Errno::EXIST));
        let (far, near) = (memory.put_c_str(c"far").unwrap(), [1u32]);
        memory
            .publish((far, memory.put_all(&near).unwrap()))
            .unwrap();
        let crate::sys::Fork::Parent { pid, .. } = crate::sys::clone_into(0, None).unwrap() else {
            let seen = memory.join().is_ok() && memory.published() == Some(&(c"far", &near[..]));
            crate::sys::exit_now(if seen { 0 } else { 1 })
        };
        assert_eq!(crate::sys::reap(pid).unwrap().status, 0);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let memory = SharedMemory::<Words>::new(4096).unwrap();
        assert_eq!(memory.put_all(&[0u8; 4096]), Err(Errno::NOMEM));
        assert!(memory.put_all(&[0u8; 1024]).is_ok());
        assert!(memory.put_all(&[0u64; 512]).is_err());
        assert!(SharedMemory::<Words>::new(1).is_err());
    }
}
