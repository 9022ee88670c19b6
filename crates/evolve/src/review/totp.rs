//! The second factor: time-based one-time codes (RFC 6238), each good once.
//!
//! What was used last is on disk before a code counts, under a lock. So a code shown twice, to two processes at
//! once or after a restart, counts once.

use std::path::{Path, PathBuf};

use data_encoding::BASE32_NOPAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha1::Sha1;
use zeroize::Zeroizing;

use crate::disk;

/// How long a code is shown.
pub const STEP_S: u64 = 30;
/// Codes of so many steps before and after count too: clocks differ.
pub const DRIFT_STEPS: u64 = 1;
/// Wrong codes in a row before none is looked at for a while.
const MOST_FAILURES: u32 = 5;
/// That while.
const LOCKED_S: u64 = 300;
const MOST_BYTES: u64 = 4096;

/// A secret shared with somebody's authenticator. It prints nothing of itself.
pub struct TotpSecret(Zeroizing<[u8; 20]>);

impl TotpSecret {
    /// A fresh one.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn random() -> std::io::Result<Self> {
        disk::random().map(Self)
    }

    /// The secret with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 20]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The code of a step: six digits.
    #[must_use]
    pub fn code(&self, step: u64) -> u32 {
        // Any length of key will do for HMAC, so this can't fail; a code nobody can show is the safe answer.
        let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(self.0.as_slice()) else {
            return u32::MAX;
        };
        mac.update(&step.to_be_bytes());
        let hash = mac.finalize().into_bytes();
        let at = usize::from(hash.last().copied().unwrap_or(0) & 15);
        let mut word = [0; 4];
        word.iter_mut()
            .zip(hash.iter().skip(at))
            .for_each(|(to, from)| *to = *from);
        (u32::from_be_bytes(word) & 0x7fff_ffff) % 1_000_000
    }

    /// The secret as people type it.
    #[must_use]
    pub fn base32(&self) -> Zeroizing<String> {
        Zeroizing::new(BASE32_NOPAD.encode(self.0.as_slice()))
    }

    /// What an authenticator reads from the picture.
    #[must_use]
    pub fn uri(&self, reviewer: &str) -> Zeroizing<String> {
        Zeroizing::new(format!(
            "otpauth://totp/Belljar:{reviewer}?secret={}&issuer=Belljar&algorithm=SHA1&digits=6&period=30",
            self.base32().as_str()
        ))
    }
}

impl std::fmt::Debug for TotpSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TotpSecret(…)")
    }
}

/// A QR code in half blocks: dark on light whatever the terminal's colours, with the margin that readers need.
#[must_use]
pub fn picture(text: &str) -> Option<String> {
    let code = qrcodegen::QrCode::encode_text(text, qrcodegen::QrCodeEcc::Medium).ok()?;
    let (from, to) = (-2, code.size() + 2);
    let mut picture = String::new();
    for y in (from..to).step_by(2) {
        // Black on white, asked for by number: a dark theme would otherwise show its negative.
        picture.push_str("\u{1b}[30;107m");
        for x in from..to {
            picture.push(match (code.get_module(x, y), code.get_module(x, y + 1)) {
                (true, true) => '█',
                (true, false) => '▀',
                (false, true) => '▄',
                (false, false) => ' ',
            });
        }
        picture.push_str("\u{1b}[0m\n");
    }
    Some(picture)
}

