//! Keys and signatures made to fool a lenient verifier: weak points, second spellings, parts of small order.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::{Add, Mul};

use belljar_manifest::keys::{
    InvalidPublicKey, KeyId, Keyset, KeysetError, PublicKey, SecretKey, VerifyFault,
};
use data_encoding::HEXLOWER;
use ed25519_dalek::{Signature, SigningKey, Verifier, VerifyingKey};
use sha2::{Digest, Sha256, Sha512};

fn secret(number: u8) -> SecretKey {
    SecretKey::ed25519(&[number; 32])
}

fn bytes(hex: &str) -> [u8; 32] {
    HEXLOWER.decode(hex.as_bytes()).unwrap().try_into().unwrap()
}

fn id_of(public: &[u8; 32]) -> KeyId {
    let hash = Sha256::digest([b"belljar key id v1 ed25519\0".as_slice(), public].concat());
    HEXLOWER.encode(&hash[..8]).parse().unwrap()
}

/// Every spelling of the eight points of small order, canonical ones first.
const SMALL_ORDER: [&str; 14] = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
];

/// The order of the group, little end first.
const ORDER: &str = "edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010";

#[test]
fn weak_public_keys_are_refused() {
    for (at, hex) in SMALL_ORDER.iter().enumerate() {
        let expect = if at < 8 {
            InvalidPublicKey::SmallOrder
        } else {
            InvalidPublicKey::NotCanonical
        };
        assert_eq!(PublicKey::from_hex(hex), Err(expect), "{hex}");
    }
    // y and y + p are the same coordinate, for the few that leave room below 2^255.
    let mut tried = 0;
    for low in 0xed..=0xff_u8 {
        let mut bytes = [0xff; 32];
        (bytes[0], bytes[31]) = (low, 0x7f);
        if VerifyingKey::from_bytes(&bytes).is_ok() {
            tried += 1;
            let refused = PublicKey::from_bytes(&bytes);
            assert_eq!(refused, Err(InvalidPublicKey::NotCanonical), "{low}");
        }
    }
    assert!(tried > 2, "there are such points beside the weak ones");
    let off_curve = "0200000000000000000000000000000000000000000000000000000000000000";
    assert_eq!(
        PublicKey::from_hex(off_curve),
        Err(InvalidPublicKey::NoPoint)
    );
    for text in ["", "00", &"0g".repeat(32), &"AB".repeat(32)] {
        assert_eq!(PublicKey::from_hex(text), Err(InvalidPublicKey::Text));
    }
}

/// A public key with a part of small order.
fn mixed_key(secret: &SigningKey) -> [u8; 32] {
    let torsion = VerifyingKey::from_bytes(&bytes(SMALL_ORDER[6])).unwrap();
    let mixed = secret.verifying_key().to_edwards() + torsion.to_edwards();
    mixed.compress().to_bytes()
}

#[test]
fn public_keys_of_mixed_order_are_refused() {
    let mixed = mixed_key(&SigningKey::from_bytes(&[3; 32]));
    assert_eq!(
        PublicKey::from_bytes(&mixed),
        Err(InvalidPublicKey::MixedOrder)
    );
}

/// The document of a set with one key, whatever the key.
fn document(public: &[u8; 32]) -> Vec<u8> {
    let id = id_of(public);
    let hex = HEXLOWER.encode(public);
    format!(
        r#"{{"version":1,"signing":"{id}","keys":[{{"id":"{id}","algorithm":"ed25519","public":"{hex}","state":"active","created_at":0}}]}}"#
    )
    .into_bytes()
}

#[test]
fn a_weak_key_in_a_document_verifies_nothing_and_stops_every_addition() {
    for hex in SMALL_ORDER {
        let public = bytes(hex);
        let mut set = Keyset::parse(&document(&public)).expect("points are not looked at yet");
        let id = id_of(&public);
        // R the neutral element and S zero: for a weak key that is valid for every eighth message at least.
        let mut forged = [0; 64];
        forged[0] = 1;
        for number in 0..16_u8 {
            let fault = set.verify(id, &[number], &forged).unwrap_err();
            assert!(matches!(fault, VerifyFault::Weak(..)), "{fault}");
        }
        assert!(matches!(set.check(), Err(KeysetError::Invalid { .. })));
        let added = set.add(&secret(1).identity(), 0, None);
        assert!(matches!(added, Err(KeysetError::Invalid { .. })));
        // Taking trust away is always possible.
        set.compromise(id).unwrap();
        set.add(&secret(1).identity(), 0, None).unwrap();
    }
}

