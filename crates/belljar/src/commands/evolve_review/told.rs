//! Where a proposal and its rollout stand, in words and as JSON.

use belljar_evolve::proposal::Proposal;
use belljar_evolve::release::Place;
use belljar_evolve::review::Standing;
use belljar_evolve::rollout::{Driver, RolloutError};
use serde_json::{Value, json};

use super::stopped;
use crate::cli::{Format, OutputFormat};
use crate::exit::{self, Failure};
use crate::print;

pub(super) fn words(standing: &Standing) -> String {
    match standing {
        Standing::Approved(_) => "approved".to_owned(),
        Standing::Rejected { by, .. } => format!("{by} rejected it"),
        Standing::Waiting { by, needed, void } => {
            let mut text = format!("{} of {needed} have approved", by.len());
            for (who, why) in void {
                let who = who
                    .as_ref()
                    .map_or("somebody".to_owned(), ToString::to_string);
                text.push_str(&format!("; what {who} said does not count: {why}"));
            }
            text
        }
    }
}

pub(super) fn told(standing: &Standing) -> Value {
    match standing {
        Standing::Approved(yes) => json!({"state": "approved", "by": yes.by()}),
        Standing::Rejected { by, reasons, text } => {
            json!({"state": "rejected", "by": by, "reasons": reasons, "text": text})
        }
        Standing::Waiting { by, needed, void } => json!({
            "state": "waiting", "by": by, "needed": needed,
            "void": void.iter().map(|(who, why)| json!({"reviewer": who, "why": why.to_string()})).collect::<Vec<_>>(),
        }),
    }
}

pub(super) fn tell(
    proposal: &Proposal,
    standing: &Standing,
    format: &Format,
) -> Result<u8, Failure> {
    if format.output == OutputFormat::Json {
        print::json(&json!({"proposal": proposal.id, "standing": told(standing)}));
    } else {
        print::out(&format!("{}  {}\n", proposal.id.short(), words(standing)));
    }
    Ok(exit::OK)
}

pub(super) fn show(driver: &Driver, format: &Format) -> Result<u8, Failure> {
    let Some(rollout) = driver.rollout() else {
        return Err(stopped(RolloutError::None));
    };
    let current = driver.store().shows(&Place::current()).ok().flatten();
    let (before, after) = rollout.canary().error_rates();
    if format.output == OutputFormat::Json {
        print::json(&json!({
            "proposal": rollout.proposal, "stage": rollout.stage().to_string(), "paused": rollout.paused(),
            "why_back": rollout.why_back(), "rounds": rollout.canary().rounds(), "current": current,
            "base": rollout.base, "candidate": rollout.candidate, "on_candidate": rollout.on_candidate(),
            "error_rate": {"baseline": before, "candidate": after}, "releases": driver.directory(),
        }));
        return Ok(exit::OK);
    }
    let short = |tree: &str| tree.chars().take(12).collect::<String>();
    print::out(&format!("stage      {}\n", rollout.stage()));
    if let Some(why) = rollout.why_back().or(rollout.paused()) {
        print::out(&format!("because    {}\n", print::harmless(why)));
    }
    print::out(&format!(
        "candidate  {}\nbefore     {}\n",
        short(&rollout.candidate),
        short(&rollout.base)
    ));
    print::out(&format!(
        "current    {}\n",
        short(&current.unwrap_or_default())
    ));
    print::out(&format!(
        "runs it    {}\n",
        rollout.on_candidate().join(" ")
    ));
    if !rollout.has_ended() {
        let rounds = rollout.canary().rounds();
        print::out(&format!(
            "looked at  {rounds} times; errors {:.2} % before, {:.2} % with it\n",
            before * 100.0,
            after * 100.0
        ));
    }
    print::out(&format!("releases   {}\n", driver.directory().display()));
    Ok(exit::OK)
}
