//! Sessions of browsers, in memory only: whoever restarts the daemon ends them all.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use data_encoding::BASE64URL_NOPAD;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::tokens::{Digest, TokenId, digest, random};

/// Which session: the hash of what the browser's cookie holds. Looking one up by its hash takes a time that says nothing about the cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(Digest);

/// A session as it is told to the one who began it.
pub(crate) struct Begun {
    pub(crate) cookie: Zeroizing<String>,
    pub(crate) csrf: String,
}

#[derive(Debug)]
struct Session {
    token: TokenId,
    csrf: String,
    began: Instant,
    number: u64,
}

#[derive(Debug, Default)]
struct All {
    by_id: HashMap<SessionId, Session>,
    next: u64,
}

/// The sessions of a server.
#[derive(Debug)]
pub(crate) struct Sessions {
    most: usize,
    lifetime: Duration,
    all: Mutex<All>,
}

impl Sessions {
    pub(crate) fn new(most: usize, lifetime: Duration) -> Self {
        Self {
            most: most.max(1),
            lifetime,
            all: Mutex::default(),
        }
    }

    /// How long a session lasts.
    pub(crate) fn lifetime(&self) -> Duration {
        self.lifetime
    }

    pub(crate) fn begin(&self, token: TokenId, now: Instant) -> io::Result<Begun> {
        let cookie = Zeroizing::new(BASE64URL_NOPAD.encode(&random::<32>()?));
        let csrf = BASE64URL_NOPAD.encode(&random::<32>()?);
        let mut all = self.lock();
        all.by_id
            .retain(|_, session| now.saturating_duration_since(session.began) < self.lifetime);
        while all.by_id.len() >= self.most {
            let oldest = all.by_id.iter().min_by_key(|(_, session)| session.number);
            let Some(oldest) = oldest.map(|(id, _)| *id) else {
                break;
            };
            all.by_id.remove(&oldest);
        }
        let number = all.next;
        all.next += 1;
        all.by_id.insert(
            SessionId(digest(cookie.as_bytes())),
            Session {
                token,
                csrf: csrf.clone(),
                began: now,
                number,
            },
        );
        Ok(Begun { cookie, csrf })
    }

    /// The session that a cookie names, whose it is, and how much longer it lasts.
    pub(crate) fn find(
        &self,
        cookie: &str,
        now: Instant,
    ) -> Option<(SessionId, TokenId, Duration)> {
        let id = SessionId(digest(cookie.as_bytes()));
        self.token(id, now).map(|(token, left)| (id, token, left))
    }

    /// Whose a session is, and how much longer it lasts.
    pub(crate) fn token(&self, id: SessionId, now: Instant) -> Option<(TokenId, Duration)> {
        let all = self.lock();
        let session = all.by_id.get(&id)?;
        let passed = now.saturating_duration_since(session.began);
        let left = self.lifetime.saturating_sub(passed);
        (!left.is_zero()).then(|| (session.token.clone(), left))
    }

    /// Whether a page of ours says so: it alone knows this value, since no other origin can read our answers.
    pub(crate) fn is_csrf(&self, id: SessionId, given: &[u8]) -> bool {
        let all = self.lock();
        let session = all.by_id.get(&id);
        session.is_some_and(|session| session.csrf.as_bytes().ct_eq(given).into())
    }

    /// That value.
    pub(crate) fn csrf(&self, id: SessionId) -> Option<String> {
        self.lock()
            .by_id
            .get(&id)
            .map(|session| session.csrf.clone())
    }

    pub(crate) fn end(&self, id: SessionId) {
        self.lock().by_id.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_session_lasts_its_time_and_the_oldest_makes_room() {
        let start = Instant::now();
        let sessions = Sessions::new(2, Duration::from_secs(10));
        let token = TokenId::fresh().unwrap();
        let one = sessions.begin(token.clone(), start).unwrap();
        let (id, whose, _) = sessions.find(&one.cookie, start).unwrap();
        assert_eq!(whose, token);
        assert!(sessions.is_csrf(id, one.csrf.as_bytes()));
        assert!(!sessions.is_csrf(id, b""));
        assert!(!sessions.is_csrf(id, one.cookie.as_bytes()));
        assert!(sessions.find("other", start).is_none());
        assert!(
            sessions
                .find(&one.cookie, start + Duration::from_secs(10))
                .is_none()
        );
        let two = sessions.begin(token.clone(), start).unwrap();
        let three = sessions.begin(token, start).unwrap();
        assert!(sessions.find(&one.cookie, start).is_none());
        assert!(sessions.find(&two.cookie, start).is_some());
        let (id, ..) = sessions.find(&three.cookie, start).unwrap();
        sessions.end(id);
        assert!(sessions.find(&three.cookie, start).is_none());
    }
}
