//! Where reviewers are kept and statements are given: checked, signed, recorded, and only then kept.

use std::path::{Path, PathBuf};

use belljar_gate::keyring::KeySource;
use belljar_gate::record::RunEvent;
use belljar_gate::{Durability, LogError, RunGate};
use belljar_manifest::keys::{PublicKey, SecretKey};

use super::registry::{InvalidName, Registry, RegistryError, Reviewer, ReviewerName};
use super::standing::{ReviewPolicy, Standing, Subject, Void, judge, would_count};
use super::statement::{
    Envelope, MOST_ENVELOPE_BYTES, MOST_TEXT_BYTES, Reason, SignError, Statement, Verdict,
};
use super::totp::{Totp, TotpError, TotpSecret};
use crate::disk;
use crate::proposal::ProposalId;

/// The most statements about one proposal.
const MOST_STATEMENTS: usize = 256;

/// What somebody has to say.
#[derive(Clone, Debug)]
pub struct Opinion<'a> {
    /// Yes, no, or neither.
    pub verdict: Verdict,
    /// Who says it.
    pub reviewer: &'a str,
    /// A code of their second factor.
    pub code: Option<&'a str>,
    /// Why, when it is no.
    pub reasons: Vec<Reason>,
    /// In words.
    pub text: String,
    /// How long it counts, in seconds.
    pub lifetime_s: u64,
}

/// Why nothing was said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReviewError {
    /// The list of reviewers.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The second factor.
    #[error(transparent)]
    Totp(#[from] TotpError),
    /// It would not count.
    #[error("this would not count: {0}")]
    Void(Void),
    /// The key is another person's, or nobody's.
    #[error("the key is not {0}'s")]
    WrongKey(String),
    /// Somebody rejected it.
    #[error("{0} has rejected it")]
    Rejected(ReviewerName),
    /// A rejection without a reason, from which nobody learns.
    #[error("a rejection says why")]
    NoReason,
    /// Too much of it.
    #[error(
        "that is more than a review may hold: {MOST_TEXT_BYTES} bytes, {MOST_STATEMENTS} statements"
    )]
    TooMuch,
    /// It can't be signed.
    #[error("it can't be signed")]
    Sign(#[from] SignError),
    /// It can't be recorded, so it does not count.
    #[error("it can't be put on record")]
    Log(#[from] LogError),
    /// It can't be kept.
    #[error("{path} can't be used")]
    File {
        /// What.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl ReviewError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Registry(error) => error.hint().to_owned(),
            Self::Totp(error) => error.hint().to_owned(),
            Self::Log(error) => error.hint(),
            Self::Name(_) => "`ada` say".to_owned(),
            Self::Void(Void::OwnProposal) => "somebody else has to look at it".to_owned(),
            Self::Void(Void::NoSecondFactor) => {
                "give the code that your authenticator shows: --code 123456".to_owned()
            }
            Self::Void(Void::Revoked) => "`belljar reviewer list` says since when".to_owned(),
            Self::Void(_) => "look at it again: `belljar evolve review ID`".to_owned(),
            Self::WrongKey(_) => "give the file with your own key: --key FILE".to_owned(),
            Self::Rejected(_) => "a changed proposal is a new one; propose it".to_owned(),
            Self::NoReason => "give one or more: --reason tests, --reason scope, …".to_owned(),
            Self::TooMuch => "say it in fewer words".to_owned(),
            Self::Sign(_) => "make a key with `belljar reviewer add NAME --key FILE`".to_owned(),
            Self::File { .. } => "run it as the user whose state directory it is".to_owned(),
        }
    }
}

/// Reads a reviewer's key from a file that nobody else may read.
///
/// # Errors
/// When it is not there, exposed, or no key.
pub fn read_key(path: &Path) -> Result<SecretKey, ReviewError> {
    let failed = |source| ReviewError::File {
        path: path.to_owned(),
        source,
    };
    if !disk::is_private(path).map_err(failed)? {
        return Err(failed(std::io::Error::other(
            "others may read it: chmod 600 it, or use another key",
        )));
    }
    let bytes = disk::read_bounded(path, 1024)
        .map_err(failed)?
        .unwrap_or_default();
    let bytes = zeroize::Zeroizing::new(bytes);
    SecretKey::parse(&bytes).map_err(|error| failed(std::io::Error::other(error)))
}

