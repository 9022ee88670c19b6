//! One manifest under attack: changed bytes, other keys, second spellings, other algorithms.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use belljar_manifest::keys::{Keyset, PreviousKey, SecretKey};
use belljar_manifest::lineage::{
    Digest, Envelope, InvalidPayload, MAX_ENVELOPE_BYTES, MAX_REASON_BYTES, PAYLOAD_TYPE, Payload,
    RejectReason, WorkerId,
};
use belljar_policy::Capability;
use data_encoding::{BASE64, BASE64_NOPAD, BASE64URL};
use proptest::prelude::*;
use support::*;

#[test]
fn a_manifest_reads_back() {
    let secret = secret();
    let mut payload = root();
    payload.reason = Some("to sort \"faster\" \u{1f980}".to_owned());
    let sealed = seal(&payload, &secret);
    let verified = open(sealed.as_bytes(), &keyset(&secret)).unwrap();
    assert_eq!(verified.payload(), &payload);
    assert_eq!(verified.key(), secret.id());
    assert_eq!(verified.digest(), sealed.digest());
    let (capability, own) = (
        verified.payload().capability.capability(),
        &payload.capability,
    );
    assert_eq!(capability, own.capability());
    assert_eq!(Envelope::parse(sealed.as_bytes()).unwrap(), sealed);
    assert_eq!(seal(&payload, &secret), sealed, "the same bytes each time");
}

#[test]
fn the_bytes_of_a_manifest_do_not_change_between_versions() {
    // Manifests are kept in logs for years; a change here is a new payload type.
    let sealed = seal(&root(), &secret());
    let text = String::from_utf8(payload_bytes(&sealed)).unwrap();
    insta::assert_snapshot!(text.replace(",\"", ",\n\""));
}

#[test]
fn no_byte_can_be_changed() {
    let (secret, keys) = quick();
    // A small manifest: the work grows with the square of its size.
    let small = Payload {
        capability: document(&Capability::closed(Arc::from("closed"))),
        ..root()
    };
    let sealed = seal(&small, &secret);
    for at in 0..sealed.as_bytes().len() {
        // A neighbour, the other case, and no ASCII at all.
        let mut bytes = sealed.as_bytes().to_vec();
        bytes[at] ^= [1, 0x20, 0x80][at % 3];
        assert!(open(&bytes, &keys).is_err(), "byte {at}");
    }
    for cut in 0..sealed.as_bytes().len() {
        assert!(Envelope::parse(&sealed.as_bytes()[..cut]).is_err());
    }
    // Changed below the base64, so that only the signature stands in the way.
    let (_, keyid, sig) = fields(&sealed);
    let payload = payload_bytes(&sealed);
    for at in 0..payload.len() {
        let mut changed = payload.clone();
        changed[at] ^= 1;
        let bytes = envelope(PAYLOAD_TYPE, &BASE64.encode(&changed), &keyid, &sig);
        assert_eq!(refused(&bytes, &keys), RejectReason::Signature, "byte {at}");
    }
}

#[test]
fn signatures_belong_to_one_manifest() {
    let secret = secret();
    let keys = keyset(&secret);
    let other = Payload {
        worker: WorkerId::from_u128(2),
        ..root()
    };
    let (one, two) = (
        fields(&seal(&root(), &secret)),
        fields(&seal(&other, &secret)),
    );
    for (payload, sig) in [(&one.0, &two.2), (&two.0, &one.2)] {
        let swapped = envelope(PAYLOAD_TYPE, payload, &one.1, sig);
        assert_eq!(refused(&swapped, &keys), RejectReason::Signature);
    }
}

#[test]
fn only_the_key_it_names_counts() {
    let (mine, other) = (secret(), SecretKey::ed25519(&[9; 32]));
    let mut keys = keyset(&mine);
    let foreign = seal(&root(), &other);
    assert_eq!(refused(foreign.as_bytes(), &keys), RejectReason::KeyUnknown);
    // Under the name of a key that is trusted.
    let (payload, _, sig) = fields(&foreign);
    let renamed = envelope(PAYLOAD_TYPE, &payload, &mine.id().to_string(), &sig);
    assert_eq!(refused(&renamed, &keys), RejectReason::Signature);
    // Both are trusted and the signature is genuine, but the payload names the other.
    keys.add(&other.identity(), 0, None).unwrap();
    let payload = payload_bytes(&foreign);
    let crossed = sign_anything(&payload, &mine);
    assert_eq!(refused(&crossed, &keys), RejectReason::Malformed);
}

