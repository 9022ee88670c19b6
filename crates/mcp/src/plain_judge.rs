//! A judge by the lists of tools alone, for who has no more than a [`ToolRules`].

use crate::judge::{
    Ask, DENIED, Denial, Finished, HoldAnswer, HoldTicket, Judge, Listed, RATE_LIMITED, Ruling,
};
use belljar_policy::{ToolRules, decide_tool};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Asks the lists of tools; lets servers ask nothing.
#[derive(Debug)]
pub struct PlainJudge {
    rules: ToolRules,
    /// When the calls of the last minute were.
    calls: Mutex<VecDeque<Instant>>,
}

impl PlainJudge {
    /// A judge by these lists.
    #[must_use]
    pub fn new(rules: ToolRules) -> Self {
        Self {
            rules,
            calls: Mutex::new(VecDeque::new()),
        }
    }

    fn tool(&self, server: &str, tool: &str) -> Result<(), Denial> {
        let decision = decide_tool(&self.rules, &format!("{server}:{tool}"));
        if decision.is_allow() {
            return Ok(());
        }
        Err(Denial {
            code: DENIED,
            reason: decision.reason().code().to_owned(),
            message: format!("{server}:{tool} may not be called"),
            rule: decision.because().origin.to_string(),
            hint: decision.because().hint.clone(),
        })
    }

    fn count(&self) -> Result<(), Denial> {
        let Some(most) = self.rules.rate_limit_per_min else {
            return Ok(());
        };
        let now = Instant::now();
        let mut calls = self
            .calls
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        while calls
            .front()
            .is_some_and(|call| now.duration_since(*call) >= Duration::from_secs(60))
        {
            calls.pop_front();
        }
        if calls.len() >= most as usize {
            return Err(Denial {
                code: RATE_LIMITED,
                reason: "deny_tool_rate".into(),
                message: format!("more than {most} calls in a minute"),
                rule: "rate_limit_per_minute".into(),
                hint: Some("wait, or raise rate_limit_per_minute".into()),
            });
        }
        calls.push_back(now);
        Ok(())
    }
}

impl Judge for PlainJudge {
    fn judge(&self, ask: &Ask<'_>) -> Ruling {
        let ruling = match ask {
            Ask::Tool { server, tool, .. } => self.tool(server, tool).and_then(|()| self.count()),
            Ask::FromServer { server, method } => Err(Denial {
                code: DENIED,
                reason: "deny_server_request".into(),
                message: format!("the server {server} may not ask {method} of its client"),
                rule: "built in".into(),
                hint: None,
            }),
            Ask::Resource { .. } | Ask::Prompt { .. } | Ask::Other { .. } => Ok(()),
        };
        ruling.map_or_else(Ruling::Deny, |()| Ruling::Allow)
    }

    fn wait(&self, _: &HoldTicket) -> HoldAnswer {
        HoldAnswer::TimedOut
    }

    fn list(&self, server: &str, mut tools: Vec<Value>) -> Vec<Value> {
        tools.retain(|tool| {
            let name = tool.get("name").and_then(Value::as_str);
            name.is_some_and(|name| self.tool(server, name).is_ok())
        });
        tools
    }

    fn list_names(&self, _: &str, _: Listed, names: &[&str]) -> Vec<bool> {
        vec![true; names.len()]
    }

    fn finished(&self, _: Finished<'_>) {}

    fn malformed(&self, _: &str, _: &str) {}
}