/// Makes a key and writes it to a new file that nobody else may read.
///
/// # Errors
/// When something is there already, or the disk refuses.
pub fn make_key(path: &Path) -> Result<SecretKey, ReviewError> {
    let failed = |source| ReviewError::File {
        path: path.to_owned(),
        source,
    };
    let seed = disk::random().map_err(failed)?;
    let key = SecretKey::ed25519(&seed);
    disk::create(path, key.to_text().as_bytes()).map_err(failed)?;
    Ok(key)
}

/// The reviewers of a state directory, and what they said.
#[derive(Clone, Debug)]
pub struct Desk {
    state: PathBuf,
    source: KeySource,
}

impl Desk {
    /// The desk of this state directory. `source` is where the key is that signs the record.
    #[must_use]
    pub fn of(state: &Path, source: KeySource) -> Self {
        Self {
            state: state.to_owned(),
            source,
        }
    }

    fn reviewers_file(&self) -> PathBuf {
        self.state.join("evolve/reviewers/reviewers.json")
    }

    /// The second factors.
    #[must_use]
    pub fn totp(&self) -> Totp {
        Totp::at(&self.state.join("evolve/reviewers/factors"))
    }

    fn statements(&self, proposal: &ProposalId) -> PathBuf {
        self.state.join("evolve/reviews").join(proposal.as_str())
    }

    /// Everybody who may, or once might, review.
    ///
    /// # Errors
    /// When that can't be read.
    pub fn reviewers(&self) -> Result<Registry, RegistryError> {
        Registry::load(&self.reviewers_file())
    }

    /// How much review there must be: the operator's `evolve/review.toml`, where there is one.
    ///
    /// # Errors
    /// When it can't be read, or asks for less than there must be.
    pub fn policy(&self) -> Result<ReviewPolicy, ReviewError> {
        let path = self.state.join("evolve/review.toml");
        let failed = |source| ReviewError::File {
            path: path.clone(),
            source,
        };
        let Some(bytes) = disk::read_bounded(&path, 64 * 1024).map_err(failed)? else {
            return Ok(ReviewPolicy::default());
        };
        let policy: ReviewPolicy =
            toml::from_slice(&bytes).map_err(|error| failed(std::io::Error::other(error)))?;
        policy
            .checked()
            .map_err(|error| failed(std::io::Error::other(error)))
    }

    fn note(&self, event: RunEvent) -> Result<u64, LogError> {
        RunGate::of(&self.state, self.source.clone()).note(event, Durability::Power)
    }

    fn changed(&self, one: &Reviewer, state: &str) -> Result<u64, LogError> {
        self.note(RunEvent::ReviewerChanged {
            reviewer: one.name.to_string(),
            key: one.key.id().to_string(),
            state: state.to_owned(),
        })
    }

    /// Lets somebody review from now on. It is on record before they are on the list.
    ///
    /// # Errors
    /// When the name or the key is taken, or it can't be recorded.
    pub fn add(&self, name: &str, key: PublicKey, now_s: u64) -> Result<Reviewer, ReviewError> {
        let name = ReviewerName::new(name)?;
        Registry::change(&self.reviewers_file(), |all| {
            let one = all.add(name, key, now_s)?.clone();
            self.changed(&one, "added")?;
            Ok(one)
        })
    }

    /// Takes somebody's right away. Everything they approved that is not done yet counts no more. They are off the
    /// list first: a record that can't be written does not save them.
    ///
    /// # Errors
    /// When there is nobody of that name, or it can't be written.
    pub fn revoke(&self, name: &str, now_s: u64) -> Result<Reviewer, ReviewError> {
        let one = Registry::change(&self.reviewers_file(), |all| {
            Ok::<_, RegistryError>(all.revoke(name, now_s)?.clone())
        })?;
        self.totp().forget(name)?;
        self.changed(&one, "revoked")?;
        Ok(one)
    }

    /// Begins to give somebody a second factor.
    ///
    /// # Errors
    /// When they are no reviewer, or have one.
    pub fn enrol(&self, name: &str) -> Result<TotpSecret, ReviewError> {
        self.active(name)?;
        Ok(self.totp().begin(name)?)
    }

    /// Ends it: with a code that shows that they have the secret.
    ///
    /// # Errors
    /// When the code is wrong, or it can't be recorded.
    pub fn confirm(&self, name: &str, code: &str, now_s: u64) -> Result<Reviewer, ReviewError> {
        let one = self.active(name)?;
        self.totp().confirm(name, code, now_s)?;
        self.changed(&one, "second_factor")?;
        Ok(one)
    }

