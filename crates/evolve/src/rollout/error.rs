//! Why a rollout stops, and what to do about it.

use std::path::PathBuf;

use belljar_gate::LogError;

use super::machine::OutOfPlace;
use super::plan::InvalidPlan;
use crate::release::ReleaseError;

/// Why a rollout did not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// Another one is under way.
    #[error("the rollout of {0} is under way")]
    Busy(String),
    /// There is none.
    #[error("nothing was rolled out here")]
    None,
    /// It was rolled out before.
    #[error("{0} was rolled out before")]
    Again(String),
    /// The release.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// Something that can't be now.
    #[error(transparent)]
    OutOfPlace(#[from] OutOfPlace),
    /// The tree is not the one that was approved.
    #[error("the {0} is not the one that was approved")]
    NotApproved(&'static str),
    /// The agents it is about.
    #[error("the agents of the plan can't be had")]
    Plan(#[from] InvalidPlan),
    /// Instances that run something else than their places show.
    #[error("instances do not run what they should: {0}")]
    Instances(String),
    /// It can't be put on record.
    #[error("it can't be put on record")]
    Log(#[from] LogError),
    /// The disk refused.
    #[error("{path} can't be used")]
    File {
        /// What.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl RolloutError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Busy(_) => "promote it to its end or roll it back first".to_owned(),
            Self::None => "`belljar evolve deploy ID --plan rollout.toml` starts one".to_owned(),
            Self::Again(_) => "a changed proposal is a new one; propose it".to_owned(),
            Self::Release(error) => error.hint().to_owned(),
            Self::OutOfPlace(_) => "`belljar evolve status` says where it is".to_owned(),
            Self::NotApproved(_) => "have what is there now looked at and approved".to_owned(),
            Self::Plan(_) => "`belljar supervisor status` names the agents that live".to_owned(),
            Self::Instances(_) => {
                "see that the supervisor runs: it brings them to it as soon as it can".to_owned()
            }
            Self::Log(error) => error.hint(),
            Self::File { .. } => "run it as the user whose state directory it is".to_owned(),
        }
    }
}
