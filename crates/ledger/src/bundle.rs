//! Entry bundles: entries, each after its length as a big-endian u16.

use crate::tile::WIDTH;

/// The longest entry that the format can hold.
pub const MAX_ENTRY: usize = u16::MAX as usize;
/// The longest bundle there can be.
pub(crate) const MAX_BUNDLE: u64 = WIDTH * (MAX_ENTRY as u64 + 2);

/// Entries of a bundle in order; ends at the first one that is not there whole.
pub(crate) struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    pub(crate) fn of(bundle: &'a [u8]) -> Self {
        Entries { rest: bundle }
    }

    /// Bytes after the last entry that was returned.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, after) = self.rest.split_first_chunk::<2>()?;
        let (entry, rest) = after.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        self.rest = rest;
        Some(entry)
    }
}
