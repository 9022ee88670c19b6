//! The image of a box: found by the name that its policy says, held while the box lives.

use crate::error::RunError;
use crate::state::StateDir;
use crate::view::Tree;
use belljar_gate::record::UsedImage;
use belljar_image::{Hold, ImageConfig, ImageError, Store};
use belljar_policy::{Capability, EnvPolicy, Tier, decide_env};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// An image in use.
#[derive(Debug)]
pub(crate) struct BoxImage {
    pub(crate) used: UsedImage,
    pub(crate) tree: Tree,
    config: ImageConfig,
    /// Nobody removes it meanwhile.
    _hold: Hold,
}

impl BoxImage {
    /// Finds the image that a capability names, if it names one.
    pub(crate) fn find(
        capability: &Capability,
        state: &StateDir,
    ) -> Result<Option<Self>, RunError> {
        let Some(rule) = &capability.image else {
            return match capability.tier {
                Tier::Container => Err(RunError::Refused {
                    what: "sandbox_tier container needs an image".into(),
                    hint:
                        "add `image: NAME` to the policy; `belljar image list` shows what there is"
                            .into(),
                }),
                _ => Ok(None),
            };
        };
        let refused = |error: ImageError| RunError::Refused {
            what: format!("{}: {error}", rule.origin),
            hint: error.hint().unwrap_or_default(),
        };
        let found = Store::open(state.path()).find(rule.value.as_str());
        let image = found.map_err(refused)?;
        // Held before it is looked at: what is looked at stays.
        let hold = image.hold().map_err(refused)?;
        let tree = Tree::open(&image.tree).map_err(|source| RunError::State {
            path: image.tree.clone(),
            source,
        })?;
        Ok(Some(Self {
            used: UsedImage {
                name: image.name,
                digest: image.digest.to_string(),
            },
            tree,
            config: image.config,
            _hold: hold,
        }))
    }

    /// The digest of the image that a capability names. Whatever is wrong with that name, the box's start says.
    pub(crate) fn digest(capability: &Capability, state: &StateDir) -> Option<String> {
        let rule = capability.image.as_ref()?;
        let found = Store::open(state.path()).find(rule.value.as_str());
        let digest = found.map_or_else(|_| String::new(), |image| image.digest.to_string());
        Some(digest)
    }

    /// What it says is to be run where nobody says anything else.
    pub(crate) fn command(&self) -> Vec<OsString> {
        let words = self.config.entrypoint.iter().chain(&self.config.cmd);
        words.map(OsString::from).collect()
    }

    /// Its variables, as far as a policy lets them pass.
    pub(crate) fn env<'a>(
        &'a self,
        policy: &'a EnvPolicy,
    ) -> impl Iterator<Item = (OsString, OsString)> + 'a {
        let all = self.config.env.iter();
        let passing = all.filter(|(name, value)| {
            is_variable(name, value) && decide_env(policy, name, value.as_bytes()).is_allow()
        });
        passing.map(|(name, value)| (name.into(), value.into()))
    }

    /// Where programs start in it: where its maker says, if that is there.
    pub(crate) fn workdir(&self) -> PathBuf {
        let wanted = self.config.workdir.as_deref().unwrap_or(Path::new("/"));
        match self.tree.real(wanted) {
            Some((path, belljar_sandbox::plan::Kind::Directory)) => path,
            _ => PathBuf::from("/"),
        }
    }
}

/// Whether the system takes it: an image's maker may have written anything.
fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}
