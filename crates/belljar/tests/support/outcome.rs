//! What a run reported: Belljar's result object, and the probe's lines in it.

use serde_json::Value;

use super::watch::Finished;

/// One attempt as the probe reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) name: String,
    pub(crate) allowed: bool,
    pub(crate) detail: String,
}

impl Attempt {
    /// Reads `NAME: allowed DETAIL` and `NAME: refused ERRNO`; other lines are not the probe's.
    pub(crate) fn parse(text: &str) -> Vec<Attempt> {
        text.lines().filter_map(Attempt::parse_line).collect()
    }

    fn parse_line(line: &str) -> Option<Attempt> {
        let (name, rest) = line.trim_end().split_once(": ")?;
        let (verdict, detail) = rest.split_once(' ').unwrap_or((rest, ""));
        let allowed = match verdict {
            "allowed" => true,
            "refused" => false,
            _ => return None,
        };
        Some(Attempt {
            name: name.to_owned(),
            allowed,
            detail: detail.to_owned(),
        })
    }
}

/// Fails unless there were attempts and each was refused.
#[track_caller]
pub(crate) fn assert_all_refused(attempts: &[Attempt]) {
    let through: Vec<&Attempt> = attempts.iter().filter(|attempt| attempt.allowed).collect();
    assert!(!attempts.is_empty(), "the probe reported nothing");
    assert!(through.is_empty(), "not refused: {through:#?}");
}

/// Fails unless there were attempts and each was allowed.
#[track_caller]
pub(crate) fn assert_all_allowed(attempts: &[Attempt]) {
    let blocked: Vec<&Attempt> = attempts.iter().filter(|attempt| !attempt.allowed).collect();
    assert!(!attempts.is_empty(), "the probe reported nothing");
    assert!(blocked.is_empty(), "not allowed: {blocked:#?}");
}

/// The result of `belljar run --output json`.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) finished: Finished,
    pub(crate) json: Value,
}

impl Outcome {
    /// Standard output must be exactly one JSON object on one line.
    #[track_caller]
    pub(crate) fn from_json(finished: Finished) -> Outcome {
        let text = finished.stdout();
        let said = finished.stderr();
        assert!(
            text.ends_with('\n') && text.trim_end().lines().count() == 1,
            "standard output is not one line of JSON: {text:?}\n{said}"
        );
        let json: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}\n{said}"));
        assert!(json.is_object(), "not an object: {json}");
        Outcome { finished, json }
    }

    pub(crate) fn code(&self) -> i32 {
        self.finished.code()
    }

    pub(crate) fn sandbox_id(&self) -> &str {
        self.json["sandbox_id"]
            .as_str()
            .unwrap_or_else(|| panic!("no sandbox_id in {}", self.json))
    }

    pub(crate) fn exit_code(&self) -> Option<i64> {
        self.json["exit_code"].as_i64()
    }

    pub(crate) fn signal(&self) -> Option<i64> {
        self.json["signal"].as_i64()
    }

    pub(crate) fn killed_by(&self) -> Option<&str> {
        self.json["killed_by"].as_str()
    }

    pub(crate) fn limits_by(&self) -> &str {
        self.json["limits_by"]
            .as_str()
            .unwrap_or_else(|| panic!("no limits_by in {}", self.json))
    }

    pub(crate) fn stdout(&self) -> &str {
        self.json["stdout"]
            .as_str()
            .unwrap_or_else(|| panic!("no stdout in {}", self.json))
    }

    pub(crate) fn stderr(&self) -> &str {
        self.json["stderr"]
            .as_str()
            .unwrap_or_else(|| panic!("no stderr in {}", self.json))
    }

    pub(crate) fn usage(&self, name: &str) -> f64 {
        let usage = &self.json["resource_usage"][name];
        usage
            .as_f64()
            .unwrap_or_else(|| panic!("no resource_usage.{name} in {}", self.json))
    }

    pub(crate) fn error_code(&self) -> Option<&str> {
        self.json["error"]["code"].as_str()
    }

    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        Attempt::parse(self.stdout())
    }

    /// The names of refused system calls that the result lists.
    pub(crate) fn violations(&self) -> Vec<&str> {
        let list = self.json["violations"]
            .as_array()
            .unwrap_or_else(|| panic!("no violations in {}", self.json));
        list.iter()
            .filter_map(|violation| violation["name"].as_str())
            .collect()
    }

    /// The program ran to its own end with this exit code, and Belljar passed it on.
    #[track_caller]
    pub(crate) fn assert_exit(&self, code: i64) -> &Outcome {
        assert_eq!(self.exit_code(), Some(code), "{self:#?}");
        assert_eq!(i64::from(self.code()), code, "{self:#?}");
        assert_eq!(self.killed_by(), None, "{self:#?}");
        self
    }

    /// Belljar ended the box for this reason, with this exit code of its own.
    #[track_caller]
    pub(crate) fn assert_killed(&self, by: &str, code: i32) -> &Outcome {
        assert_eq!(self.killed_by(), Some(by), "{self:#?}");
        assert_eq!(self.code(), code, "{self:#?}");
        self
    }
}
