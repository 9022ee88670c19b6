//! What is said counts for one proposal, one tree, one person, for a while; and nothing else does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use belljar_gate::keyring::KeySource;
use belljar_manifest::keys::SecretKey;

use super::totp::{STEP_S, TotpSecret};
use super::*;
use crate::proposal::{Digests, ProposalId, Risk};

const NOW: u64 = 1_800_000_000;
const HOUR: u64 = 3600;

struct Office {
    state: tempfile::TempDir,
    desk: Desk,
}

fn key(seed: u8) -> SecretKey {
    SecretKey::ed25519(&[seed; 32])
}

fn office(names: &[(&str, u8)]) -> Office {
    let state = tempfile::tempdir().unwrap();
    let desk = Desk::of(state.path(), KeySource::Directory);
    for (name, seed) in names {
        desk.add(name, key(*seed).public_key().unwrap(), NOW)
            .unwrap();
    }
    Office { state, desk }
}

fn id() -> ProposalId {
    ProposalId::new("ab".repeat(32)).unwrap()
}

fn subject(risk: Risk) -> Subject {
    Subject {
        proposal: id().to_string(),
        proposer: Proposer {
            name: Some("worker-7".into()),
            key: None,
        },
        risk,
        digests: Digests {
            base_tree: "1".repeat(64),
            candidate_tree: "2".repeat(64),
            evidence: "3".repeat(64),
            policy: "4".repeat(64),
        },
    }
}

fn opinion(verdict: Verdict, reviewer: &str) -> Opinion<'_> {
    Opinion {
        verdict,
        reviewer,
        code: None,
        reasons: vec![Reason::Tests],
        text: String::new(),
        lifetime_s: HOUR,
    }
}

impl Office {
    fn say(
        &self,
        subject: &Subject,
        opinion: Opinion<'_>,
        seed: u8,
        now: u64,
    ) -> Result<Envelope, ReviewError> {
        let policy = ReviewPolicy::default();
        self.desk
            .say(&id(), subject, &policy, opinion, &key(seed), now)
    }

    fn approve(&self, subject: &Subject, who: &str, seed: u8) -> Result<Envelope, ReviewError> {
        self.say(subject, opinion(Verdict::Approve, who), seed, NOW)
    }

    fn standing(&self, subject: &Subject, now: u64) -> Standing {
        self.desk
            .standing(&id(), subject, &ReviewPolicy::default(), now)
            .unwrap()
    }

    fn enrol(&self, who: &str) -> TotpSecret {
        let secret = self.desk.enrol(who).unwrap();
        let then = NOW - 10 * STEP_S;
        let code = format!("{:06}", secret.code(then / STEP_S));
        self.desk.confirm(who, &code, then).unwrap();
        secret
    }
}