    fn active(&self, name: &str) -> Result<Reviewer, ReviewError> {
        let all = self.reviewers()?;
        let one = all
            .named(name)
            .ok_or_else(|| RegistryError::Unknown(name.to_owned()))?;
        if one.revoked_s.is_some() {
            return Err(ReviewError::Void(Void::Revoked));
        }
        Ok(one.clone())
    }

    /// Everything that was said about a proposal, oldest first. A file that is none of ours is an error: what can't be
    /// read might be a rejection.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn said(&self, proposal: &ProposalId) -> Result<Vec<Envelope>, ReviewError> {
        let directory = self.statements(proposal);
        let mut said = Vec::new();
        for number in 0..MOST_STATEMENTS {
            let path = directory.join(format!("{number:03}.json"));
            let failed = |source| ReviewError::File {
                path: path.clone(),
                source,
            };
            let Some(bytes) = disk::read_bounded(&path, MOST_ENVELOPE_BYTES).map_err(failed)?
            else {
                break;
            };
            said.push(serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))?);
        }
        Ok(said)
    }

    /// How a proposal stands.
    ///
    /// # Errors
    /// When what was said can't be read.
    pub fn standing(
        &self,
        id: &ProposalId,
        subject: &Subject,
        policy: &ReviewPolicy,
        now_s: u64,
    ) -> Result<Standing, ReviewError> {
        Ok(judge(
            subject,
            &self.said(id)?,
            &self.reviewers()?,
            policy,
            now_s,
        ))
    }

    /// Says something: looks whether it would count, spends the code, signs, records, keeps. In this order, so that a
    /// code is not lost on what would not count, and so that nothing counts that is not on record.
    ///
    /// # Errors
    /// Why nothing was said.
    pub fn say(
        &self,
        id: &ProposalId,
        subject: &Subject,
        policy: &ReviewPolicy,
        opinion: Opinion<'_>,
        key: &SecretKey,
        now_s: u64,
    ) -> Result<Envelope, ReviewError> {
        let reviewer = self.active(opinion.reviewer)?;
        if key.public_key().as_ref() != Some(&reviewer.key) {
            return Err(ReviewError::WrongKey(opinion.reviewer.to_owned()));
        }
        if opinion.text.len() > MOST_TEXT_BYTES {
            return Err(ReviewError::TooMuch);
        }
        if opinion.verdict == Verdict::Reject && opinion.reasons.is_empty() {
            return Err(ReviewError::NoReason);
        }
        let mut statement = Statement {
            v: 1,
            verdict: opinion.verdict,
            proposal: subject.proposal.clone(),
            reviewer: reviewer.name.clone(),
            digests: subject.digests.clone(),
            issued_s: now_s,
            expires_s: now_s.saturating_add(opinion.lifetime_s),
            second_factor: opinion.code.map(|_| now_s / super::totp::STEP_S),
            reasons: opinion.reasons,
            text: opinion.text,
        };
        let directory = self.statements(id);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ReviewError::File { path, source }
        };
        disk::private_directory(&directory).map_err(failed(&directory))?;
        let _lock = disk::Lock::take(&directory.join("lock")).map_err(failed(&directory))?;
        let said = self.said(id)?;
        if said.len() >= MOST_STATEMENTS {
            return Err(ReviewError::TooMuch);
        }
        let reviewers = self.reviewers()?;
        if opinion.verdict == Verdict::Approve {
            if let Standing::Rejected { by, .. } = judge(subject, &said, &reviewers, policy, now_s)
            {
                return Err(ReviewError::Rejected(by));
            }
            let as_if = Envelope::sign(&statement, key)?;
            would_count(subject, &as_if, &reviewers, policy, now_s).map_err(ReviewError::Void)?;
        }
        if let Some(code) = opinion.code {
            let step = self.totp().spend(reviewer.name.as_str(), code, now_s)?;
            statement.second_factor = Some(step);
        }
        let envelope = Envelope::sign(&statement, key)?;
        self.note(RunEvent::ReviewGiven {
            proposal: subject.proposal.clone(),
            reviewer: reviewer.name.to_string(),
            key: reviewer.key.id().to_string(),
            verdict: statement.verdict.as_str().to_owned(),
            candidate_tree: subject.digests.candidate_tree.clone(),
            statement_sha256: envelope.digest(),
            second_factor: statement.second_factor.is_some(),
        })?;
        let path = directory.join(format!("{:03}.json", said.len()));
        let bytes = serde_json::to_vec_pretty(&envelope).map_err(SignError::Encode)?;
        disk::replace(&path, &bytes).map_err(failed(&path))?;
        Ok(envelope)
    }
}
