//! Whether what people said is enough. Pure: the caller brings the statements, the reviewers and the time.

use belljar_manifest::keys::KeyId;
use serde::{Deserialize, Serialize};

use super::registry::{Registry, ReviewerName};
use super::statement::{Envelope, Reason, Statement, Verdict, difference};
use super::totp::{DRIFT_STEPS, STEP_S};
use crate::proposal::{Digests, Proposal, Risk};

/// A statement from the future counts if it is no further ahead: clocks differ.
const MOST_AHEAD_S: u64 = 60;

/// What stands before the number of a user who proposed something and did not say which reviewer they are.
pub const UNNAMED: &str = "user";

/// Who proposed a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposer {
    /// An agent's or a person's name; nothing for a person who did not say which reviewer they are.
    pub name: Option<String>,
    /// The key that signed the proposal, if one did.
    pub key: Option<String>,
}

impl Proposer {
    /// Whether this is the same person, by name or by key. Names are compared without case: no one gets around it
    /// by calling themselves `Ada`.
    fn is(&self, name: &ReviewerName, key: KeyId) -> bool {
        let is_named = |own: &String| own.trim().eq_ignore_ascii_case(name.as_str());
        self.name.as_ref().is_some_and(is_named) || self.key.as_deref() == Some(&key.to_string())
    }
}

/// What is to be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The proposal.
    pub proposal: String,
    /// Who made it.
    pub proposer: Proposer,
    /// How risky it is, as computed.
    pub risk: Risk,
    /// What it is.
    pub digests: Digests,
}

impl Subject {
    /// A proposal, and what was found out about it.
    #[must_use]
    pub fn of(proposal: &Proposal, digests: Digests) -> Self {
        let (kind, name) = proposal.by.split_once(':').unwrap_or(("", &proposal.by));
        Self {
            proposal: proposal.id.to_string(),
            proposer: Proposer {
                name: (kind != UNNAMED).then(|| name.to_owned()),
                key: None,
            },
            risk: proposal.risk,
            digests,
        }
    }
}

/// How many people must say yes. What a project may change, it may only make stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReviewPolicy {
    /// For low risk.
    pub low: u8,
    /// For medium risk.
    pub medium: u8,
    /// For high risk.
    pub high: u8,
    /// For critical risk.
    pub critical: u8,
    /// The lowest risk that asks for a second factor of everybody who approves.
    pub second_factor_from: Risk,
    /// The longest that an approval counts.
    pub lifetime_hours: u32,
}

impl Default for ReviewPolicy {
    fn default() -> Self {
        Self {
            low: 0,
            medium: 1,
            high: 1,
            critical: 2,
            second_factor_from: Risk::Critical,
            lifetime_hours: 72,
        }
    }
}