/// Why a code does not count.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TotpError {
    /// Nobody enrolled, or enrolling was not finished.
    #[error("{0} has no second factor")]
    NotEnrolled(String),
    /// There is one already.
    #[error("{0} has a second factor already")]
    Enrolled(String),
    /// Not six digits.
    #[error("a code is six digits")]
    Form,
    /// Not the code of now.
    #[error("the code is wrong or too old")]
    Wrong,
    /// It, or a later one, was used.
    #[error("the code was used already")]
    Used,
    /// Too many wrong ones.
    #[error("too many wrong codes; none counts for the next {0} s")]
    Locked(u64),
    /// Others may read the secret.
    #[error("{0} can be read by others")]
    Exposed(PathBuf),
    /// The file can't be used.
    #[error("the second factor's file {path} can't be used")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl TotpError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotEnrolled(_) => {
                "`belljar reviewer enrol NAME` shows the picture; show it a code to finish"
            }
            Self::Enrolled(_) => {
                "revoke the reviewer and add them again under a new key if the phone is lost"
            }
            Self::Form | Self::Wrong => {
                "type the six digits that the authenticator shows now; see that both clocks are right"
            }
            Self::Used => "wait for the next code",
            Self::Locked(_) => "somebody is guessing, or a clock is wrong",
            Self::Exposed(_) => "chmod 600 it, and enrol anew: somebody may have read it",
            Self::File { .. } => "run it as the user whose state directory it is",
        }
    }
}

/// What is kept of one person's factor.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    v: u8,
    secret: String,
    /// Whether a code was shown once: the authenticator has the secret.
    confirmed: bool,
    /// The newest step whose code was used. Older ones never count again.
    last_step: u64,
    failures: u32,
    locked_until_s: u64,
}

/// The factors of a state directory's reviewers.
#[derive(Clone, Debug)]
pub struct Totp {
    directory: PathBuf,
}

impl Totp {
    /// Those below this directory.
    #[must_use]
    pub fn at(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }

    fn failed(&self, name: &str) -> impl Fn(std::io::Error) -> TotpError {
        let path = self.path(name);
        move |source| TotpError::File {
            path: path.clone(),
            source,
        }
    }

    fn lock(&self, name: &str) -> Result<disk::Lock, TotpError> {
        disk::private_directory(&self.directory)
            .and_then(|()| disk::Lock::take(&self.directory.join("lock")))
            .map_err(self.failed(name))
    }

    fn load(&self, name: &str) -> Result<Option<(Kept, TotpSecret)>, TotpError> {
        let path = self.path(name);
        let Some(bytes) = disk::read_bounded(&path, MOST_BYTES).map_err(self.failed(name))? else {
            return Ok(None);
        };
        let bytes = Zeroizing::new(bytes);
        if !disk::is_private(&path).map_err(self.failed(name))? {
            return Err(TotpError::Exposed(path));
        }
        let broken = |what: &str| self.failed(name)(std::io::Error::other(what.to_owned()));
        let kept: Kept = serde_json::from_slice(&bytes).map_err(|_| broken("it is not ours"))?;
        let secret = BASE32_NOPAD
            .decode(kept.secret.as_bytes())
            .ok()
            .and_then(|bytes| <[u8; 20]>::try_from(bytes).ok())
            .ok_or_else(|| broken("its secret is not one"))?;
        Ok(Some((kept, TotpSecret::from_bytes(secret))))
    }

    fn save(&self, name: &str, kept: &Kept) -> Result<(), TotpError> {
        let bytes = serde_json::to_vec(kept).map_err(|error| self.failed(name)(error.into()))?;
        disk::replace(&self.path(name), &Zeroizing::new(bytes)).map_err(self.failed(name))
    }

    /// Begins to enrol somebody: keeps a secret, which counts once a code of it was shown to [`Totp::confirm`].
    ///
    /// # Errors
    /// When they have one that counts, or it can't be kept.
    pub fn begin(&self, name: &str) -> Result<TotpSecret, TotpError> {
        let _lock = self.lock(name)?;
        if self.load(name)?.is_some_and(|(kept, _)| kept.confirmed) {
            return Err(TotpError::Enrolled(name.to_owned()));
        }
        let secret = TotpSecret::random().map_err(self.failed(name))?;
        let kept = Kept {
            v: 1,
            secret: secret.base32().to_string(),
            confirmed: false,
            last_step: 0,
            failures: 0,
            locked_until_s: 0,
        };
        self.save(name, &kept)?;
        Ok(secret)
    }

