//! What the tests of `belljar learn` share.

use super::{Finished, Jail, Who, finish};
use serde_json::Value;

/// A world in which programs read nothing for their language.
pub(crate) fn plain_jail(who: Who) -> Jail {
    let mut jail = Jail::new(who);
    jail.variable("LANG", "C");
    jail
}

pub(crate) fn jail_with(who: Who, agent: &str) -> Jail {
    let jail = plain_jail(who);
    jail.put(&jail.work.join("agent.py"), agent);
    jail
}

#[track_caller]
pub(crate) fn belljar_in(jail: &Jail, arguments: &[&str]) -> Finished {
    let done = finish(jail.belljar(arguments).spawn().expect("start belljar"));
    jail.assert_nothing_left(None);
    done
}

#[track_caller]
pub(crate) fn succeeded(done: &Finished) -> String {
    assert_eq!(done.code(), 0, "{}\n{}", done.stdout(), done.stderr());
    done.stdout()
}

/// The learned file is valid; as JSON.
#[track_caller]
pub(crate) fn valid(jail: &Jail, yaml: &str) -> Value {
    let file = jail.base.join("learned.yaml");
    jail.put(&file, yaml);
    let arguments = ["validate", "--output", "json", "--config"];
    let done = belljar_in(jail, &[&arguments[..], &[&file.to_string_lossy()]].concat());
    assert_eq!(done.code(), 0, "{yaml}\n{}", done.stdout());
    serde_json::from_str::<Value>(&done.stdout()).expect("JSON")["capability"].clone()
}
