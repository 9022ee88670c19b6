//! Keys and keysets: what each state allows, and what documents are refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use belljar_manifest::keys::{
    Algorithm, CannotSign, InvalidKeyset, KeyId, KeyIdentity, KeyState, Keyset, KeysetError,
    MAX_KEYS, MAX_KEYSET_BYTES, PreviousKey, PublicKey, SecretKey, VerifyFault,
};
use data_encoding::HEXLOWER;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

fn secret(number: u8) -> SecretKey {
    SecretKey::ed25519(&[number; 32])
}

fn keyset(secrets: &[&SecretKey]) -> Keyset {
    let mut set = Keyset::new();
    for secret in secrets {
        set.add(&secret.identity(), 1_700_000_000, None).unwrap();
    }
    set
}

fn bytes(hex: &str) -> [u8; 32] {
    HEXLOWER.decode(hex.as_bytes()).unwrap().try_into().unwrap()
}

/// The id as documents have it, computed here on its own: it must never change.
fn id_of(public: &[u8; 32]) -> KeyId {
    let hash = Sha256::digest([b"belljar key id v1 ed25519\0".as_slice(), public].concat());
    HEXLOWER.encode(&hash[..8]).parse().unwrap()
}

#[test]
fn signatures_are_those_of_the_standard() {
    // RFC 8032, 7.1, test 1.
    let key = SecretKey::ed25519(&bytes(
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
    ));
    let public = key.public_key().unwrap();
    assert_eq!(
        public.to_string(),
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    );
    let signature = key.sign_ed25519(b"").unwrap();
    assert_eq!(
        HEXLOWER.encode(&signature),
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b\
         d25bf5f0595bbe24655141438e7a100b"
    );
    assert!(public.verifies(b"", &signature));
    assert_eq!(public.id(), id_of(&public.bytes()));
    assert_eq!(PublicKey::from_hex(&public.to_string()), Ok(public));
}

#[test]
fn message_codes_are_those_of_the_standard() {
    // RFC 4231, test case 2; a short key is filled up with zeros.
    let mut key = [0; 32];
    key[..4].copy_from_slice(b"Jefe");
    let key = SecretKey::hmac(&key);
    let id = key.id();
    let mut set = keyset(&[&key]);
    let message = b"what do ya want for nothing?";
    let code = bytes("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    assert_eq!(
        set.verify(id, message, &code),
        Err(VerifyFault::Missing(id))
    );
    set.attach_hmac(Arc::new(key)).unwrap();
    assert_eq!(set.verify(id, message, &code), Ok(()));
    for wrong in [&code[..31], &[0; 32], &[], &[code, code].concat()] {
        assert_eq!(
            set.verify(id, message, wrong),
            Err(VerifyFault::Signature(id))
        );
    }
}

#[test]
fn a_key_file_reads_back_and_prints_nothing() {
    for key in [secret(7), SecretKey::hmac(&[7; 32])] {
        let text = key.to_text();
        let again = SecretKey::parse(text.as_bytes()).unwrap();
        assert_eq!((again.id(), again.algorithm()), (key.id(), key.algorithm()));
        assert_eq!(again.public_key(), key.public_key());
        let shown = format!("{key:?}");
        assert!(!shown.contains("0707"), "{shown}");
        assert!(shown.contains(&key.id().to_string()), "{shown}");
    }
    // The same bytes under two algorithms are two keys.
    assert_ne!(secret(7).id(), SecretKey::hmac(&[7; 32]).id());
    assert!(SecretKey::hmac(&[7; 32]).sign_ed25519(b"").is_err());
}

#[test]
fn what_is_no_key_file_is_refused() {
    let hex = "07".repeat(32);
    for text in [
        String::new(),
        hex.clone(),
        format!("belljar-secret-key-v1 ed25519 {}", &hex[1..]),
        format!("belljar-secret-key-v1 ed25519 {hex}0"),
        format!("belljar-secret-key-v1 ed25519 {hex} "),
        format!("belljar-secret-key-v1 ed25519  {hex}"),
        format!("belljar-secret-key-v1 ed25519 {hex}\n\n"),
        format!("belljar-secret-key-v1 rsa {hex}"),
        format!("belljar-secret-key-v2 ed25519 {hex}"),
        format!("belljar-secret-key-v1 ed25519 {}", "0A".repeat(32)),
        format!("belljar-secret-key-v1 ed25519 {hex}{}", " ".repeat(300)),
    ] {
        let error = SecretKey::parse(text.as_bytes()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("07"), "{text:?}");
    }
}