    /// Ends enrolling: the authenticator has shown that it has the secret.
    ///
    /// # Errors
    /// When the code does not count.
    pub fn confirm(&self, name: &str, code: &str, now_s: u64) -> Result<(), TotpError> {
        self.spend_if(name, code, now_s, |kept| !kept.confirmed)
            .map(drop)
    }

    /// Whether somebody has a factor that counts.
    ///
    /// # Errors
    /// When that can't be read.
    pub fn is_enrolled(&self, name: &str) -> Result<bool, TotpError> {
        Ok(self.load(name)?.is_some_and(|(kept, _)| kept.confirmed))
    }

    /// Spends a code, and says of which step it was. It is on disk that it was used before this returns.
    ///
    /// # Errors
    /// Why it does not count.
    pub fn spend(&self, name: &str, code: &str, now_s: u64) -> Result<u64, TotpError> {
        self.spend_if(name, code, now_s, |kept| kept.confirmed)
    }

    fn spend_if(
        &self,
        name: &str,
        code: &str,
        now_s: u64,
        fits: impl Fn(&Kept) -> bool,
    ) -> Result<u64, TotpError> {
        let code = parse(code)?;
        let _lock = self.lock(name)?;
        let Some((mut kept, secret)) = self.load(name)?.filter(|(kept, _)| fits(kept)) else {
            return Err(match self.load(name)? {
                Some((kept, _)) if kept.confirmed => TotpError::Enrolled(name.to_owned()),
                _ => TotpError::NotEnrolled(name.to_owned()),
            });
        };
        if now_s < kept.locked_until_s {
            return Err(TotpError::Locked(kept.locked_until_s - now_s));
        }
        let matched = matching_step(&secret, code, now_s);
        match matched {
            Some(step) if step > kept.last_step => {
                kept.last_step = step;
                kept.failures = 0;
                kept.confirmed = true;
                self.save(name, &kept)?;
                Ok(step)
            }
            other => {
                kept.failures += 1;
                if kept.failures >= MOST_FAILURES {
                    kept.failures = 0;
                    kept.locked_until_s = now_s + LOCKED_S;
                }
                self.save(name, &kept)?;
                Err(match other {
                    Some(_) => TotpError::Used,
                    None => TotpError::Wrong,
                })
            }
        }
    }

    /// Forgets somebody's factor.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn forget(&self, name: &str) -> Result<(), TotpError> {
        let _lock = self.lock(name)?;
        match std::fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(self.failed(name)(error))
            }
            _ => disk::sync_directory(&self.directory).map_err(self.failed(name)),
        }
    }
}

fn parse(code: &str) -> Result<u32, TotpError> {
    if code.len() != 6 || !code.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TotpError::Form);
    }
    code.parse().map_err(|_| TotpError::Form)
}

