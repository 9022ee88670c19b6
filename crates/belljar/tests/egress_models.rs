//! Providers' own libraries, unmodified, against servers that speak as the providers do: with a placeholder for a key, charged
//! exactly what was reported, and never beyond the budget.

mod support;

use serde_json::Value;
use support::{Outcome, PYTHON, Who, World, assert_recorded, codes, eventually, for_each_user_in_a_world};

const OPENAI: &str = "gpt-4o-mini";
const CLAUDE: &str = "claude-sonnet-4-5";
const GEMINI: &str = "gemini-2.5-flash";

/// The shipped prices, in 10⁻¹² dollars: fresh, cached and answered.
const PRICES: [(&str, [u64; 3]); 3] = [
    (OPENAI, [150_000, 75_000, 600_000]),
    (CLAUDE, [3_000_000, 300_000, 15_000_000]),
    (GEMINI, [300_000, 30_000, 2_500_000]),
];

const OPENAI_KEY: &str = "sk-real-openai-7f3a9c";
const ANTHROPIC_KEY: &str = "sk-ant-real-51bd20";
const GEMINI_KEY: &str = "AIza-real-c04e88";

const SECRETS: &str = "secrets:
  - {name: openai, from: {env: REAL_OPENAI}, domain: api.openai.com, as: bearer, env: OPENAI_API_KEY}
  - {name: anthropic, from: {env: REAL_ANTHROPIC}, domain: api.anthropic.com, as: {header: x-api-key}, env: ANTHROPIC_API_KEY}
  - {name: gemini, from: {env: REAL_GEMINI}, domain: generativelanguage.googleapis.com, as: {header: x-goog-api-key}, env: GEMINI_API_KEY}
";

fn world(who: Who, limits: &str) -> World {
    let mut world = World::new(who);
    world.rules(
        &[
            "{domain: api.openai.com, ports: [443]}",
            "{domain: api.anthropic.com, ports: [443]}",
            "{domain: generativelanguage.googleapis.com, ports: [443]}",
        ],
        &format!("{SECRETS}{limits}"),
    );
    world
        .jail
        .variable("REAL_OPENAI", OPENAI_KEY)
        .variable("REAL_ANTHROPIC", ANTHROPIC_KEY)
        .variable("REAL_GEMINI", GEMINI_KEY);
    world
}

/// What the servers say they were used for since: calls, fresh and cached tokens of prompts, tokens of answers.
fn reported(world: &World, before: usize, model: &str) -> [u64; 4] {
    let calls = world.seen_since(before, "usage");
    let of_model = calls.iter().filter(|call| call["model"] == model);
    of_model.fold([0; 4], |sum, call| {
        let part = |name: &str| call[name].as_u64().expect("a number");
        [
            sum[0] + 1,
            sum[1] + part("input"),
            sum[2] + part("cached"),
            sum[3] + part("output"),
        ]
    })
}

/// What the run was charged, in the same form.
fn charged(outcome: &Outcome, model: &str) -> [u64; 4] {
    let used = &outcome.json["network"]["llm"]["models"][model];
    ["calls", "input", "cache_read", "output"].map(|name| used[name].as_u64().unwrap_or(0))
}

fn total_cost(outcome: &Outcome) -> f64 {
    outcome.json["network"]["llm"]["total"]["cost_usd"]
        .as_f64()
        .unwrap_or_else(|| panic!("no cost in {}", outcome.json))
}

/// In dollars, computed anew.
fn cost_of(model: &str, [_, input, cached, output]: [u64; 4]) -> f64 {
    let (_, rates) = PRICES
        .into_iter()
        .find(|(name, _)| *name == model)
        .expect("a price");
    (input * rates[0] + cached * rates[1] + output * rates[2]) as f64 / 1e12
}

#[track_caller]
fn assert_charged_as_reported(world: &World, before: usize, outcome: &Outcome) {
    let mut cost = 0.0;
    for (model, _) in PRICES {
        let reported = reported(world, before, model);
        assert_eq!(charged(outcome, model), reported, "{model}: {outcome:#?}");
        cost += cost_of(model, reported);
    }
    let found = total_cost(outcome);
    assert!((found - cost).abs() < 1e-12, "{found} is not {cost}");
    assert_eq!(outcome.json["network"]["llm"]["total"]["estimated"], 0);
}

/// Each way of calling, one run each, so that what one is charged can't hide in another.
fn every_way_of_calling_is_charged_what_was_reported(who: Who) {
    let world = world(who, "");
    for (way, header, key) in [
        ("chat", "authorization", OPENAI_KEY),
        ("chat-stream", "authorization", OPENAI_KEY),
        ("chat-stream-with-usage", "authorization", OPENAI_KEY),
        ("responses", "authorization", OPENAI_KEY),
        ("responses-stream", "authorization", OPENAI_KEY),
        ("messages", "x-api-key", ANTHROPIC_KEY),
        ("messages-stream", "x-api-key", ANTHROPIC_KEY),
        ("gemini", "x-goog-api-key", GEMINI_KEY),
        ("gemini-stream", "x-goog-api-key", GEMINI_KEY),
    ] {
        let before = world.seen().len();
        let outcome = world.python("sdk.py", &[way]);
        outcome.assert_exit(0);
        assert_eq!(outcome.stdout(), "ok 7\n", "{way}: {outcome:#?}");
        assert_charged_as_reported(&world, before, &outcome);
        let requests = world.seen_since(before, "http");
        assert_eq!(requests.len(), 1, "{way}: {requests:#?}");
        let sent = requests[0]["headers"][header].as_str().unwrap_or_default();
        assert_eq!(sent.trim_start_matches("Bearer "), key, "{way}");
    }
}

