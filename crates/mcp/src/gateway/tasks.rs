//! Calls that became tasks: which tool each is of, for as long as it lasts.
//!
//! A task is known by an id of the server's, and whoever has one can have the result. So a session answers for the tasks that
//! its own calls became and for no others: what another client of the same server was allowed is not this one's to read.

use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Tasks that are kept in mind; then the oldest is forgotten.
const MOST: usize = 256;

/// No id is longer.
const LONGEST_ID: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Tasks {
    by_id: HashMap<String, Task>,
    /// As they came.
    order: VecDeque<String>,
}

#[derive(Debug)]
struct Task {
    tool: String,
    /// None is for as long as the session lasts.
    until: Option<Instant>,
}

impl Tasks {
    /// Takes note of a task, if a call's answer is one: in `task` until 2025-11-25, the answer itself since.
    pub(super) fn note(&mut self, tool: &str, answer: &Value, now: Instant) {
        let is_task = answer.get("resultType").is_some_and(|kind| kind == "task");
        let Some(task) = answer.get("task").or(is_task.then_some(answer)) else {
            return;
        };
        let Some(id) = task.get("taskId").and_then(Value::as_str) else {
            return;
        };
        if id.len() > LONGEST_ID {
            return;
        }
        if self.order.len() >= MOST {
            self.forget_late(now);
        }
        let lasts = task.get("ttl").or_else(|| task.get("ttlMs"));
        let lasts = lasts.and_then(Value::as_u64).map(Duration::from_millis);
        let task = Task {
            tool: tool.to_owned(),
            until: lasts.and_then(|lasts| now.checked_add(lasts)),
        };
        if self.by_id.insert(id.to_owned(), task).is_none() {
            self.order.push_back(id.to_owned());
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }

    /// The tool whose call became this task; none of a task that is over, or another's.
    pub(super) fn tool(&self, id: &str, now: Instant) -> Option<&str> {
        let task = self.by_id.get(id)?;
        (!task.is_late(now)).then_some(task.tool.as_str())
    }

    /// Leaves of a list of tasks those of the session's own. Whether it was a list.
    pub(super) fn show(&self, result: &mut Value, now: Instant) -> bool {
        let Some(Value::Array(tasks)) = result.get_mut("tasks") else {
            return false;
        };
        tasks.retain(|task| {
            let id = task.get("taskId").and_then(Value::as_str);
            id.is_some_and(|id| self.tool(id, now).is_some())
        });
        true
    }

    fn forget_late(&mut self, now: Instant) {
        self.by_id.retain(|_, task| !task.is_late(now));
        self.order.retain(|id| self.by_id.contains_key(id));
    }
}

impl Task {
    fn is_late(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_task_is_known_until_its_time_is_over() {
        let (mut tasks, now) = (Tasks::default(), Instant::now());
        tasks.note("slow", &json!({"task": {"taskId": "a", "ttl": 1000}}), now);
        tasks.note("slow", &json!({"task": {"taskId": "b", "ttl": null}}), now);
        let newer = json!({"resultType": "task", "taskId": "c", "ttlMs": 5000});
        tasks.note("other", &newer, now);
        tasks.note("plain", &json!({"taskId": "d", "content": []}), now);
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!(tasks.tool("a", at(999)), Some("slow"));
        assert_eq!(tasks.tool("a", at(1000)), None);
        assert_eq!(tasks.tool("b", at(1_000_000)), Some("slow"));
        assert_eq!(tasks.tool("c", at(1000)), Some("other"));
        assert_eq!(tasks.tool("d", now), None, "it is an answer, not a task");
        let mut list = json!({"tasks": [{"taskId": "a"}, {"taskId": "b"}, {"taskId": "x"}, {}]});
        assert!(tasks.show(&mut list, at(1000)));
        assert_eq!(list, json!({"tasks": [{"taskId": "b"}]}));
    }

    #[test]
    fn no_more_are_kept_in_mind_than_that() {
        let (mut tasks, now) = (Tasks::default(), Instant::now());
        for n in 0..=MOST {
            let answer = json!({"task": {"taskId": n.to_string(), "ttl": null}});
            tasks.note("slow", &answer, now);
            tasks.note("slow", &answer, now);
        }
        assert_eq!((tasks.by_id.len(), tasks.order.len()), (MOST, MOST));
        assert_eq!(tasks.tool("0", now), None);
        assert_eq!(tasks.tool(&MOST.to_string(), now), Some("slow"));
        // What is over makes room.
        let late = now + Duration::from_secs(1);
        for n in 0..MOST {
            tasks.note(
                "brief",
                &json!({"task": {"taskId": format!("b{n}"), "ttl": 1000}}),
                now,
            );
        }
        tasks.note("slow", &json!({"task": {"taskId": "z", "ttl": null}}), late);
        assert_eq!((tasks.by_id.len(), tasks.order.len()), (1, 1));
    }
}
