//! Memory that a process keeps in common with those it makes: what is put in it later, they see as well.

use super::check_pointer;
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
/// A process made by [`super::clone_into`] has it at the same address, so references into it hold in both.
pub(crate) struct SharedMemory<P: Published> {
    base: NonNull<u8>,
    size: usize,
    used: Cell<usize>,
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
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours. The kernel fills it with
        // zeroes, which is a valid `Head` that is not published.
        let base = check_pointer(unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        })?;
        Ok(Self {
            base,
            size,
            used: Cell::new(head),
            value: PhantomData,
        })
    }

    /// Puts a copy of some values in.
    pub(crate) fn put_all<T: Copy>(&self, values: &[T]) -> Result<&[T], Errno> {
        let start = self
            .used
            .get()
            .checked_next_multiple_of(align_of::<T>())
            .ok_or(Errno::NOMEM)?;
        let end = start
            .checked_add(size_of_val(values))
            .filter(|end| *end <= self.size)
            .ok_or(Errno::NOMEM)?;
        self.used.set(end);
        // SAFETY: `start..end` is within the mapping, aligned for `T` (the mapping itself is aligned to a page), and was
        // given to nobody before. What is returned lives no longer than `self`, and nobody writes there again.
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
    fn what_does_not_fit_is_refused() {
        let memory = SharedMemory::<Words>::new(4096).unwrap();
        assert_eq!(memory.put_all(&[0u8; 4096]), Err(Errno::NOMEM));
        assert!(memory.put_all(&[0u8; 1024]).is_ok());
        assert!(memory.put_all(&[0u64; 512]).is_err());
        assert!(SharedMemory::<Words>::new(1).is_err());
    }
}