#[test]
fn a_retired_key_verifies_and_a_compromised_one_does_not() {
    let (old, new) = (secret(), SecretKey::ed25519(&[9; 32]));
    let mut keys = keyset(&old);
    let sealed = seal(&root(), &old);
    keys.rotate(&new.identity(), 0, None, PreviousKey::Retire)
        .unwrap();
    assert!(sealed.open(&keys).is_ok());
    assert!(keys.signer(&old).is_err(), "and signs no more");
    keys.compromise(old.id()).unwrap();
    assert_eq!(
        refused(sealed.as_bytes(), &keys),
        RejectReason::KeyCompromised
    );
    assert_eq!(
        refused(sealed.as_bytes(), &Keyset::new()),
        RejectReason::KeyUnknown
    );
}

#[test]
fn the_algorithm_is_the_keys_and_not_the_messages() {
    let honest = secret();
    let keys = keyset(&honest);
    let public = honest.public_key().unwrap().bytes();
    // Everybody knows the public key, so everybody can make a code with it.
    let confused = SecretKey::hmac(&public);
    let (payload, _, code) = fields(&seal(&root(), &confused));
    let bytes = envelope(PAYLOAD_TYPE, &payload, &honest.id().to_string(), &code);
    assert_eq!(refused(&bytes, &keys), RejectReason::Signature);
    let bytes = envelope(PAYLOAD_TYPE, &payload, &confused.id().to_string(), &code);
    assert_eq!(refused(&bytes, &keys), RejectReason::KeyUnknown);
    // An HMAC key as an Ed25519 seed: another key, and another id.
    let (hmac, mut keys) = quick();
    let seed = SecretKey::ed25519(&[2; 32]);
    let bytes = seal(&root(), &seed);
    assert_eq!(refused(bytes.as_bytes(), &keys), RejectReason::KeyUnknown);
    let (payload, _, sig) = fields(&bytes);
    let bytes = envelope(PAYLOAD_TYPE, &payload, &hmac.id().to_string(), &sig);
    assert_eq!(refused(&bytes, &keys), RejectReason::Signature);
    assert!(keys.attach_hmac(Arc::new(seed)).is_err());
    let unattached = keyset(&hmac);
    assert_eq!(
        refused(seal(&root(), &hmac).as_bytes(), &unattached),
        RejectReason::KeyMissing
    );
}

#[test]
fn a_signed_payload_still_has_one_spelling() {
    let secret = secret();
    let keys = keyset(&secret);
    let text = String::from_utf8(payload_bytes(&seal(&root(), &secret))).unwrap();
    assert!(open(&sign_anything(text.as_bytes(), &secret), &keys).is_ok());
    let check = |from: &str, to: &str| {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        let bytes = sign_anything(changed.as_bytes(), &secret);
        assert_eq!(refused(&bytes, &keys), RejectReason::Malformed, "{to}");
    };
    let key = format!("\"key\":\"{}\"", secret.id());
    check("\"depth\":0", "\"depth\":0,\"admin\":true"); // unknown field
    check("\"depth\":0", "\"depth\":0,\"depth\":0"); // duplicate key
    check("\"depth\":0", "\"depth\":1,\"depth\":0");
    check("\"seq\":10,", ""); // missing
    check("\"state\":null,", ""); // missing, though it may be null
    check(
        "\"depth\":0,\"depth_ceiling\":3",
        "\"depth_ceiling\":3,\"depth\":0",
    ); // reordered
    check("\"depth\":0", "\"depth\": 0"); // white space
    check("\"depth\":0", "\"depth\":0.0");
    check("\"depth\":0", "\"depth\":-0");
    check("\"seq\":10", "\"seq\":1e1");
    check("\"seq\":10", "\"seq\":18446744073709551616");
    check("\"worker\"", "\"work\\u0065r\""); // escapes
    check("000001\"", "00000A\""); // upper case
    check("{\"worker\"", " {\"worker\"");
    check(&key, &format!("{key},\"key\":null"));
    check(&key, "\"key\":\"0000000000000000\"");
    check("\"expires_ms\":9000", "\"expires_ms\":1000"); // over before it begins
    check("\"depth\":0", "\"depth\":1"); // a child without a parent
    check("\"depth_ceiling\":3", "\"depth_ceiling\":1001");
    check("\"reason\":null", "\"reason\":\"\\u0007\"");
    check("\"tier\":\"seccomp\"", "\"tier\":\"none\""); // the capability
    check("\"tier\":\"seccomp\"", "\"tier\":\"gvisor\""); // not its digest
    check("\"replicas\":1000", "\"replicas\":-1");
    check("\"replicas\":1000", "\"replicas\":1000,\"gold\":1");
    check(&text.clone(), "null");
    check(&text.clone(), "[]");
    check(&text.clone(), "");
    check(&text.clone(), &format!("{text}{text}"));
}