/// The newest step near `now_s` with this code. All are looked at, so that how long it takes says nothing.
fn matching_step(secret: &TotpSecret, code: u32, now_s: u64) -> Option<u64> {
    let now = now_s / STEP_S;
    (now.saturating_sub(DRIFT_STEPS)..=now + DRIFT_STEPS)
        .map(|step| (step, secret.code(step) == code))
        .fold(
            None,
            |found, (step, fits)| if fits { Some(step) } else { found },
        )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_rfc_6238() {
        let secret = TotpSecret::from_bytes(*b"12345678901234567890");
        for (time, code) in [
            (59, 94_287_082),
            (1_111_111_109, 7_081_804),
            (1_111_111_111, 14_050_471),
            (1_234_567_890, 89_005_924),
            (2_000_000_000, 69_279_037),
            (20_000_000_000, 65_353_130),
        ] {
            assert_eq!(secret.code(time / STEP_S), code % 1_000_000);
        }
    }

    fn enrolled(directory: &Path) -> (Totp, TotpSecret) {
        let totp = Totp::at(directory);
        let secret = totp.begin("ada").unwrap();
        let code = format!("{:06}", secret.code(100));
        totp.confirm("ada", &code, 100 * STEP_S).unwrap();
        (totp, secret)
    }

    #[test]
    fn a_code_counts_once_even_for_another_process_and_older_ones_never() {
        let directory = tempfile::tempdir().unwrap();
        let (totp, secret) = enrolled(directory.path());
        let now = 105 * STEP_S;
        let code = |step| format!("{:06}", secret.code(step));
        assert_eq!(totp.spend("ada", &code(105), now).unwrap(), 105);
        // Another handle is what another process would have: nothing is in memory.
        let again = Totp::at(directory.path());
        assert!(matches!(
            again.spend("ada", &code(105), now),
            Err(TotpError::Used)
        ));
        assert!(matches!(
            again.spend("ada", &code(104), now),
            Err(TotpError::Used)
        ));
        assert_eq!(again.spend("ada", &code(106), now).unwrap(), 106);
    }

    #[test]
    fn of_many_that_show_the_same_code_at_once_one_is_believed() {
        let directory = tempfile::tempdir().unwrap();
        let (totp, secret) = enrolled(directory.path());
        // Many rounds: without the lock, two are believed now and then only.
        for step in 200..260 {
            let code = format!("{:06}", secret.code(step));
            let start = std::sync::Barrier::new(4);
            let tries = std::thread::scope(|scope| {
                let tries: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            start.wait();
                            totp.spend("ada", &code, step * STEP_S)
                        })
                    })
                    .collect();
                tries
                    .into_iter()
                    .map(|one| one.join().unwrap())
                    .collect::<Vec<_>>()
            });
            let believed = tries.iter().filter(|spent| spent.is_ok()).count();
            // The others hear that it was used, or that there were too many of them; nothing else goes wrong.
            let told = |spent: &Result<u64, TotpError>| {
                matches!(spent, Ok(_) | Err(TotpError::Used | TotpError::Locked(_)))
            };
            assert!(tries.iter().all(told), "{tries:?}");
            assert_eq!(believed, 1, "{tries:?}");
        }
    }

    #[test]
    fn codes_of_another_time_do_not_count_and_guessing_is_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let (totp, secret) = enrolled(directory.path());
        let now = 300 * STEP_S;
        let late = format!("{:06}", secret.code(298));
        assert!(matches!(
            totp.spend("ada", &late, now),
            Err(TotpError::Wrong)
        ));
        for _ in 0..4 {
            let _ = totp.spend("ada", &late, now);
        }
        let right = format!("{:06}", secret.code(300));
        assert!(matches!(
            totp.spend("ada", &right, now),
            Err(TotpError::Locked(_))
        ));
        let later = now + LOCKED_S;
        let right = format!("{:06}", secret.code(later / STEP_S));
        assert!(totp.spend("ada", &right, later).is_ok());
    }

    #[test]
    fn a_factor_counts_only_after_a_code_was_shown_and_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let totp = Totp::at(directory.path());
        let secret = totp.begin("ada").unwrap();
        let code = format!("{:06}", secret.code(100));
        let now = 100 * STEP_S;
        assert!(matches!(
            totp.spend("ada", &code, now),
            Err(TotpError::NotEnrolled(_))
        ));
        totp.confirm("ada", &code, now).unwrap();
        assert!(matches!(totp.begin("ada"), Err(TotpError::Enrolled(_))));
    }

    #[test]
    fn a_secret_that_others_may_read_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let (totp, secret) = enrolled(directory.path());
        let file = directory.path().join("ada.json");
        assert!(disk::is_private(&file).unwrap());
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let code = format!("{:06}", secret.code(200));
        let spent = totp.spend("ada", &code, 200 * STEP_S);
        assert!(matches!(spent, Err(TotpError::Exposed(_))));
    }

    #[test]
    fn the_picture_is_square_and_has_a_margin() {
        let secret = TotpSecret::from_bytes(*b"12345678901234567890");
        let picture = picture(&secret.uri("ada")).unwrap();
        let widths: Vec<usize> = picture.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]));
        assert!(!format!("{secret:?}").contains("GEZD"));
    }
}
