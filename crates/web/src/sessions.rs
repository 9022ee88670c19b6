//! Sessions of browsers, in memory only: whoever restarts the daemon ends them all.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use data_encoding::BASE64URL_NOPAD;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::Limits;
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

impl All {
    fn end_oldest(&mut self, is_it: impl Fn(&Session) -> bool) {
        let fit = self.by_id.iter().filter(|(_, session)| is_it(session));
        let oldest = fit.min_by_key(|(_, session)| session.number);
        if let Some(id) = oldest.map(|(id, _)| *id) {
            self.by_id.remove(&id);
        }
    }
}

/// The sessions of a server.
#[derive(Debug)]
pub(crate) struct Sessions {
    most: usize,
    most_of_one: usize,
    lifetime: Duration,
    all: Mutex<All>,
}

impl Sessions {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            most: limits.sessions.max(1),
            most_of_one: limits.sessions_of_one.max(1),
            lifetime: limits.session,
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
        // Whoever logs in again and again ends sessions of their own.
        let of_one = |session: &Session| session.token == token;
        if all.by_id.values().filter(|session| of_one(session)).count() >= self.most_of_one {
            all.end_oldest(of_one);
        }
        if all.by_id.len() >= self.most {
            all.end_oldest(|_| true);
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

    fn sessions(most: usize, most_of_one: usize) -> Sessions {
        Sessions::new(&Limits {
            sessions: most,
            sessions_of_one: most_of_one,
            session: Duration::from_secs(10),
            ..Limits::default()
        })
    }

    #[test]
    fn who_logs_in_often_ends_only_sessions_of_their_own() {
        let start = Instant::now();
        let sessions = sessions(100, 3);
        let quiet = sessions.begin(TokenId::fresh().unwrap(), start).unwrap();
        let busy = TokenId::fresh().unwrap();
        let first = sessions.begin(busy.clone(), start).unwrap();
        for _ in 0..3 {
            sessions.begin(busy.clone(), start).unwrap();
        }
        assert!(sessions.find(&first.cookie, start).is_none());
        assert!(sessions.find(&quiet.cookie, start).is_some());
        assert_eq!(sessions.lock().by_id.len(), 4);
    }

    #[test]
    fn a_session_lasts_its_time_and_the_oldest_makes_room() {
        let start = Instant::now();
        let sessions = sessions(2, 2);
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