/// A project asks for less review than there must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` of the review policy may not be less strict than its default")]
pub struct TooLax(pub &'static str);

impl ReviewPolicy {
    /// The policy, if it is at least as strict as the default one.
    ///
    /// # Errors
    /// The first setting that is not.
    pub fn checked(self) -> Result<Self, TooLax> {
        let least = Self::default();
        let lax = [
            ("medium", self.medium < least.medium),
            ("high", self.high < least.high),
            ("critical", self.critical < least.critical),
            (
                "second_factor_from",
                self.second_factor_from > least.second_factor_from,
            ),
            (
                "lifetime_hours",
                self.lifetime_hours > 24 * 30 || self.lifetime_hours == 0,
            ),
        ];
        match lax.into_iter().find(|(_, is_lax)| *is_lax) {
            Some((name, _)) => Err(TooLax(name)),
            None => Ok(self),
        }
    }

    /// How many people a risk asks for.
    #[must_use]
    pub fn people(&self, risk: Risk) -> usize {
        usize::from(match risk {
            Risk::Low => self.low,
            Risk::Medium => self.medium,
            Risk::High => self.high,
            Risk::Critical => self.critical,
        })
    }

    /// Whether a risk asks for a second factor.
    #[must_use]
    pub fn asks_second_factor(&self, risk: Risk) -> bool {
        risk >= self.second_factor_from
    }
}

/// Why a statement does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Void {
    /// Nobody's key.
    #[error("it is signed by a key that no reviewer has")]
    UnknownKey,
    /// Not the key's signature, or not in our form.
    #[error("its signature is not the key's")]
    Signature,
    /// Somebody's statement under somebody else's key.
    #[error("it names another reviewer than the one whose key signed it")]
    OtherReviewer,
    /// The reviewer was revoked.
    #[error("its reviewer was revoked")]
    Revoked,
    /// Said about something else.
    #[error("it is about another proposal")]
    OtherProposal,
    /// Something changed since.
    #[error("the {0} is not the one it was given for")]
    Changed(&'static str),
    /// Too old.
    #[error("it has expired")]
    Expired,
    /// It counts longer than anything may.
    #[error("it says it counts longer than an approval may")]
    TooLong,
    /// From the future.
    #[error("it was given in the future")]
    Future,
    /// By the one who proposed it.
    #[error("nobody approves what they proposed")]
    OwnProposal,
    /// Without the second factor that is asked for.
    #[error("it came without a second factor, which this risk asks for")]
    NoSecondFactor,
    /// With one of another time.
    #[error("its second factor is of another time")]
    StaleSecondFactor,
    /// One person counts once.
    #[error("its reviewer has approved already")]
    Again,
}

/// Proof that enough people approved exactly this. It has no public constructor.
#[derive(Debug)]
pub struct Approved {
    proposal: String,
    digests: Digests,
    by: Vec<ReviewerName>,
    until_s: u64,
}

impl Approved {
    /// The proposal.
    #[must_use]
    pub fn proposal(&self) -> &str {
        &self.proposal
    }

    /// What was approved.
    #[must_use]
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// By whom; by nobody when the risk asks for nobody.
    #[must_use]
    pub fn by(&self) -> &[ReviewerName] {
        &self.by
    }

    /// When it ends, in seconds since 1970; never where it asks for nobody.
    #[must_use]
    pub fn until_s(&self) -> Option<u64> {
        (self.until_s != u64::MAX).then_some(self.until_s)
    }

    /// Whether it still counts.
    #[must_use]
    pub fn is_good(&self, now_s: u64) -> bool {
        now_s < self.until_s
    }
}

/// How a proposal stands with the people.
#[derive(Debug)]
pub enum Standing {
    /// Enough of them said yes.
    Approved(Approved),
    /// Somebody said no, and that is enough.
    Rejected {
        /// Who.
        by: ReviewerName,
        /// Why.
        reasons: Vec<Reason>,
        /// In words.
        text: String,
    },
    /// More of them are needed.
    Waiting {
        /// Who said yes.
        by: Vec<ReviewerName>,
        /// How many must.
        needed: usize,
        /// What was said and does not count, and why.
        void: Vec<(Option<ReviewerName>, Void)>,
    },
}

impl Standing {
    /// What people took back, if they did: somebody rejected it, or who approved it may not any more. That an approval ran out is
    /// neither.
    #[must_use]
    pub fn withdrawn(&self) -> Option<Withdrawal> {
        match self {
            Self::Approved(_) => None,
            Self::Rejected { by, reasons, text } => {
                let reasons: Vec<&str> = reasons.iter().map(|one| one.as_str()).collect();
                let text = match text.is_empty() {
                    true => String::new(),
                    false => format!(": {text}"),
                };
                let why = format!("{by} rejected it ({}){text}", reasons.join(", "));
                Some(Withdrawal::Rejected(why))
            }
            Self::Waiting { void, .. } => {
                let (who, _) = void.iter().find(|(_, why)| *why == Void::Revoked)?;
                let who = who.as_ref().map_or("somebody", ReviewerName::as_str);
                let why = format!("{who}, who approved it, was revoked");
                Some(Withdrawal::Revoked(why))
            }
        }
    }
}

/// How people took an approval back, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// Somebody said no, which is for good.
    Rejected(String),
    /// Somebody who said yes is no reviewer any more: what is done stays done.
    Revoked(String),
}