fn voids(standing: Standing) -> Vec<Void> {
    match standing {
        Standing::Waiting { void, .. } => void.into_iter().map(|(_, why)| why).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_person_is_enough_for_high_and_none_is_needed_for_low() {
    let office = office(&[("ada", 1)]);
    let high = subject(Risk::High);
    assert!(matches!(
        office.standing(&high, NOW),
        Standing::Waiting { needed: 1, .. }
    ));
    office.approve(&high, "ada", 1).unwrap();
    let Standing::Approved(approved) = office.standing(&high, NOW) else {
        panic!("not approved");
    };
    assert_eq!(approved.by().len(), 1);
    assert!(approved.is_good(NOW + HOUR - 1) && !approved.is_good(NOW + HOUR));
    assert!(matches!(
        office.standing(&subject(Risk::Low), NOW),
        Standing::Approved(_)
    ));
}

#[test]
fn an_approval_is_void_when_any_digest_differs() {
    let office = office(&[("ada", 1)]);
    let approved = subject(Risk::High);
    office.approve(&approved, "ada", 1).unwrap();
    type Change = fn(&mut Digests);
    let changes: [(&str, Change); 4] = [
        ("base_tree", |d| d.base_tree = "a".repeat(64)),
        ("candidate_tree", |d| d.candidate_tree = "a".repeat(64)),
        ("evidence", |d| d.evidence = "a".repeat(64)),
        ("policy", |d| d.policy = "a".repeat(64)),
    ];
    for (part, change) in changes {
        let mut other = approved.clone();
        change(&mut other.digests);
        assert_eq!(voids(office.standing(&other, NOW)), [Void::Changed(part)]);
    }
}

#[test]
fn an_approval_put_beside_another_proposal_is_void() {
    let office = office(&[("ada", 1)]);
    let said = office.approve(&subject(Risk::High), "ada", 1).unwrap();
    let mut other = subject(Risk::High);
    other.proposal = "cd".repeat(32);
    let reviewers = office.desk.reviewers().unwrap();
    let standing = judge(&other, &[said], &reviewers, &ReviewPolicy::default(), NOW);
    assert_eq!(voids(standing), [Void::OtherProposal]);
}

#[test]
fn approvals_expire_and_never_last_longer_than_the_policy_allows() {
    let office = office(&[("ada", 1)]);
    let high = subject(Risk::High);
    let long = Opinion {
        lifetime_s: 73 * HOUR,
        ..opinion(Verdict::Approve, "ada")
    };
    let refused = office.say(&high, long, 1, NOW);
    assert!(matches!(refused, Err(ReviewError::Void(Void::TooLong))));
    office.approve(&high, "ada", 1).unwrap();
    assert!(matches!(
        office.standing(&high, NOW + HOUR - 1),
        Standing::Approved(_)
    ));
    assert_eq!(voids(office.standing(&high, NOW + HOUR)), [Void::Expired]);
    assert_eq!(voids(office.standing(&high, NOW - HOUR)), [Void::Future]);
}

#[test]
fn nobody_approves_what_they_proposed_by_name_or_by_key() {
    let office = office(&[("ada", 1)]);
    let mut own = subject(Risk::Medium);
    own.proposer.name = Some(" Ada".into());
    let refused = office.approve(&own, "ada", 1);
    assert!(matches!(refused, Err(ReviewError::Void(Void::OwnProposal))));
    own.proposer.name = Some("somebody".into());
    own.proposer.key = Some(key(1).id().to_string());
    let refused = office.approve(&own, "ada", 1);
    assert!(matches!(refused, Err(ReviewError::Void(Void::OwnProposal))));
    assert!(office.desk.said(&id()).unwrap().is_empty());
}

#[test]
fn a_proposer_who_gives_no_name_may_be_any_reviewer_so_one_more_is_needed() {
    let office = office(&[("ada", 1), ("bob", 2)]);
    let mut unnamed = subject(Risk::High);
    unnamed.proposer.name = None;
    office.approve(&unnamed, "ada", 1).unwrap();
    assert!(matches!(
        office.standing(&unnamed, NOW),
        Standing::Waiting { needed: 2, .. }
    ));
    office.approve(&unnamed, "bob", 2).unwrap();
    assert!(matches!(
        office.standing(&unnamed, NOW),
        Standing::Approved(_)
    ));
}

#[test]
fn a_revoked_reviewer_says_nothing_and_what_they_said_is_void() {
    let office = office(&[("ada", 1)]);
    let high = subject(Risk::High);
    office.approve(&high, "ada", 1).unwrap();
    office.desk.revoke("ada", NOW + 1).unwrap();
    assert_eq!(voids(office.standing(&high, NOW + 1)), [Void::Revoked]);
    let again = office.approve(&high, "ada", 1);
    assert!(matches!(again, Err(ReviewError::Void(Void::Revoked))));
}

#[test]
fn critical_needs_two_people_each_with_a_second_factor() {
    let office = office(&[("ada", 1), ("bob", 2)]);
    let critical = subject(Risk::Critical);
    let without = office.approve(&critical, "ada", 1);
    assert!(matches!(
        without,
        Err(ReviewError::Void(Void::NoSecondFactor))
    ));
    let mut said = 0;
    for (who, seed) in [("ada", 1), ("bob", 2)] {
        let secret = office.enrol(who);
        let code = format!("{:06}", secret.code(NOW / STEP_S));
        let with = Opinion {
            code: Some(&code),
            ..opinion(Verdict::Approve, who)
        };
        office.say(&critical, with.clone(), seed, NOW).unwrap();
        // The same code again, for the same thing.
        let again = office.say(&critical, with, seed, NOW);
        assert!(matches!(
            again,
            Err(ReviewError::Totp(totp::TotpError::Used))
        ));
        said += 1;
        let approved = matches!(office.standing(&critical, NOW), Standing::Approved(_));
        assert_eq!(approved, said == 2);
    }
}

#[test]
fn one_person_with_two_codes_is_still_one_person() {
    let office = office(&[("ada", 1)]);
    let critical = subject(Risk::Critical);
    let secret = office.enrol("ada");
    for step in [NOW / STEP_S, NOW / STEP_S + 1] {
        let code = format!("{:06}", secret.code(step));
        let with = Opinion {
            code: Some(&code),
            ..opinion(Verdict::Approve, "ada")
        };
        office.say(&critical, with, 1, NOW).unwrap();
    }
    assert_eq!(voids(office.standing(&critical, NOW)), [Void::Again]);
}

#[test]
fn a_second_factor_that_was_only_claimed_for_another_time_is_void() {
    let office = office(&[("ada", 1)]);
    let critical = subject(Risk::Critical);
    let statement = Statement {
        v: 1,
        verdict: Verdict::Approve,
        proposal: critical.proposal.clone(),
        reviewer: ReviewerName::new("ada").unwrap(),
        digests: critical.digests.clone(),
        issued_s: NOW,
        expires_s: NOW + HOUR,
        second_factor: Some(NOW / STEP_S - 5),
        reasons: vec![],
        text: String::new(),
    };
    let envelope = Envelope::sign(&statement, &key(1)).unwrap();
    let reviewers = office.desk.reviewers().unwrap();
    let standing = judge(
        &critical,
        &[envelope],
        &reviewers,
        &ReviewPolicy::default(),
        NOW,
    );
    assert_eq!(voids(standing), [Void::StaleSecondFactor]);
}

#[test]
fn signatures_are_checked_and_belong_to_their_reviewer() {
    let office = office(&[("ada", 1), ("bob", 2)]);
    let high = subject(Risk::High);
    let said = office.approve(&high, "ada", 1).unwrap();
    let reviewers = office.desk.reviewers().unwrap();
    let judged = |text: &str| {
        let envelope = serde_json::from_str(text).unwrap();
        voids(judge(
            &high,
            &[envelope],
            &reviewers,
            &ReviewPolicy::default(),
            NOW,
        ))
    };
    let text = serde_json::to_string(&said).unwrap();
    let (ada, bob) = (key(1).id().to_string(), key(2).id().to_string());
    assert_eq!(judged(&text.replace(&ada, &bob)), [Void::Signature]);
    assert_eq!(
        judged(&text.replace(&ada, "0123456789abcdef")),
        [Void::UnknownKey]
    );
    assert_eq!(
        judged(&text.replace("review.v1", "review.v2")),
        [Void::Signature]
    );
    // Bob's key under Ada's name.
    let mut statement = said.open(&key(1).public_key().unwrap()).unwrap();
    let forged = Envelope::sign(&statement, &key(2)).unwrap();
    assert_eq!(
        judged(&serde_json::to_string(&forged).unwrap()),
        [Void::OtherReviewer]
    );
    statement.text = "changed".into();
    let other = Envelope::sign(&statement, &key(1)).unwrap();
    let payload = |envelope: &Envelope| {
        serde_json::to_value(envelope).unwrap()["payload"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let swapped = text.replace(&payload(&said), &payload(&other));
    assert_eq!(judged(&swapped), [Void::Signature]);
}

#[test]
fn a_rejection_stands_for_its_tree_and_has_a_reason() {
    let office = office(&[("ada", 1), ("bob", 2)]);
    let high = subject(Risk::High);
    let bare = Opinion {
        reasons: vec![],
        ..opinion(Verdict::Reject, "ada")
    };
    assert!(matches!(
        office.say(&high, bare, 1, NOW),
        Err(ReviewError::NoReason)
    ));
    office
        .say(&high, opinion(Verdict::Reject, "ada"), 1, NOW)
        .unwrap();
    assert!(matches!(
        office.standing(&high, NOW),
        Standing::Rejected { .. }
    ));
    assert!(matches!(
        office.approve(&high, "bob", 2),
        Err(ReviewError::Rejected(_))
    ));
    // Neither time nor the reviewer's own end turns it into a yes.
    office.desk.revoke("ada", NOW).unwrap();
    assert!(matches!(
        office.standing(&high, NOW + 100 * HOUR),
        Standing::Rejected { .. }
    ));
    let mut low = high;
    low.risk = Risk::Low;
    assert!(matches!(
        office.standing(&low, NOW),
        Standing::Rejected { .. }
    ));
}

#[test]
fn a_statement_that_can_not_be_read_is_an_error_and_not_silence() {
    let office = office(&[("ada", 1)]);
    let high = subject(Risk::High);
    office
        .say(&high, opinion(Verdict::Reject, "ada"), 1, NOW)
        .unwrap();
    let file = office
        .state
        .path()
        .join("evolve/reviews")
        .join(id().as_str())
        .join("000.json");
    std::fs::write(file, "{").unwrap();
    assert!(office.desk.said(&id()).is_err());
}

#[test]
fn a_key_of_somebody_else_does_not_sign_for_a_reviewer() {
    let office = office(&[("ada", 1), ("bob", 2)]);
    let refused = office.approve(&subject(Risk::High), "ada", 2);
    assert!(matches!(refused, Err(ReviewError::WrongKey(_))));
}

#[test]
fn a_policy_may_ask_for_more_and_never_for_less() {
    let strict = ReviewPolicy {
        low: 1,
        second_factor_from: Risk::High,
        ..ReviewPolicy::default()
    };
    assert!(strict.checked().is_ok());
    for lax in [
        ReviewPolicy {
            critical: 1,
            ..ReviewPolicy::default()
        },
        ReviewPolicy {
            medium: 0,
            ..ReviewPolicy::default()
        },
        ReviewPolicy {
            lifetime_hours: 24 * 31,
            ..ReviewPolicy::default()
        },
    ] {
        assert!(lax.checked().is_err());
    }
}

#[test]
fn everything_is_on_record_before_it_counts() {
    let office = office(&[("ada", 1)]);
    // A log that can't be written: nothing is approved.
    let ledger = office.state.path().join("ledger");
    std::fs::rename(&ledger, office.state.path().join("away")).unwrap();
    std::fs::write(&ledger, "").unwrap();
    let refused = office.approve(&subject(Risk::High), "ada", 1);
    assert!(matches!(refused, Err(ReviewError::Log(_))));
    assert!(office.desk.said(&id()).unwrap().is_empty());
}
