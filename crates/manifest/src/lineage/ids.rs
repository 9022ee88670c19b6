//! Names of workers, of issues and of byte strings.

use belljar_policy::Contract;
use sha2::{Digest as _, Sha256};

use crate::text_form::hex_form;

/// The name of a worker: 128 bits, as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId([u8; 16]);

hex_form!(WorkerId, 16, InvalidWorkerId, "a worker id");

impl WorkerId {
    /// The name with this number.
    #[must_use]
    pub const fn from_u128(number: u128) -> Self {
        Self(number.to_be_bytes())
    }

    /// The name as a number.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        u128::from_be_bytes(self.0)
    }
}

/// The name of one issue of a manifest, which may be used once: 128 bits, as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Jti([u8; 16]);

hex_form!(Jti, 16, InvalidJti, "an issue id");

impl Jti {
    /// The name with this number.
    #[must_use]
    pub const fn from_u128(number: u128) -> Self {
        Self(number.to_be_bytes())
    }

    /// The name as a number.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        u128::from_be_bytes(self.0)
    }
}

/// The SHA-256 of something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

hex_form!(Digest, 32, InvalidDigest, "a digest");

impl Digest {
    /// The digest of a byte string.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// A digest made elsewhere, of a file for instance.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest as bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The digest of a program: what it is and how it is called. Lengths are hashed too, so that no two calls look alike.
    #[must_use]
    pub fn of_program<'a>(
        binary: &Self,
        arguments: impl IntoIterator<Item = &'a [u8], IntoIter: ExactSizeIterator>,
    ) -> Self {
        let arguments = arguments.into_iter();
        let mut hash = Sha256::new();
        hash.update(b"belljar program v1\0");
        hash.update(binary.0);
        hash.update(length(arguments.len()));
        for argument in arguments {
            hash.update(length(argument.len()));
            hash.update(argument);
        }
        Self(hash.finalize().into())
    }

    /// The digest of a contract: of its document, which has one spelling.
    #[must_use]
    pub fn of_contract(contract: &Contract) -> Self {
        // Text and numbers under fixed names: there is nothing in it that JSON can't say.
        Self::of(&serde_json::to_vec(contract).unwrap_or_default())
    }
}

fn length(length: usize) -> [u8; 8] {
    u64::try_from(length).unwrap_or(u64::MAX).to_be_bytes()
}
