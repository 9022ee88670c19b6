//! How fast manifests are signed, verified and compared on this machine.
//!
//!     cargo run --release -p belljar-manifest --example signing_speed

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints its figures"
)]

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_manifest::keys::{Keyset, SecretKey};
use belljar_manifest::lineage::{
    CapabilityDocument, Digest, Envelope, Jti, ParentLink, Payload, Revocations, Verified,
    WorkerId, check_link, verify_chain,
};
use belljar_policy::{Amount, Budget, FsMode, Places};

fn main() {
    let secret = SecretKey::ed25519(&[7; 32]);
    let mut keys = Keyset::new();
    for number in 0..8 {
        let old = SecretKey::ed25519(&[number; 32]);
        keys.add(&old.identity(), 0, None).unwrap();
    }
    let text = keys.to_json();
    let secret_text = secret.to_text();
    let payload = root();
    let signer = keys.signer(&secret).unwrap();
    let sealed = Envelope::seal(&payload, &signer).unwrap();
    println!("envelope: {} bytes", sealed.as_bytes().len());

    measure("load a keyset of 8", || {
        black_box(Keyset::parse(text.as_bytes()).unwrap());
    });
    measure("load the secret key", || {
        black_box(SecretKey::parse(secret_text.as_bytes()).unwrap());
    });
    measure("check one public key", || {
        let bytes = secret.public_key().unwrap().bytes();
        black_box(belljar_manifest::keys::PublicKey::from_bytes(&bytes).unwrap());
    });
    measure("load both, may sign", || {
        let keys = Keyset::parse(text.as_bytes()).unwrap();
        let secret = SecretKey::parse(secret_text.as_bytes()).unwrap();
        black_box(keys.signer(&secret).unwrap());
    });
    measure("sign 512 bytes", || {
        black_box(secret.sign_ed25519(&[9; 512]).unwrap());
    });
    measure("capability document", || {
        let held = &payload.capability;
        black_box(CapabilityDocument::new(held.capability(), held.places()).unwrap());
    });
    measure("seal", || {
        black_box(Envelope::seal(&payload, &signer).unwrap());
    });
    measure("parse", || {
        black_box(Envelope::parse(sealed.as_bytes()).unwrap());
    });
    measure("parse and open", || {
        black_box(
            Envelope::parse(sealed.as_bytes())
                .unwrap()
                .open(&keys)
                .unwrap(),
        );
    });
    quick();
    chains(&keys, &secret);
}

fn quick() {
    let secret = SecretKey::hmac(&[8; 32]);
    let mut keys = Keyset::new();
    keys.add(&secret.identity(), 0, None).unwrap();
    keys.attach_hmac(Arc::new(SecretKey::hmac(&[8; 32])))
        .unwrap();
    let signer = keys.signer(&secret).unwrap();
    let payload = root();
    let sealed = Envelope::seal(&payload, &signer).unwrap();
    measure("seal, HMAC", || {
        black_box(Envelope::seal(&payload, &signer).unwrap());
    });
    measure("parse and open, HMAC", || {
        black_box(
            Envelope::parse(sealed.as_bytes())
                .unwrap()
                .open(&keys)
                .unwrap(),
        );
    });
}

fn chains(keys: &Keyset, secret: &SecretKey) {
    let signer = keys.signer(secret).unwrap();
    let mut chain = vec![Envelope::seal(&root(), &signer).unwrap()];
    for number in 2..=8 {
        let parent = chain.last().unwrap().open(keys).unwrap();
        chain.push(Envelope::seal(&child_of(&parent, number), &signer).unwrap());
    }
    measure("verify a chain of 8", || {
        black_box(verify_chain(&chain, keys, &Revocations::new(), 0, 1).unwrap());
    });
    let [parent, child] = [0, 1].map(|at: usize| chain[at].open(keys).unwrap());
    measure("check a link, same capability", || {
        check_link(black_box(&parent), black_box(&child)).unwrap();
    });
    let mut narrower = child_of(&parent, 2);
    let mut capability = narrower.capability.capability().clone();
    capability.filesystem.mode = FsMode::ReadOnly;
    narrower.capability =
        CapabilityDocument::new(&capability, narrower.capability.places()).unwrap();
    let child = Envelope::seal(&narrower, &signer)
        .unwrap()
        .open(keys)
        .unwrap();
    measure("check a link, other capability", || {
        check_link(black_box(&parent), black_box(&child)).unwrap();
    });
}

/// The best of several rounds: the machine does other things too.
fn measure(what: &str, mut work: impl FnMut()) {
    const ROUND: Duration = Duration::from_millis(100);
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let (start, mut times) = (Instant::now(), 0_u32);
        while start.elapsed() < ROUND {
            work();
            times += 1;
        }
        best = best.min(start.elapsed() / times);
    }
    let rate = 1.0 / best.as_secs_f64();
    let micro = best.as_secs_f64() * 1e6;
    println!("{what:32} {micro:9.2} us {rate:12.0}/s");
}

fn root() -> Payload {
    let places = Places {
        home: PathBuf::from("/home/u"),
        work: PathBuf::from("/home/u/w"),
        homes: vec![PathBuf::from("/home"), PathBuf::from("/root")],
    };
    let moderate = belljar_manifest::profile("moderate").unwrap();
    Payload {
        worker: WorkerId::from_u128(1),
        parent: None,
        depth: 0,
        depth_ceiling: 10,
        seq: 1,
        jti: Jti::from_u128(1),
        epoch: 0,
        not_before_ms: 0,
        expires_ms: None,
        capability: CapabilityDocument::new(&moderate, &places).unwrap(),
        budget: Budget::filled(Amount::of(1_000)),
        program: Digest::of(b"program"),
        state: None,
        policy: Digest::of(b"contract"),
        reason: None,
    }
}

fn child_of(parent: &Verified, number: u128) -> Payload {
    let above = parent.payload();
    let mut budget = above.budget;
    budget.replicas = budget.replicas.less(Amount::of(1)).unwrap();
    Payload {
        worker: WorkerId::from_u128(number),
        parent: Some(ParentLink {
            worker: above.worker,
            envelope: parent.digest(),
        }),
        depth: above.depth + 1,
        seq: above.seq + 1,
        jti: Jti::from_u128(number),
        budget,
        ..above.clone()
    }
}