/// Looks at one statement. Everything but the verdict, the reviewer's right and the second factor is the same for all.
fn read<'r>(
    subject: &Subject,
    envelope: &Envelope,
    reviewers: &'r Registry,
) -> Result<(Statement, &'r super::registry::Reviewer), Void> {
    let key = envelope.key().ok_or(Void::Signature)?;
    let reviewer = reviewers.with_key(key).ok_or(Void::UnknownKey)?;
    let statement = envelope.open(&reviewer.key).ok_or(Void::Signature)?;
    if statement.reviewer != reviewer.name {
        return Err(Void::OtherReviewer);
    }
    if statement.proposal != subject.proposal {
        return Err(Void::OtherProposal);
    }
    Ok((statement, reviewer))
}

/// Whether a statement that says yes counts.
fn counts(
    subject: &Subject,
    statement: &Statement,
    reviewer: &super::registry::Reviewer,
    policy: &ReviewPolicy,
    now_s: u64,
) -> Result<(), Void> {
    if reviewer.revoked_s.is_some() {
        return Err(Void::Revoked);
    }
    if let Some(part) = difference(&statement.digests, &subject.digests) {
        return Err(Void::Changed(part));
    }
    if statement.issued_s > now_s + MOST_AHEAD_S {
        return Err(Void::Future);
    }
    if now_s >= statement.expires_s {
        return Err(Void::Expired);
    }
    let longest = u64::from(policy.lifetime_hours) * 3600;
    if statement.expires_s.saturating_sub(statement.issued_s) > longest {
        return Err(Void::TooLong);
    }
    if subject.proposer.is(&reviewer.name, reviewer.key.id()) {
        return Err(Void::OwnProposal);
    }
    match statement.second_factor {
        None if policy.asks_second_factor(subject.risk) => Err(Void::NoSecondFactor),
        Some(step) if step.abs_diff(statement.issued_s / STEP_S) > DRIFT_STEPS => {
            Err(Void::StaleSecondFactor)
        }
        _ => Ok(()),
    }
}

/// Whether one envelope would count as an approval, taken by itself.
///
/// # Errors
/// Why it does not.
pub fn would_count(
    subject: &Subject,
    envelope: &Envelope,
    reviewers: &Registry,
    policy: &ReviewPolicy,
    now_s: u64,
) -> Result<(), Void> {
    let (statement, reviewer) = read(subject, envelope, reviewers)?;
    counts(subject, &statement, reviewer, policy, now_s)
}

/// Judges what was said. A rejection of the same tree stands whatever else was said, and whatever became of who gave it.
#[must_use]
pub fn judge(
    subject: &Subject,
    said: &[Envelope],
    reviewers: &Registry,
    policy: &ReviewPolicy,
    now_s: u64,
) -> Standing {
    let mut by = Vec::new();
    let mut void = Vec::new();
    let mut until_s = u64::MAX;
    for envelope in said {
        let (statement, reviewer) = match read(subject, envelope, reviewers) {
            Ok(read) => read,
            Err(why) => {
                let who = envelope.key().and_then(|key| reviewers.with_key(key));
                void.push((who.map(|one| one.name.clone()), why));
                continue;
            }
        };
        match statement.verdict {
            Verdict::Comment => {}
            Verdict::Reject => {
                if statement.digests.candidate_tree == subject.digests.candidate_tree {
                    return Standing::Rejected {
                        by: reviewer.name.clone(),
                        reasons: statement.reasons,
                        text: statement.text,
                    };
                }
            }
            Verdict::Approve => match counts(subject, &statement, reviewer, policy, now_s) {
                Ok(()) if by.contains(&reviewer.name) => {
                    void.push((Some(reviewer.name.clone()), Void::Again));
                }
                Ok(()) => {
                    by.push(reviewer.name.clone());
                    until_s = until_s.min(statement.expires_s);
                }
                Err(why) => void.push((Some(reviewer.name.clone()), why)),
            },
        }
    }
    let needed = match policy.people(subject.risk) {
        // One of them may be who proposed it.
        people @ 1.. if subject.proposer.name.is_none() => people + 1,
        people => people,
    };
    if by.len() < needed {
        return Standing::Waiting { by, needed, void };
    }
    Standing::Approved(Approved {
        proposal: subject.proposal.clone(),
        digests: subject.digests.clone(),
        by,
        until_s,
    })
}