fn openais_library_for_node_is_charged_what_was_reported(who: Who) {
    let world = world(who, "");
    let program = world.program("sdk.mjs");
    let outcome = world.jail.run(&["node", &program]);
    outcome.assert_exit(0);
    assert_eq!(outcome.stdout(), "chat 5\nstream 5\nresponse 6\n");
    assert_charged_as_reported(&world, 0, &outcome);
    for request in world.seen_since(0, "http") {
        assert_eq!(
            request["headers"]["authorization"],
            format!("Bearer {OPENAI_KEY}")
        );
    }
}

/// What was streamed when the reader left is charged as an estimate: no less than what came, no more than was set aside.
fn a_stream_that_is_left_is_settled(who: Who) {
    let world = world(who, "resource_limits: {max_tokens: 100000, max_cost_usd: 1.0}\n");
    for (way, model, calls) in [
        ("cut", OPENAI, 2),
        ("cut-messages", CLAUDE, 2),
        ("left-open", OPENAI, 1),
    ] {
        let before = world.seen().len();
        let outcome = world.python("sdk.py", &[way]);
        outcome.assert_exit(0);
        eventually("the server sees its client go", || {
            (!world.seen_since(before, "gone").is_empty()).then_some(())
        });
        let used = &outcome.json["network"]["llm"]["models"][model];
        let [made, input, _, output] = charged(&outcome, model);
        assert_eq!(made, calls, "{way}: {outcome:#?}");
        assert_eq!(used["estimated"], 1, "{way}: {outcome:#?}");
        let whole = reported(&world, before, model);
        assert!(input > whole[1], "{way}: {used}");
        assert!(
            (whole[3] + 1..=whole[3] + 50).contains(&output),
            "{way}: {used}"
        );
    }
}

/// Every answer is as long as it may be, and sixteen are asked for at once.
fn parallel_calls_never_go_beyond_the_budget(who: Who) {
    for (limits, most_tokens, most_usd) in [
        ("{max_tokens: 900, on_budget: refuse}", 900, f64::MAX),
        ("{max_cost_usd: 0.0002, on_budget: refuse}", u64::MAX, 0.0002),
    ] {
        let world = world(who, &format!("resource_limits: {limits}\n"));
        let outcome = world.python("sdk.py", &["chat-stream", "fill", "16"]);
        outcome.assert_exit(0);
        let [made, input, cached, output] = charged(&outcome, OPENAI);
        let reported = reported(&world, 0, OPENAI);
        assert_eq!([made, input, cached, output], reported, "{outcome:#?}");
        let tokens = input + cached + output;
        assert!(tokens <= most_tokens, "{tokens} tokens: {outcome:#?}");
        assert!(total_cost(&outcome) <= most_usd, "{outcome:#?}");
        // The budget was the reason that it ended: some calls were made, and some were refused.
        let lines: Vec<&str> = outcome.stdout().lines().collect();
        let made_it = lines.iter().filter(|line| line.starts_with("ok")).count();
        assert_eq!(lines.len(), 16, "{outcome:#?}");
        assert_eq!(made_it as u64, made, "{outcome:#?}");
        assert!((1..16).contains(&made_it), "{outcome:#?}");
        assert!(
            lines
                .iter()
                .all(|line| line.starts_with("ok ") || line.starts_with("refused 4")),
            "{outcome:#?}"
        );
        drop(world);
        std::fs::remove_file(format!("{}/seen.jsonl", support::PLACE)).expect("a journal");
    }
}

fn a_used_up_budget_ends_the_run_or_goes_on_without_models(who: Who) {
    for (limit, by, code, exit) in [
        ("max_tokens: 60", "tokens", "deny_llm_tokens", 125),
        ("max_cost_usd: 0.00002", "cost", "deny_llm_cost", 125),
    ] {
        let world = world(who, &format!("resource_limits: {{{limit}}}\n"));
        let script = format!(
            "{PYTHON} -B {} chat say-9 12; echo still here",
            world.program("sdk.py")
        );
        let outcome = world.shell(&script);
        println!("{outcome:#?}");
        assert_eq!(outcome.killed_by(), Some(by), "{outcome:#?}");
        assert_ne!(outcome.code(), 0, "{exit}");
        assert_recorded(&outcome, by, &[code]);
        assert!(world.recorded(outcome.sandbox_id()).contains(&code.to_owned()));
        drop(world);
        std::fs::remove_file(format!("{}/seen.jsonl", support::PLACE)).expect("a journal");
    }
}

for_each_user_in_a_world!(
    every_way_of_calling_is_charged_what_was_reported,
    openais_library_for_node_is_charged_what_was_reported,
    a_stream_that_is_left_is_settled,
    parallel_calls_never_go_beyond_the_budget,
    a_used_up_budget_ends_the_run_or_goes_on_without_models,
);