/// What a lenient verifier says: it shows that a forgery below is one.
fn lenient(public: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    let key = VerifyingKey::from_bytes(public).unwrap();
    key.verify(message, &Signature::from_bytes(signature))
        .is_ok()
}

fn joined(r: &[u8; 32], s: &[u8; 32]) -> [u8; 64] {
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(r);
    signature[32..].copy_from_slice(s);
    signature
}

/// The challenge of a signature, as a scalar of the same kind as `_like`, a type that can't be named here.
fn challenge<S>(_like: S, r: &[u8; 32], public: &[u8; 32], message: &[u8]) -> S
where
    S: From<u64> + Add<Output = S> + Mul<Output = S>,
{
    let hash = Sha512::digest([r.as_slice(), public, message].concat());
    hash.iter().rev().fold(S::from(0), |sum, byte| {
        sum * S::from(256) + S::from(u64::from(*byte))
    })
}

#[test]
fn a_small_commitment_is_refused() {
    let key = SigningKey::from_bytes(&[4; 32]);
    let public = key.verifying_key().to_bytes();
    let (neutral, a) = (bytes(SMALL_ORDER[0]), key.to_scalar());
    let s = challenge(a, &neutral, &public, b"m") * a;
    let forged = joined(&neutral, s.as_bytes());
    assert!(lenient(&public, b"m", &forged), "the forgery is a good one");
    let checked = PublicKey::from_bytes(&public).unwrap();
    assert!(!checked.verifies(b"m", &forged));
    // The same commitment in its other spellings.
    for hex in SMALL_ORDER {
        let s = challenge(a, &bytes(hex), &public, b"m") * a;
        assert!(!checked.verifies(b"m", &joined(&bytes(hex), s.as_bytes())));
    }
}

#[test]
fn a_key_of_mixed_order_verifies_nothing() {
    let (key, nonce) = (
        SigningKey::from_bytes(&[5; 32]),
        SigningKey::from_bytes(&[6; 32]),
    );
    let (public, r) = (mixed_key(&key), nonce.verifying_key().to_bytes());
    let set = Keyset::parse(&document(&public)).unwrap();
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..24_u8 {
        let k = challenge(key.to_scalar(), &r, &public, &[number]);
        let s = nonce.to_scalar() + k * key.to_scalar();
        let signature = joined(&r, s.as_bytes());
        if lenient(&public, &[number], &signature) {
            accepted += 1;
        } else {
            refused += 1;
        }
        assert!(set.verify(id_of(&public), &[number], &signature).is_err());
    }
    assert!(
        accepted > 0 && refused > 0,
        "a lenient verifier accepts by chance"
    );
}

#[test]
fn a_signature_has_one_spelling() {
    let key = secret(4);
    let public = key.public_key().unwrap();
    let good = key.sign_ed25519(b"m").unwrap();
    assert!(public.verifies(b"m", &good));
    // S and S + L are the same scalar.
    let mut other = good;
    let mut carry = 0;
    for (to, add) in other[32..].iter_mut().zip(bytes(ORDER)) {
        let sum = u16::from(*to) + u16::from(add) + carry;
        (*to, carry) = (sum.to_le_bytes()[0], sum >> 8);
    }
    assert_eq!(carry, 0, "it still fits");
    assert!(!public.verifies(b"m", &other));
    for wrong in [&good[..63], &[], &[good.as_slice(), &[0]].concat()] {
        assert!(!public.verifies(b"m", wrong));
    }
    assert!(!public.verifies(b"n", &good));
    for bit in (0..512).step_by(19) {
        let mut flipped = good;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(!public.verifies(b"m", &flipped), "bit {bit}");
    }
}
