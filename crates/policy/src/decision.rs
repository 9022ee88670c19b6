//! The answer to a question: a verdict with its reason, the rule behind it and what to do about it.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::Origin;

/// The verdict alone, ordered by strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It may happen.
    Allow,
    /// It waits for a person.
    Hold,
    /// It may not happen.
    Deny,
}

impl Verdict {
    /// The word for it in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Hold => "hold",
            Self::Deny => "deny",
        }
    }
}

/// A decision; the explanation is part of it and never recomputed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may happen.
    Allow(Because),
    /// It waits for a person.
    Hold(Because),
    /// It may not happen.
    Deny(Because),
}

/// Why a decision came out as it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Because {
    /// The stable reason.
    pub reason: Reason,
    /// The rule that decided.
    pub origin: Origin,
    /// What the user could write to change the outcome.
    pub hint: Option<String>,
}

impl Decision {
    /// The verdict without its explanation.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Allow(_) => Verdict::Allow,
            Self::Hold(_) => Verdict::Hold,
            Self::Deny(_) => Verdict::Deny,
        }
    }

    /// The explanation.
    #[must_use]
    pub fn because(&self) -> &Because {
        match self {
            Self::Allow(because) | Self::Hold(because) | Self::Deny(because) => because,
        }
    }

    /// The stable reason.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.because().reason
    }

    /// Whether it may happen.
    #[must_use]
    pub fn is_allow(&self) -> bool {
        self.verdict() == Verdict::Allow
    }

    /// The stricter of two decisions; the first on a tie.
    #[must_use]
    pub fn strictest(self, other: Self) -> Self {
        if other.verdict() > self.verdict() {
            other
        } else {
            self
        }
    }

    pub(crate) fn allow(reason: Reason, origin: Origin) -> Self {
        Self::Allow(Because {
            reason,
            origin,
            hint: None,
        })
    }

    pub(crate) fn hold(reason: Reason, origin: Origin, hint: Option<String>) -> Self {
        Self::Hold(Because {
            reason,
            origin,
            hint,
        })
    }

    pub(crate) fn deny(reason: Reason, origin: Origin, hint: Option<String>) -> Self {
        Self::Deny(Because {
            reason,
            origin,
            hint,
        })
    }
}

impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let because = self.because();
        let mut view = serializer.serialize_struct("Decision", 4)?;
        view.serialize_field("decision", &self.verdict())?;
        view.serialize_field("reason", &because.reason)?;
        view.serialize_field("origin", &because.origin)?;
        view.serialize_field("hint", &because.hint)?;
        view.end()
    }
}

crate::codes! {
    /// Why a decision came out as it did. The codes are stable: scripts and ledgers keep them.
    pub enum Reason {
        /// The path is in the readable part of the tree.
        AllowReadable = "allow_readable",
        /// The path is under a writable path.
        AllowWritable = "allow_writable",
        /// The path is the box's own, and vanishes with it.
        AllowPrivate = "allow_private",
        /// Changes there are kept in the box's own copy of the home directory; the host's files stay as they are.
        AllowPrivateCopy = "allow_private_copy",
        /// The path is the image's.
        AllowImage = "allow_image",
        /// The variable is one every program needs.
        AllowBaseEnv = "allow_base_env",
        /// The policy names the variable.
        AllowListedEnv = "allow_listed_env",
        /// The policy passes every variable that holds no secret.
        AllowAllEnv = "allow_all_env",
        /// An egress rule covers the host and port.
        AllowEgressRule = "allow_egress_rule",
        /// The tool rules let the tool through.
        AllowTool = "allow_tool",
        /// The resource rules let it be read.
        AllowResource = "allow_resource",
        /// The prompt rules let it be got.
        AllowPrompt = "allow_prompt",
        /// A server may ask this of the agent's side.
        AllowServerRequest = "allow_server_request",
        /// A rule wants a person to look at the call.
        HoldTool = "hold_tool",
        /// A person looks at what the server asks.
        HoldServerRequest = "hold_server_request",
        /// The path is hidden.
        DenyHidden = "deny_hidden",
        /// The path is in another user's home directory.
        DenyOtherHome = "deny_other_home",
        /// The path may be read but not written.
        DenyReadOnly = "deny_read_only",
        /// The path is in a writable directory, but is one that others act on (hooks, CI, settings).
        DenyProtected = "deny_protected",
        /// The path is not part of the box.
        DenyNotVisible = "deny_not_visible",
        /// The variable's name says it holds a secret or changes how programs load code.
        DenySensitiveEnvName = "deny_sensitive_env_name",
        /// The variable's value looks like a secret.
        DenySensitiveEnvValue = "deny_sensitive_env_value",
        /// The policy does not name the variable.
        DenyEnvNotListed = "deny_env_not_listed",
        /// No egress rule covers the host and port.
        DenyNoEgressRule = "deny_no_egress_rule",
        /// A rule blocks the host or port.
        DenyEgressBlocked = "deny_egress_blocked",
        /// No rule permits the method and path.
        DenyHttpRequest = "deny_http_request",
        /// The rule refuses WebSockets.
        DenyWebSocket = "deny_websocket",
        /// The host is at an address that no rule reaches.
        DenyPrivateAddress = "deny_private_address",
        /// Something other than TLS on a port that is for TLS.
        DenyNotTls = "deny_not_tls",
        /// A rule blocks the tool.
        DenyToolBlocked = "deny_tool_blocked",
        /// The policy lists tools, and this is not one of them.
        DenyToolNotListed = "deny_tool_not_listed",
        /// The rules about the tool allow it with other arguments.
        DenyToolArguments = "deny_tool_arguments",
        /// No tool has such a name.
        DenyToolName = "deny_tool_name",
        /// The policy lists servers, and this is not one of them.
        DenyServerNotListed = "deny_server_not_listed",
        /// A rule blocks the resource.
        DenyResourceBlocked = "deny_resource_blocked",
        /// The policy lists resources, and this is not one of them.
        DenyResourceNotListed = "deny_resource_not_listed",
        /// A rule blocks the prompt.
        DenyPromptBlocked = "deny_prompt_blocked",
        /// The policy lists prompts, and this is not one of them.
        DenyPromptNotListed = "deny_prompt_not_listed",
        /// A server may not ask this of the agent's side.
        DenyServerRequest = "deny_server_request",
        /// A child asked for more than its parent has.
        DenyExceedsParent = "deny_exceeds_parent",
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_unique_snake_case_and_say_their_verdict() {
        let mut seen = BTreeSet::new();
        for reason in Reason::ALL {
            let code = reason.code();
            assert!(seen.insert(code), "{code} appears twice");
            assert!(
                code.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                "{code} is not snake_case"
            );
            assert!(
                ["allow_", "hold_", "deny_"]
                    .iter()
                    .any(|verdict| code.starts_with(verdict)),
                "{code} hides its verdict"
            );
        }
        assert!(seen.len() > 20);
    }

    #[test]
    fn the_strictest_wins() {
        let origin = Origin::built_in();
        let allow = Decision::allow(Reason::AllowTool, origin.clone());
        let deny = Decision::deny(Reason::DenyToolBlocked, origin, None);
        assert_eq!(allow.clone().strictest(deny.clone()), deny);
        assert_eq!(deny.clone().strictest(allow), deny);
    }
}