#[test]
fn each_state_allows_what_it_says() {
    let (old, new) = (secret(1), secret(2));
    let mut set = keyset(&[&old]);
    let signature = old.sign_ed25519(b"m").unwrap();
    let verify = |set: &Keyset| set.verify(old.id(), b"m", &signature);
    assert!(set.signer(&old).is_ok());
    assert_eq!(verify(&set), Ok(()));

    let (identity, note) = (new.identity(), Some("second"));
    set.rotate(&identity, 5, note, PreviousKey::Retire).unwrap();
    assert_eq!(set.signing_key(), Some(new.id()));
    assert_eq!(set.key(old.id()).unwrap().state(), KeyState::Retired);
    let entry = set.key(new.id()).unwrap();
    assert_eq!((entry.created_at(), entry.note()), (5, note));
    assert_eq!(entry.algorithm(), Algorithm::Ed25519);
    assert_eq!(verify(&set), Ok(()), "a retired key verifies");
    let refused = set.signer(&old).unwrap_err();
    assert!(matches!(refused, CannotSign::NotActive { state, .. } if state == KeyState::Retired));

    set.compromise(old.id()).unwrap();
    assert_eq!(verify(&set), Err(VerifyFault::Compromised(old.id())));
    assert_eq!(
        set.retire(old.id()),
        Err(KeysetError::Compromised(old.id()))
    );
    assert_eq!(verify(&set), Err(VerifyFault::Compromised(old.id())));

    set.compromise(new.id()).unwrap();
    assert_eq!(set.signing_key(), None, "nothing signs now");
    assert!(set.signer(&new).is_err());
    let unknown = secret(9).id();
    assert_eq!(set.compromise(unknown), Err(KeysetError::Unknown(unknown)));
    assert_eq!(
        set.verify(unknown, b"m", &signature),
        Err(VerifyFault::Unknown(unknown))
    );
    assert_eq!(
        set.signer(&secret(9)).unwrap_err(),
        CannotSign::Unknown(unknown)
    );
}

#[test]
fn keys_stay_active_until_they_are_retired() {
    let (first, second) = (secret(1), secret(2));
    let mut set = keyset(&[&first]);
    set.rotate(&second.identity(), 5, None, PreviousKey::KeepActive)
        .unwrap();
    assert!(set.signer(&first).is_ok() && set.signer(&second).is_ok());
    assert_eq!(set.signing_key(), Some(second.id()));
    set.retire(second.id()).unwrap();
    assert_eq!(set.signing_key(), None);
}

#[test]
fn a_set_has_each_key_once_and_not_too_many() {
    let mut set = Keyset::new();
    let keys: Vec<_> = (0..=u8::try_from(MAX_KEYS).unwrap())
        .map(|number| SecretKey::hmac(&[number; 32]))
        .collect();
    for key in &keys[..MAX_KEYS] {
        set.add(&key.identity(), 0, Some(&"\"".repeat(200)))
            .unwrap();
    }
    let first = keys[0].identity();
    assert_eq!(
        set.add(&first, 0, None),
        Err(KeysetError::Known(first.id()))
    );
    assert_eq!(
        set.add(&keys[MAX_KEYS].identity(), 0, None),
        Err(KeysetError::Full)
    );
    let text = set.to_json();
    assert!(
        text.len() <= MAX_KEYSET_BYTES,
        "a full set can be read again"
    );
    assert_eq!(Keyset::parse(text.as_bytes()).unwrap().to_json(), text);

    let mut set = Keyset::new();
    for note in ["x".repeat(201), "a\nb".to_owned()] {
        let added = set.add(&first, 0, Some(&note));
        assert_eq!(added, Err(KeysetError::Note));
    }
    assert_eq!(set.keys().count(), 0);
}

#[test]
fn a_document_reads_back_and_holds_no_secret() {
    let (one, two) = (secret(1), SecretKey::hmac(&[2; 32]));
    let mut set = keyset(&[&one, &two]);
    set.attach_hmac(Arc::new(SecretKey::hmac(&[2; 32])))
        .unwrap();
    set.compromise(one.id()).unwrap();
    let text = set.to_json();
    assert!(!text.contains("0202") && !text.contains("0101"), "{text}");
    let again = Keyset::parse(text.as_bytes()).unwrap();
    assert_eq!(again.to_json(), text);
    assert_eq!(again.key(one.id()).unwrap().state(), KeyState::Compromised);
    assert_eq!(again.signing_key(), Some(two.id()));
    assert_eq!(
        again.verify(two.id(), b"", b""),
        Err(VerifyFault::Missing(two.id()))
    );
}