#[test]
fn a_capability_in_a_signed_payload_has_one_spelling() {
    let secret = secret();
    let keys = keyset(&secret);
    let text = String::from_utf8(payload_bytes(&seal(&root(), &secret))).unwrap();
    let own = root().capability.text().to_owned();
    let check = |from: &str, to: &str| {
        let changed = own.replacen(from, to, 1);
        assert_ne!(changed, own, "{from}");
        let digest = |text: &str| Digest::of(text.as_bytes()).to_string();
        let stale = text.replacen(&own, &changed, 1);
        // With the digest of the bytes, and with that of the spelling they should have.
        let renewed = stale.replacen(&digest(&own), &digest(&changed), 1);
        for payload in [stale, renewed] {
            let bytes = sign_anything(payload.as_bytes(), &secret);
            assert_eq!(refused(&bytes, &keys), RejectReason::Malformed, "{to}");
        }
    };
    check("\"tier\":", "\"tier\": ");
    check("\"tier\":\"seccomp\"", "\"tier\":\"seccomp\",\"more\":1");
    check("\"home\":\"/home/u\"", "\"home\":\"/home/u/\"");
    check("\"home\":\"/home/u\"", "\"home\":\"home/u\"");
    check("\"home\":\"/home/u\"", "\"home\":\"/home/../u\"");
    check(
        "\"permissions\":[",
        "\"permissions\":[\"spawn_subprocess\",",
    );
    check("\"permissions\":[", "\"permissions\":[\"fly\",");
    check("\"cost_usd\":null", "\"cost_usd\":\"NaN\"");
    check("\"cost_usd\":null", "\"cost_usd\":\"-1\"");
    check("\"cost_usd\":null", "\"cost_usd\":\"inf\"");
    check("\"cost_usd\":null", "\"cost_usd\":\"1.0\"");
    check("\"cost_usd\":null", "\"cost_usd\":1");
    check(
        "\"egress\":[",
        r#""egress":[{"value":{"domain":"*","ports":[],"rate_limit_per_min":1,"effect":"allow"},"file":"","line":0,"column":0,"source":"document"},"#,
    );
    // What says nothing is left out.
    for nothing in [
        "\"secrets\":[]",
        "\"ports\":[]",
        "\"llm\":null",
        "\"llm\":{\"on_budget\":\"kill\",\"endpoints\":[],\"prices\":null}",
        "\"upstream_proxy\":null",
    ] {
        check("\"limits\":", &format!("{nothing},\"limits\":"));
    }
    check("\"tools\":", "\"withheld_env\":[],\"tools\":");
    check(
        "\"effect\":\"allow\"",
        r#""effect":"allow","terms":{"max_connections":null,"max_bytes":null,"reach":"public","http":null}"#,
    );
}

#[test]
fn an_envelope_has_one_spelling() {
    let secret = secret();
    let keys = keyset(&secret);
    let sealed = seal(&root(), &secret);
    let (payload, keyid, sig) = fields(&sealed);
    let again = envelope(PAYLOAD_TYPE, &payload, &keyid, &sig);
    assert_eq!(again, sealed.as_bytes(), "the hand-written one is right");
    let malformed = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(refused(bytes, &keys), RejectReason::Malformed, "{text}");
    };
    let raw = payload_bytes(&sealed);
    let raw_sig = BASE64.decode(sig.as_bytes()).unwrap();
    // A signature of 64 bytes is padded, so both variants differ.
    assert!(sig.ends_with("=="));
    malformed(&envelope(
        PAYLOAD_TYPE,
        &payload,
        &keyid,
        &BASE64_NOPAD.encode(&raw_sig),
    ));
    malformed(&envelope(
        PAYLOAD_TYPE,
        &payload,
        &keyid,
        &format!("{sig}="),
    ));
    malformed(&envelope(
        PAYLOAD_TYPE,
        &payload,
        &keyid,
        &format!("{sig}\n"),
    ));
    let url = BASE64URL.encode(&raw_sig);
    assert_ne!(url, sig, "this signature holds a character that differs");
    malformed(&envelope(PAYLOAD_TYPE, &payload, &keyid, &url));
    // Bits past the end of the last byte.
    let loose = sig.replacen("A==", "B==", 1).replacen("Q==", "R==", 1);
    let loose = loose.replacen("g==", "h==", 1).replacen("w==", "x==", 1);
    assert_ne!(loose, sig);
    malformed(&envelope(PAYLOAD_TYPE, &payload, &keyid, &loose));
    malformed(&envelope(
        PAYLOAD_TYPE,
        &format!(" {payload}"),
        &keyid,
        &sig,
    ));
    malformed(&envelope(
        PAYLOAD_TYPE,
        &payload,
        &keyid.to_uppercase(),
        &sig,
    ));
    malformed(&envelope(PAYLOAD_TYPE, &payload, &keyid[..14], &sig));
    malformed(&envelope(PAYLOAD_TYPE, &payload, "", &sig));
    // Another type, with a signature over that type.
    for kind in [
        "application/json",
        "",
        "application/vnd.belljar.lineage+json;version=2",
    ] {
        let signature = secret.sign_ed25519(&signed_bytes(kind, &raw)).unwrap();
        let bytes = envelope(kind, &payload, &keyid, &BASE64.encode(&signature));
        malformed(&bytes);
        let said = open(&bytes, &keys).unwrap_err().detail;
        assert!(said.contains("another type"), "{said}");
    }
    // The type is signed: the same payload signed as something else does not pass for a manifest.
    let signature = secret.sign_ed25519(&signed_bytes("x", &raw)).unwrap();
    let bytes = envelope(PAYLOAD_TYPE, &payload, &keyid, &BASE64.encode(&signature));
    assert_eq!(refused(&bytes, &keys), RejectReason::Signature);
    let signature = secret.sign_ed25519(&raw).unwrap();
    let bytes = envelope(PAYLOAD_TYPE, &payload, &keyid, &BASE64.encode(&signature));
    assert_eq!(refused(&bytes, &keys), RejectReason::Signature);

    let text = String::from_utf8(sealed.as_bytes().to_vec()).unwrap();
    let one = format!("{{\"keyid\":\"{keyid}\",\"sig\":\"{sig}\"}}");
    let both = format!("{one},{one}");
    for changed in [
        text.replace(&one, ""),
        text.replace(&one, &both),
        text.replace(
            &one,
            &format!("{{\"sig\":\"{sig}\",\"keyid\":\"{keyid}\"}}"),
        ),
        text.replacen('{', "{\"x\":1,", 1),
        text.replacen("\"payload\":", "\"payload\":\"\",\"payload\":", 1),
        text.replace("payloadType", "payload_type"),
        format!("{text}\n"),
        format!(" {text}"),
        format!("{text}{text}"),
        text.replace("+json", "\\u002bjson"),
    ] {
        assert_ne!(changed, text);
        malformed(changed.as_bytes());
    }
    malformed(&vec![b' '; MAX_ENVELOPE_BYTES + 1]);
}

