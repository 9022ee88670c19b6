//! Bytes that are hashed while they are read.

use crate::name::Digest;
use sha2::Digest as _;
use std::cell::RefCell;
use std::io::{self, Read};
use std::rc::Rc;

/// A reader that several hold: a decoder takes one, and whoever made it asks the other what went through.
pub(crate) struct Hashed<R>(Rc<RefCell<Inner<R>>>);

struct Inner<R> {
    reader: R,
    hasher: sha2::Sha256,
}

impl<R> Hashed<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            reader,
            hasher: sha2::Sha256::new(),
        })))
    }

    /// Of all that was read so far.
    pub(crate) fn digest(&self) -> Digest {
        Digest::from_hasher(self.0.borrow().hasher.clone())
    }
}

impl<R> Clone for Hashed<R> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let inner = &mut *self.0.borrow_mut();
        let read = inner.reader.read(buffer)?;
        inner.hasher.update(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}
