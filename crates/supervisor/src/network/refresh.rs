//! Secrets that are good for less long than a box runs: their command is run again, on the host, before they end.

use super::source::{SecretReader, hint};
use belljar_egress::{Event, LiveSecret, Recorder, Refusal, RefusalCode, SecretText, Way};
use belljar_policy::{Rule, SecretRule};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon a command that failed is run again, unless it would be sooner anyway: what it printed last may still be good.
const RETRY: Duration = Duration::from_secs(30);

/// A secret to be refreshed, and where its value goes.
pub(super) struct RefreshedSecret {
    pub(super) rule: Rule<SecretRule>,
    pub(super) value: LiveSecret,
}

/// Runs commands again until it is dropped, which ends those that run.
#[derive(Debug, Default)]
pub(super) struct SecretRefresher {
    stop: Arc<StopSign>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct StopSign {
    is_up: Mutex<bool>,
    rises: Condvar,
    /// The same, for whoever waits for a command.
    cancelled: Arc<AtomicBool>,
}

impl SecretRefresher {
    /// Begins. Failures are told to `recorder`.
    pub(super) fn start(
        secrets: Vec<RefreshedSecret>,
        reader: &SecretReader,
        recorder: &Arc<dyn Recorder>,
    ) -> std::io::Result<Self> {
        let mut refresher = Self::default();
        for secret in secrets {
            let stop = Arc::clone(&refresher.stop);
            let reader = reader.unattended(Arc::clone(&stop.cancelled));
            let recorder = Arc::clone(recorder);
            let thread = std::thread::Builder::new()
                .name("secret".to_owned())
                .spawn(move || refresh(&secret, &reader, recorder.as_ref(), &stop))?;
            refresher.threads.push(thread);
        }
        Ok(refresher)
    }
}

impl Drop for SecretRefresher {
    fn drop(&mut self) {
        self.stop.raise();
        for thread in self.threads.drain(..) {
            // It has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl StopSign {
    fn raise(&self) {
        self.cancelled.store(true, Ordering::Release);
        *self.is_up.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rises.notify_all();
    }

    /// Whether it rose before that time was over.
    fn rises_within(&self, time: Duration) -> bool {
        let is_up = self.is_up.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rises.wait_timeout_while(is_up, time, |is_up| !*is_up);
        let (is_up, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *is_up
    }
}

fn refresh(
    secret: &RefreshedSecret,
    reader: &SecretReader,
    recorder: &dyn Recorder,
    stop: &StopSign,
) {
    let RefreshedSecret { rule, value } = secret;
    let every = Duration::from_secs(u64::from(rule.value.refresh.unwrap_or(u32::MAX)));
    let mut wait = every;
    while !stop.rises_within(wait) {
        let what = format!("secret {}", rule.value.name);
        match reader.for_header(&rule.value.source, &what) {
            Ok(text) => {
                value.replace(SecretText::new(text.to_string()));
                wait = every;
            }
            // It was ended, and did not fail.
            Err(_) if stop.cancelled.load(Ordering::Acquire) => return,
            Err(error) => {
                recorder.record(Event::Refused(Refusal {
                    way: Way::Http,
                    host: rule.value.domain.to_string(),
                    port: None,
                    rule: Some(rule.origin.clone()),
                    code: RefusalCode::SecretRefresh,
                    detail: Some(format!("{error}; its last value is used on")),
                    hint: hint(&rule.value.source),
                }));
                wait = every.min(RETRY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateDir;
    use belljar_policy::{DomainPattern, Origin, Places, SecretSource};
    use std::path::Path;
    use std::time::Instant;

    #[derive(Default)]
    struct Heard(Mutex<Vec<Refusal>>);

    impl Recorder for Heard {
        fn record(&self, event: Event) {
            if let Event::Refused(refusal) = event {
                self.0.lock().unwrap().push(refusal);
            }
        }
    }

    fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }

    /// A secret whose command is this script.
    fn started(place: &Path, script: &str, value: &LiveSecret) -> (SecretRefresher, Arc<Heard>) {
        let state = StateDir::at(place.join("state")).unwrap();
        let places = Places {
            home: "/nonexistent".into(),
            work: "/".into(),
            homes: Vec::new(),
        };
        let words = ["sh", "-c", script].map(str::to_owned);
        let rule = SecretRule {
            name: "token".to_owned(),
            source: SecretSource::Command(words.into()),
            domain: DomainPattern::parse("a.test").unwrap(),
            ports: Vec::new(),
            place: None,
            env: None,
            refresh: Some(1),
        };
        let heard = Arc::new(Heard::default());
        let recorder: Arc<dyn Recorder> = heard.clone();
        let secret = RefreshedSecret {
            rule: Rule::new(rule, Origin::built_in()),
            value: value.clone(),
        };
        let reader = SecretReader::new(&places, &state);
        let refresher = SecretRefresher::start(vec![secret], &reader, &recorder).unwrap();
        (refresher, heard)
    }

    #[test]
    fn a_failure_is_told_without_what_was_printed_and_the_value_stays() {
        let place = tempfile::tempdir().unwrap();
        let value = LiveSecret::new(SecretText::new("first".to_owned()));
        let (refresher, heard) = started(place.path(), "echo sk-halfway; exit 3", &value);
        eventually("it is told", || !heard.0.lock().unwrap().is_empty());
        drop(refresher);
        let told = format!("{:?}", heard.0.lock().unwrap());
        assert!(
            told.contains("secret token") && told.contains("a.test"),
            "{told}"
        );
        assert!(!told.contains("sk-halfway"), "{told}");
        assert_eq!(format!("{value:?}").matches("SecretText").count(), 1);
    }

    #[test]
    fn the_end_does_not_wait_for_a_command_and_leaves_none() {
        let place = tempfile::tempdir().unwrap();
        let pid = place.path().join("pid");
        let value = LiveSecret::new(SecretText::new("first".to_owned()));
        let script = format!(
            "echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000",
            pid.display()
        );
        let (refresher, heard) = started(place.path(), &script, &value);
        eventually("it runs", || pid.exists());
        drop(refresher);
        let pid = std::fs::read_to_string(&pid).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists());
        assert_eq!(heard.0.lock().unwrap().len(), 0);
    }
}