#[test]
fn documents_that_lie_are_refused() {
    let (one, two) = (secret(1), secret(2));
    let mut set = keyset(&[&one, &two]);
    set.retire(one.id()).unwrap();
    let text = set.to_json();
    let (id, other) = (one.id().to_string(), two.id().to_string());
    let check = |from: &str, to: &str, expect: fn(&InvalidKeyset) -> bool| {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        let error = Keyset::parse(changed.as_bytes()).unwrap_err();
        assert!(expect(&error), "{from} -> {to}: {error:?}");
    };
    let json: fn(&InvalidKeyset) -> bool = |e| matches!(e, InvalidKeyset::Json(_));
    check("\"version\": 1", "\"version\": 1, \"extra\": 1", json);
    check("\"version\": 1", "\"version\": 1, \"version\": 1", json);
    check("\"state\"", "\"State\"", json);
    check("\"retired\"", "\"trusted\"", json);
    check("\"ed25519\"", "\"none\"", json);
    check("\"created_at\": 1", "\"created_at\": -1", json);
    check("\"version\": 1", "\"version\": 2", |e| {
        matches!(e, InvalidKeyset::Version(2))
    });
    let lie: fn(&InvalidKeyset) -> bool = |e| matches!(e, InvalidKeyset::Contradiction(_));
    check(
        &format!("\"id\": \"{id}\""),
        "\"id\": \"0000000000000000\"",
        lie,
    );
    // A key that would be checked as an HMAC key, with a public key everybody knows.
    check("\"ed25519\"", "\"hmac\"", lie);
    let public = one.public_key().unwrap().to_string();
    check(&public, &public.to_uppercase(), lie);
    check(&public, &public[2..], lie);
    check(
        &format!(",\n      \"public\": \"{}\"", two.public_key().unwrap()),
        "",
        lie,
    );
    check(
        &format!("\"signing\": \"{other}\""),
        &format!("\"signing\": \"{id}\""),
        |e| matches!(e, InvalidKeyset::Signing(_)),
    );
    let huge = vec![b' '; MAX_KEYSET_BYTES + 1];
    assert!(matches!(Keyset::parse(&huge), Err(InvalidKeyset::TooLarge)));
    let entry = r#"{"id":"1111111111111111","algorithm":"hmac","state":"active","created_at":0}"#;
    let many = |keys: &[&str]| {
        let text = format!(
            r#"{{"version":1,"signing":null,"keys":[{}]}}"#,
            keys.join(",")
        );
        Keyset::parse(text.as_bytes()).map(|_| ())
    };
    assert!(many(&[entry]).is_ok());
    assert!(matches!(
        many(&[entry, entry]),
        Err(InvalidKeyset::Twice(_))
    ));
    let crowd = vec![entry; MAX_KEYS + 1];
    assert!(matches!(many(&crowd), Err(InvalidKeyset::TooMany)));
}

#[test]
fn only_the_hmac_key_itself_can_be_attached() {
    let (public, hmac) = (secret(1), SecretKey::hmac(&[2; 32]));
    let mut set = keyset(&[&public, &hmac]);
    // Whoever knows an Ed25519 public key could otherwise make codes with it.
    let confused = SecretKey::hmac(&public.public_key().unwrap().bytes());
    let id = confused.id();
    assert_eq!(
        set.attach_hmac(Arc::new(confused)),
        Err(KeysetError::Unknown(id))
    );
    assert_eq!(
        set.attach_hmac(Arc::new(secret(1))),
        Err(KeysetError::NotHmac(public.id()))
    );
    set.attach_hmac(Arc::new(SecretKey::hmac(&[2; 32])))
        .unwrap();
}

#[test]
fn an_identity_names_its_key() {
    let key = secret(1);
    assert_eq!(key.identity().id(), key.id());
    let public = key.public_key().unwrap();
    assert_eq!(KeyIdentity::from(public.clone()), key.identity());
    assert_eq!(public.id(), key.id());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn random_documents_never_panic(at in 0..600_usize, byte in any::<u8>(), cut in 0..600_usize) {
        let mut text = keyset(&[&SecretKey::hmac(&[1; 32])]).to_json().into_bytes();
        if let Some(place) = text.get_mut(at) { *place = byte; }
        let _ = Keyset::parse(&text);
        text.truncate(cut);
        let _ = Keyset::parse(&text);
        let _ = SecretKey::parse(&text);
    }
}
