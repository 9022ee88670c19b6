//! Sessions of browsers. They outlive the daemon, and no token that is over or revoked.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::Limits;
use crate::kept_sessions::{KeptSession, SessionFile};
use crate::tokens::{Digest, TokenId, digest, now_ms, random};

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
    /// The same by the wall's clock, for a life to come.
    began_ms: u64,
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
    file: Option<SessionFile>,
}

impl Sessions {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            most: limits.sessions.max(1),
            most_of_one: limits.sessions_of_one.max(1),
            lifetime: limits.session,
            all: Mutex::default(),
            file: None,
        }
    }

    /// Goes on with those of a former life, each for as long as is left of its time.
    pub(crate) fn kept(limits: &Limits, file: SessionFile) -> Self {
        let mut sessions = Self::new(limits);
        let (now, now_ms) = (Instant::now(), now_ms());
        let all = sessions
            .all
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for kept in file.read().into_iter().take(limits.sessions) {
            let id = HEXLOWER.decode(kept.cookie_sha256.as_bytes());
            let id = id.ok().and_then(|bytes| Digest::try_from(bytes).ok());
            // One that begins in the future would last longer than it may.
            let passed = now_ms.checked_sub(kept.began_ms).map(Duration::from_millis);
            let passed = passed.filter(|passed| *passed < limits.session);
            let began = passed.and_then(|passed| now.checked_sub(passed));
            let (Some(id), Some(began)) = (id, began) else {
                continue;
            };
            let number = all.next;
            all.next += 1;
            let session = Session {
                token: kept.token,
                csrf: kept.csrf,
                began,
                began_ms: kept.began_ms,
                number,
            };
            all.by_id.insert(SessionId(id), session);
        }
        sessions.file = Some(file);
        sessions
    }

    /// Writes down who is logged in. Where that fails, the next life asks for the tokens again.
    fn keep(&self, all: &All) {
        let Some(file) = &self.file else { return };
        let mut sessions: Vec<(&SessionId, &Session)> = all.by_id.iter().collect();
        sessions.sort_by_key(|(_, session)| session.number);
        let kept = sessions.into_iter().map(|(id, session)| KeptSession {
            cookie_sha256: HEXLOWER.encode(&id.0),
            token: session.token.clone(),
            csrf: session.csrf.clone(),
            began_ms: session.began_ms,
        });
        let _not_kept = file.write(&kept.collect::<Vec<_>>());
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
                began_ms: now_ms(),
                number,
            },
        );
        self.keep(&all);
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
        let mut all = self.lock();
        if all.by_id.remove(&id).is_some() {
            self.keep(&all);
        }
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
    fn a_session_outlives_the_daemon_and_not_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let limits = Limits {
            session: Duration::from_secs(3600),
            ..Limits::default()
        };
        let file = || SessionFile::beside(&directory.path().join("tokens.json"));
        let token = TokenId::fresh().unwrap();
        let before = Sessions::kept(&limits, file());
        let one = before.begin(token.clone(), Instant::now()).unwrap();
        let two = before.begin(token.clone(), Instant::now()).unwrap();
        let (id, ..) = before.find(&two.cookie, Instant::now()).unwrap();
        before.end(id);
        drop(before);

        let after = Sessions::kept(&limits, file());
        let (id, whose, left) = after.find(&one.cookie, Instant::now()).unwrap();
        assert_eq!(whose, token);
        assert!(left <= Duration::from_secs(3600));
        assert!(after.is_csrf(id, one.csrf.as_bytes()));
        assert!(
            after.find(&two.cookie, Instant::now()).is_none(),
            "it was ended"
        );
        let path = directory.path().join("sessions.json");
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(
            !written.contains(one.cookie.as_str()),
            "a cookie is on the disk"
        );

        // What is over, from the future, or writable by others counts for nothing.
        let kept = file().read();
        for began_ms in [0, now_ms() + 60_000] {
            let changed: Vec<_> = kept
                .iter()
                .cloned()
                .map(|one| KeptSession { began_ms, ..one })
                .collect();
            file().write(&changed).unwrap();
            assert!(
                Sessions::kept(&limits, file())
                    .find(&one.cookie, Instant::now())
                    .is_none()
            );
        }
        file().write(&kept).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o622)).unwrap();
        assert!(file().read().is_empty());
        std::fs::write(&path, "nonsense").unwrap();
        assert!(file().read().is_empty());
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