#[test]
fn what_no_verifier_would_take_is_not_signed() {
    let secret = secret();
    let keys = keyset(&secret);
    let signer = keys.signer(&secret).unwrap();
    let check = |change: fn(&mut Payload), expect: InvalidPayload| {
        let mut payload = root();
        change(&mut payload);
        let refused = Envelope::seal(&payload, &signer).unwrap_err();
        assert_eq!(refused, expect.into());
    };
    check(|p| p.depth = 1, InvalidPayload::Root);
    check(
        |p| p.expires_ms = Some(p.not_before_ms),
        InvalidPayload::Time,
    );
    check(|p| p.depth_ceiling = 1001, InvalidPayload::Ceiling);
    check(
        |p| p.reason = Some("x".repeat(MAX_REASON_BYTES + 1)),
        InvalidPayload::Reason,
    );
    check(
        |p| p.reason = Some("a\u{1b}b".to_owned()),
        InvalidPayload::Reason,
    );
    let mut parent = child_of(&seal(&root(), &secret).open(&keys).unwrap(), 2);
    parent.worker = WorkerId::from_u128(1);
    let refused = Envelope::seal(&parent, &signer).unwrap_err();
    assert_eq!(refused, InvalidPayload::OwnParent.into());
    parent.worker = WorkerId::from_u128(2);
    parent.depth_ceiling = 0;
    let refused = Envelope::seal(&parent, &signer).unwrap_err();
    assert_eq!(refused, InvalidPayload::Depth.into());

    let mut large = capability();
    large.filesystem.readable = vec![rule("/srv/data", 1); 5_000];
    let payload = Payload {
        capability: document(&large),
        ..root()
    };
    let refused = Envelope::seal(&payload, &signer).unwrap_err();
    assert_eq!(refused, InvalidPayload::TooLarge.into());
}

#[test]
fn reasons_have_codes_of_their_own() {
    for reason in RejectReason::ALL {
        assert!(reason.code().starts_with("reject_"));
        assert_eq!(RejectReason::from_code(reason.code()), Some(*reason));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Envelope::parse(&bytes).is_err());
    }

    /// Whatever a trusted key signs, there is one spelling or none.
    #[test]
    fn signed_noise_is_the_manifest_or_malformed(
        changes in proptest::collection::vec((0..3_000_usize, any::<u8>()), 1..4),
    ) {
        let secret = secret();
        let honest = payload_bytes(&seal(&root(), &secret));
        let mut payload = honest.clone();
        for (at, byte) in changes {
            let at = at % payload.len();
            payload[at] = byte;
        }
        if let Ok(verified) = open(&sign_anything(&payload, &secret), &keyset(&secret)) {
            let again = seal(verified.payload(), &secret);
            prop_assert_eq!(payload_bytes(&again), payload);
        }
    }
}
