//! What stands behind the web server.

use std::fmt;
use std::sync::Arc;

use belljar_api::{Name, OperatorCall};

use crate::Feed;
use crate::tokens::{Role, TokenId, TokenRecord};

/// What answers the questions that come over the web. The server has checked who asks and whether their role is enough; it calls from
/// a few threads of its own, so answers may take their time and may come from any thread.
pub trait Backend: Send + Sync + 'static {
    /// Answers a call, now or later.
    fn answer(&self, by: &Caller, call: OperatorCall);

    /// Begins to tell somebody what happens, until [`Feed::send`] says that they are gone. The first message holds all agents.
    fn subscribe(&self, feed: Feed);

    /// The numbers for Prometheus, in its text format.
    fn prometheus(&self) -> String;

    /// Whether requests can be served. The text is for the server's operator; it does not go over the web.
    fn ready(&self) -> Result<(), String>;

    /// The agents that should run and don't. Their names go over the web, to everybody.
    fn not_running(&self) -> Vec<String> {
        Vec::new()
    }
}

impl<B: Backend> Backend for Arc<B> {
    fn answer(&self, by: &Caller, call: OperatorCall) {
        self.as_ref().answer(by, call);
    }

    fn subscribe(&self, feed: Feed) {
        self.as_ref().subscribe(feed);
    }

    fn prometheus(&self) -> String {
        self.as_ref().prometheus()
    }

    fn ready(&self) -> Result<(), String> {
        self.as_ref().ready()
    }

    fn not_running(&self) -> Vec<String> {
        self.as_ref().not_running()
    }
}

/// Who asks. There is none without a token that was good a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    token: TokenId,
    name: Name,
    role: Role,
}

impl Caller {
    pub(crate) fn of(token: &TokenRecord) -> Self {
        Self {
            token: token.id.clone(),
            name: token.name.clone(),
            role: token.role,
        }
    }

    /// The token they hold.
    #[must_use]
    pub fn token(&self) -> &TokenId {
        &self.token
    }

    /// What its owner calls it.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// What they may do.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }
}

/// As records name them: the token's name and its id, since names need not be unique.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (token {})", self.name, self.token)
    }
}
