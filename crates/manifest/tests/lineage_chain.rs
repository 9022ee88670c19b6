//! Chains of manifests: what follows, what has more, what was revoked, and what no sequence of links can raise.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use belljar_manifest::keys::{Keyset, PreviousKey, SecretKey};
use belljar_manifest::lineage::{
    CapabilityDocument, ChainFault, Digest, Envelope, Jti, MAX_CHAIN, Payload, RejectReason,
    Revocations, Verified, WorkerId, check_link, verify_chain,
};
use belljar_policy::{Amount, Budget, Capability, Dimension, FsMode, Permission};
use proptest::prelude::*;
use support::*;

const EPOCH: u64 = 5;
const NOW: u64 = 2_000;

/// A root, its child and its grandchild.
fn family(secret: &SecretKey, keys: &Keyset) -> Vec<Envelope> {
    let root = seal(&root(), secret);
    let child = seal(&child_of(&root.open(keys).unwrap(), 2), secret);
    let leaf = seal(&child_of(&child.open(keys).unwrap(), 3), secret);
    vec![root, child, leaf]
}

#[track_caller]
fn fault(chain: &[Envelope], keys: &Keyset) -> (usize, RejectReason) {
    match verify_chain(chain, keys, &Revocations::new(), EPOCH, NOW) {
        Err(ChainFault { at, rejection }) => (at, rejection.reason),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn a_chain_holds_from_root_to_leaf() {
    let secret = secret();
    let keys = keyset(&secret);
    let chain = family(&secret, &keys);
    let verified = verify_chain(&chain, &keys, &Revocations::new(), EPOCH, NOW).unwrap();
    assert_eq!(verified.leaf().worker(), WorkerId::from_u128(3));
    let digests: Vec<_> = verified.iter().map(Verified::digest).collect();
    let expect: Vec<_> = chain.iter().map(Envelope::digest).collect();
    assert_eq!(digests, expect);
}

#[test]
fn a_chain_is_whole_and_in_order() {
    let (secret, keys) = quick();
    let chain = family(&secret, &keys);
    let [root, child, leaf] = [0, 1, 2].map(|at| chain[at].clone());
    let chained = RejectReason::Chain;
    assert_eq!(fault(&[], &keys), (0, chained));
    assert_eq!(fault(&[child.clone(), leaf.clone()], &keys), (0, chained));
    assert_eq!(fault(&[root.clone(), leaf.clone()], &keys), (1, chained));
    assert_eq!(
        fault(&[root.clone(), leaf, child.clone()], &keys),
        (1, chained)
    );
    assert_eq!(fault(&[root.clone(), root.clone()], &keys), (1, chained));
    assert_eq!(
        fault(&[root.clone(), child.clone(), child], &keys),
        (2, chained)
    );
    assert_eq!(
        fault(&vec![root; MAX_CHAIN + 1], &keys),
        (MAX_CHAIN, chained)
    );
}

#[test]
fn a_sibling_is_no_parent() {
    let (secret, keys) = quick();
    let chain = family(&secret, &keys);
    let root = chain[0].open(&keys).unwrap();
    // The same paper for another worker: only who it is about differs.
    let sibling = seal(&child_of(&root, 7), &secret);
    let confused = [chain[0].clone(), sibling.clone(), chain[2].clone()];
    assert_eq!(fault(&confused, &keys), (2, RejectReason::Chain));
    // The same worker's name, but another issue of its manifest.
    let mut reissued = child_of(&root, 2);
    reissued.jti = Jti::from_u128(999);
    let reissued = [chain[0].clone(), seal(&reissued, &secret), chain[2].clone()];
    assert_eq!(fault(&reissued, &keys), (2, RejectReason::Chain));
    // The sibling's digest under the parent's name, and the other way round.
    let sibling = sibling.open(&keys).unwrap();
    let parent = chain[1].open(&keys).unwrap();
    let mut forged = child_of(&parent, 3);
    forged.parent.as_mut().unwrap().envelope = sibling.digest();
    let forged = seal(&forged, &secret).open(&keys).unwrap();
    for above in [&parent, &sibling] {
        let refused = check_link(above, &forged).unwrap_err();
        assert_eq!(refused.reason, RejectReason::Chain);
    }
}

#[test]
fn a_name_is_in_a_chain_once() {
    let (secret, keys) = quick();
    let chain = family(&secret, &keys);
    let parent = chain[1].open(&keys).unwrap();
    let check = |change: fn(&mut Payload)| {
        let mut leaf = child_of(&parent, 3);
        change(&mut leaf);
        let leaf = seal(&leaf, &secret);
        // Nothing is wrong between the two; only the whole chain shows it.
        assert!(check_link(&parent, &leaf.open(&keys).unwrap()).is_ok());
        let chain = [chain[0].clone(), chain[1].clone(), leaf];
        assert_eq!(fault(&chain, &keys), (2, RejectReason::Chain));
    };
    check(|leaf| leaf.worker = root().worker);
    check(|leaf| leaf.jti = root().jti);
}

/// One change to a child that is otherwise in order, and what is said to it.
#[track_caller]
fn check_change(change: impl FnOnce(&mut Payload), expect: Result<(), RejectReason>) {
    let (secret, keys) = quick();
    let parent = seal(&root(), &secret).open(&keys).unwrap();
    let mut child = child_of(&parent, 2);
    change(&mut child);
    let child = seal(&child, &secret).open(&keys).unwrap();
    let found = check_link(&parent, &child).map_err(|rejection| rejection.reason);
    assert_eq!(found, expect);
}

fn narrowed(change: impl FnOnce(&mut Capability)) -> CapabilityDocument {
    let mut capability = capability();
    change(&mut capability);
    document(&capability)
}

#[test]
fn a_child_follows_its_parent() {
    let chain = Err(RejectReason::Chain);
    check_change(|_| {}, Ok(()));
    check_change(|c| c.depth = 2, chain);
    check_change(|c| c.depth = 3, chain);
    check_change(
        |c| c.parent.as_mut().unwrap().worker = WorkerId::from_u128(9),
        chain,
    );
    check_change(
        |c| c.parent.as_mut().unwrap().envelope = Digest::of(b"other"),
        chain,
    );
    check_change(|c| c.seq = 10, chain);
    check_change(|c| c.seq = 9, chain);
    check_change(|c| c.epoch = 4, Err(RejectReason::Epoch));
    check_change(|c| c.epoch = 6, Ok(()));
    check_change(
        |c| {
            c.parent = None;
            c.depth = 0;
        },
        chain,
    );
}

#[test]
fn a_child_has_no_more_numbers_than_its_parent() {
    let more = Err(RejectReason::Attenuation);
    check_change(|c| c.depth_ceiling = 4, more);
    check_change(|c| c.depth_ceiling = 1, Ok(()));
    check_change(|c| c.expires_ms = Some(9_001), more);
    check_change(|c| c.expires_ms = None, more);
    check_change(|c| c.expires_ms = Some(8_999), Ok(()));
    // The child is one of its parent's replicas itself.
    check_change(|c| c.budget.replicas = Amount::of(1_000), more);
    for dimension in Dimension::ALL {
        for amount in [Amount::of(1_001), Amount::UNBOUNDED] {
            let raise = |c: &mut Payload| {
                let held = c.budget;
                c.budget = Budget::from_fn(|d| if d == dimension { amount } else { held.of(d) });
            };
            check_change(raise, more);
        }
    }
    check_change(|c| c.budget = Budget::ZERO, Ok(()));
}

#[test]
fn a_child_has_no_more_capability_than_its_parent() {
    let more = Err(RejectReason::Attenuation);
    let check = |change: fn(&mut Capability), expect| {
        check_change(|c| c.capability = narrowed(change), expect);
    };
    check(|c| c.filesystem.mode = FsMode::ReadOnly, Ok(()));
    check(|c| c.egress.clear(), Ok(()));
    check(|c| c.limits.memory_bytes = Some(1 << 20), Ok(()));
    check(|c| c.limits.memory_bytes = None, more);
    check(|c| c.limits.cpu_percent = Some(12.6), more);
    check(|c| c.filesystem.writable.push(rule("/srv", 1)), more);
    check(|c| c.filesystem.hidden.clear(), more);
    check(|c| c.egress[0].value.ports.clear(), more);
    check(|c| c.tools.allowed = None, more);
    check(
        |c| {
            c.permissions.insert(Permission::ReadEnv);
        },
        more,
    );
}

#[test]
fn the_same_rules_elsewhere_are_another_capability() {
    let mut elsewhere = places();
    elsewhere.work = "/home/u/other".into();
    let moved = CapabilityDocument::new(&capability(), &elsewhere).unwrap();
    check_change(
        |c| c.capability = moved.clone(),
        Err(RejectReason::Attenuation),
    );
}

#[test]
fn revoking_a_worker_revokes_those_below() {
    let (secret, keys) = quick();
    let chain = family(&secret, &keys);
    for (at, worker) in [1, 2, 3].into_iter().enumerate() {
        let mut revoked = Revocations::new();
        revoked.revoke(WorkerId::from_u128(worker));
        let fault = verify_chain(&chain, &keys, &revoked, EPOCH, NOW).unwrap_err();
        assert_eq!(
            (fault.at, fault.rejection.reason),
            (at, RejectReason::Revoked)
        );
    }
    let mut unrelated = Revocations::new();
    unrelated.revoke(WorkerId::from_u128(4));
    assert!(verify_chain(&chain, &keys, &unrelated, EPOCH, NOW).is_ok());
}

#[test]
fn a_new_epoch_revokes_everything() {
    let (secret, keys) = quick();
    let chain = family(&secret, &keys);
    let at = |revoked: &Revocations, epoch| {
        let fault = verify_chain(&chain, &keys, revoked, epoch, NOW).unwrap_err();
        assert_eq!((fault.at, fault.rejection.reason), (0, RejectReason::Epoch));
    };
    at(&Revocations::new(), EPOCH + 1);
    // A manifest of the future: the verifier's own state was set back.
    at(&Revocations::new(), EPOCH - 1);
    let mut revoked = Revocations::new();
    revoked.revoke_before(EPOCH);
    assert!(verify_chain(&chain, &keys, &revoked, EPOCH, NOW).is_ok());
    revoked.revoke_before(EPOCH + 1);
    revoked.revoke_before(EPOCH);
    assert_eq!(revoked.min_epoch(), EPOCH + 1, "it can't be lowered");
    at(&revoked, EPOCH);
}

#[test]
fn time_begins_and_ends_on_the_millisecond() {
    let (secret, keys) = quick();
    let chain = family(&secret, &keys);
    let at = |now| {
        verify_chain(&chain, &keys, &Revocations::new(), EPOCH, now)
            .map(|_| ())
            .map_err(|fault| fault.rejection.reason)
    };
    assert_eq!(at(999), Err(RejectReason::NotYetValid));
    assert_eq!(at(1_000), Ok(()));
    assert_eq!(at(8_999), Ok(()));
    assert_eq!(at(9_000), Err(RejectReason::Expired));
    assert_eq!(at(u64::MAX), Err(RejectReason::Expired));
}

#[test]
fn a_chain_is_as_good_as_its_worst_key() {
    let (old, new) = (secret(), SecretKey::ed25519(&[9; 32]));
    let mut keys = keyset(&old);
    let mut chain = family(&old, &keys);
    keys.rotate(&new.identity(), 0, None, PreviousKey::Retire)
        .unwrap();
    // Signed across a rotation.
    let parent = chain[1].open(&keys).unwrap();
    chain[2] = seal(&child_of(&parent, 3), &new);
    assert!(verify_chain(&chain, &keys, &Revocations::new(), EPOCH, NOW).is_ok());
    let mut distrusting = keys.clone();
    distrusting.compromise(old.id()).unwrap();
    assert_eq!(
        fault(&chain, &distrusting),
        (0, RejectReason::KeyCompromised)
    );
    keys.compromise(new.id()).unwrap();
    assert_eq!(fault(&chain, &keys), (2, RejectReason::KeyCompromised));
}

/// What a child asks for, often more than there is.
#[derive(Clone, Debug)]
struct Wish {
    depth_ceiling: u32,
    expires_ms: Option<u64>,
    amounts: [Option<u64>; 6],
    mode: FsMode,
    memory: Option<u64>,
    spawn: bool,
    readable: Vec<&'static str>,
}

fn wishes() -> impl Strategy<Value = Wish> {
    let amount = || prop_oneof![4 => (0..12_u64).prop_map(Some), 1 => Just(None)];
    let modes = vec![FsMode::None, FsMode::ReadOnly, FsMode::ReadWrite];
    let paths = vec!["/srv", "/srv/data", "~/x"];
    (
        3..7_u32,
        prop_oneof![4 => (2_500..2_504_u64).prop_map(Some), 1 => Just(None)],
        proptest::array::uniform6(amount()),
        proptest::sample::select(modes),
        prop_oneof![4 => (1..4_u64).prop_map(Some), 1 => Just(None)],
        any::<bool>(),
        proptest::sample::subsequence(paths, 0..=2),
    )
        .prop_map(
            |(depth_ceiling, expires_ms, amounts, mode, memory, spawn, readable)| Wish {
                depth_ceiling,
                expires_ms,
                amounts,
                mode,
                memory,
                spawn,
                readable,
            },
        )
}

impl Wish {
    /// `keep` is a mask of what is taken over from the parent: without it hardly any wish is granted.
    fn apply(&self, payload: &mut Payload, keep: u8) {
        let wants = |bit: u8| keep & (1 << bit) == 0;
        if wants(0) {
            payload.depth_ceiling = self.depth_ceiling.max(payload.depth);
        }
        if wants(1) {
            payload.expires_ms = self.expires_ms;
        }
        if wants(2) {
            let mut amounts = self.amounts.into_iter();
            payload.budget = Budget::from_fn(|_| amounts.next().unwrap().into());
        }
        if wants(3) {
            let mut capability = payload.capability.capability().clone();
            capability.filesystem.mode = self.mode;
            capability.limits.memory_bytes = self.memory;
            capability.permissions.clear();
            capability
                .permissions
                .extend(self.spawn.then_some(Permission::SpawnSubprocess));
            let paths = self.readable.iter();
            capability.filesystem.readable = paths.map(|path| rule(path, 1)).collect();
            payload.capability = document(&capability);
        }
    }
}

/// Compared by hand, so that this does not lean on what it tests.
fn assert_no_more(root: &Payload, leaf: &Payload) {
    let most = |expires: Option<u64>| expires.unwrap_or(u64::MAX);
    assert!(leaf.depth_ceiling <= root.depth_ceiling);
    assert!(most(leaf.expires_ms) <= most(root.expires_ms));
    for dimension in Dimension::ALL {
        let amount = |payload: &Payload| payload.budget.of(dimension).number();
        assert!(most(amount(leaf)) <= most(amount(root)), "{dimension:?}");
    }
    let below = u64::from(leaf.depth - root.depth);
    if let Some(replicas) = root.budget.replicas.number() {
        assert!(below <= replicas, "each generation takes a replica");
    }
    let (above, below) = (root.capability.capability(), leaf.capability.capability());
    assert!(below.permissions.is_subset(&above.permissions));
    assert!(most(below.limits.memory_bytes) <= most(above.limits.memory_bytes));
    assert!(above.attenuate(below, &places()).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_links_raises_anything(
        first in wishes(),
        asked in proptest::collection::vec((wishes(), any::<u8>()), 1..8),
    ) {
        let (secret, keys) = quick();
        let mut start = root();
        first.apply(&mut start, 0);
        let mut chain = vec![seal(&start, &secret)];
        let mut parent = chain[0].open(&keys).unwrap();
        for (number, (wish, keep)) in asked.iter().enumerate() {
            let above = parent.payload();
            if above.depth == above.depth_ceiling || above.budget.replicas == Amount::ZERO {
                break;
            }
            let mut child = child_of(&parent, 2 + number as u128);
            wish.apply(&mut child, *keep);
            let envelope = seal(&child, &secret);
            let child = envelope.open(&keys).unwrap();
            if check_link(&parent, &child).is_ok() {
                assert_no_more(parent.payload(), child.payload());
                assert_no_more(&start, child.payload());
                chain.push(envelope);
                parent = child;
            }
        }
        let verified = verify_chain(&chain, &keys, &Revocations::new(), EPOCH, NOW).unwrap();
        prop_assert_eq!(verified.leaf(), &parent);
    }
}
