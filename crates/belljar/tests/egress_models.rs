//! Providers' own libraries, unmodified, against servers that speak as the providers do: with a placeholder for a key, charged
//! exactly what was reported, and never beyond the budget.

mod support;

use support::{
    Outcome, Who, World, assert_recorded, eventually, for_each_user_in_a_world,
    on_other_tiers_in_a_world,
};

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

const RULES: &[&str] = &[
    "{domain: api.openai.com, ports: [443]}",
    "{domain: api.anthropic.com, ports: [443]}",
    "{domain: generativelanguage.googleapis.com, ports: [443]}",
];

const SECRETS: &str = "secrets:
  - {name: openai, from: {env: REAL_OPENAI}, domain: api.openai.com, as: bearer, env: OPENAI_API_KEY}
  - {name: anthropic, from: {env: REAL_ANTHROPIC}, domain: api.anthropic.com, as: bearer, env: ANTHROPIC_API_KEY}
  - {name: gemini, from: {env: REAL_GEMINI}, domain: generativelanguage.googleapis.com, as: {header: x-goog-api-key}, env: GEMINI_API_KEY}
";

fn world(who: Who, limits: &str) -> World {
    let mut world = World::new(who);
    world.rules(RULES, &format!("{SECRETS}{limits}"));
    world
        .jail
        .variable("REAL_OPENAI", OPENAI_KEY)
        .variable("REAL_ANTHROPIC", ANTHROPIC_KEY)
        .variable("REAL_GEMINI", GEMINI_KEY);
    world
}

fn set_limits(world: &mut World, limits: &str) {
    world.rules(RULES, &format!("{SECRETS}resource_limits: {{{limits}}}\n"));
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

/// Each way answers with another number of tokens, so that no two charges can be taken for each other.
fn every_way_of_calling_is_charged_what_was_reported(who: Who) {
    let world = world(who, "");
    let ways = [
        ("chat", 3),
        ("chat-stream", 5),
        ("chat-stream-with-usage", 7),
        ("responses", 11),
        ("responses-stream", 13),
        ("messages", 17),
        ("messages-stream", 19),
        ("gemini", 23),
        ("gemini-stream", 29),
    ];
    let words: Vec<String> = ways
        .iter()
        .flat_map(|(way, tokens)| [(*way).to_owned(), format!("say-{tokens}"), "1".to_owned()])
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = world.python("sdk.py", &words);
    outcome.assert_exit(0);
    let said: Vec<String> = ways
        .iter()
        .map(|(way, tokens)| format!("{way} ok {tokens}"))
        .collect();
    assert_eq!(outcome.stdout().lines().collect::<Vec<_>>(), said);
    assert_charged_as_reported(&world, 0, &outcome);
    assert_keys_arrived(&world, ways.len());
}

/// Every request carried its provider's real key, and no placeholder.
#[track_caller]
fn assert_keys_arrived(world: &World, count: usize) {
    let requests = world.seen_since(0, "http");
    assert_eq!(requests.len(), count, "{requests:#?}");
    for request in requests {
        let (header, key) = match request["host"].as_str() {
            Some("api.openai.com") => ("authorization", format!("Bearer {OPENAI_KEY}")),
            Some("api.anthropic.com") => ("authorization", format!("Bearer {ANTHROPIC_KEY}")),
            _ => ("x-goog-api-key", GEMINI_KEY.to_owned()),
        };
        assert_eq!(request["headers"][header], key, "{request:#}");
        assert!(!request.to_string().contains("placeholder"), "{request:#}");
    }
}

fn openais_library_for_node_is_charged_what_was_reported(who: Who) {
    let world = world(who, "");
    let program = world.program("sdk.mjs");
    let outcome = world.jail.run(&["node", &program]);
    outcome.assert_exit(0);
    assert_eq!(outcome.stdout(), "chat 5\nstream 5\nresponse 6\n");
    assert_charged_as_reported(&world, 0, &outcome);
    assert_keys_arrived(&world, 3);
}

/// What was streamed when the reader left is charged as an estimate: no less than what came, no more than was set aside.
fn a_stream_that_is_left_is_settled(who: Who) {
    const LIMITS: &str = "resource_limits: {max_tokens: 100000, max_cost_usd: 1.0}\n";
    let world = world(who, LIMITS);
    let outcome = world.python(
        "sdk.py",
        &[
            "cut",
            "say-7",
            "1",
            "cut-messages",
            "say-7",
            "1",
            "left-open",
            "-",
            "1",
        ],
    );
    outcome.assert_exit(0);
    assert_eq!(outcome.stdout(), "cut ok 7\ncut-messages ok 7\n");
    eventually("the server sees its clients go", || {
        (world.seen_since(0, "gone").len() == 3).then_some(())
    });
    for (model, left) in [(OPENAI, 2), (CLAUDE, 1)] {
        let used = &outcome.json["network"]["llm"]["models"][model];
        let [calls, input, _, output] = charged(&outcome, model);
        let [whole, whole_input, _, whole_output] = reported(&world, 0, model);
        assert_eq!(used["estimated"], left, "{outcome:#?}");
        assert_eq!(calls, whole + left, "{outcome:#?}");
        assert!(input > whole_input, "{used}");
        let estimated = output - whole_output;
        assert!((left..=left * 50).contains(&estimated), "{used}");
    }
}

/// Every answer is as long as it may be, and sixteen are asked for at once.
fn parallel_calls_never_go_beyond_the_budget(who: Who) {
    let mut world = world(who, "");
    for (limit, most_tokens, most_usd) in [
        ("max_tokens: 2600", 2600, f64::MAX),
        ("max_cost_usd: 0.0005", u64::MAX, 0.0005),
    ] {
        set_limits(&mut world, &format!("{limit}, on_budget: refuse"));
        let before = world.seen().len();
        let outcome = world.python("sdk.py", &["chat-stream", "fill", "16"]);
        outcome.assert_exit(0);
        let [made, input, cached, output] = charged(&outcome, OPENAI);
        assert_eq!(
            [made, input, cached, output],
            reported(&world, before, OPENAI),
            "{outcome:#?}"
        );
        let tokens = input + cached + output;
        assert!(tokens <= most_tokens, "{tokens} tokens: {outcome:#?}");
        assert!(total_cost(&outcome) <= most_usd, "{outcome:#?}");
        // Some were made and some refused, so it was the budget that ended them.
        let count = |what: &str| {
            let lines = outcome.stdout().lines();
            lines.filter(|line| line.contains(what)).count() as u64
        };
        assert_eq!(count(" ok "), made, "{outcome:#?}");
        assert_eq!(
            count(" refused 402 insufficient_quota"),
            16 - made,
            "{outcome:#?}"
        );
        assert!((1..16).contains(&made), "{outcome:#?}");
    }
}

const CHAT: &str = "https://api.openai.com/v1/chat/completions";
const ASKED: &str = r#"{"model": "gpt-4o-mini", "max_tokens": 50, "messages": [{"role": "user", "content": "fill"}]}"#;

fn a_used_up_budget_ends_the_run_or_goes_on_without_models(who: Who) {
    const LIMIT_CODE: i32 = 123;
    let mut world = world(who, "");
    for (limit, by, code) in [
        ("max_tokens: 2300", "tokens", "deny_llm_tokens"),
        ("max_cost_usd: 0.00037", "cost", "deny_llm_cost"),
    ] {
        for (on_budget, kills) in [("kill", true), ("refuse", false)] {
            set_limits(&mut world, &format!("{limit}, on_budget: {on_budget}"));
            // One that is to be killed does not end by itself.
            let then = if kills { "sleep 3600" } else { "true" };
            let script = format!(
                "for call in $(seq 12)
                 do curl --silent --output answer --write-out '%{{http_code}} ' {CHAT} --header 'content-type: application/json' --data '{ASKED}'
                 done; {then}; echo still here"
            );
            let outcome = world.shell(&script);
            assert_recorded(&outcome, by, &[code]);
            let recorded = world.recorded(outcome.sandbox_id());
            assert!(recorded.contains(&code.to_owned()), "{recorded:?}");
            if kills {
                outcome.assert_killed(by, LIMIT_CODE);
                assert!(!outcome.stdout().contains("still here"), "{outcome:#?}");
            } else {
                outcome.assert_exit(0);
                assert!(outcome.stdout().contains("still here"), "{outcome:#?}");
                let codes: Vec<&str> = outcome.stdout().split(' ').collect();
                assert_eq!(codes.first(), Some(&"200"), "{outcome:#?}");
                assert_eq!(codes.get(11), Some(&"402"), "{outcome:#?}");
            }
        }
    }
}

fn a_model_without_a_price_is_refused_where_money_is_limited(who: Who) {
    let mut world = world(who, "");
    // By HTTP/2, which none of the libraries speak.
    let asked = "curl --silent --fail --http2 https://api.openai.com/v1/chat/completions --header 'content-type: application/json' \
        --data '{\"model\": \"gpt-next\", \"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": \"say-2\"}]}'";
    set_limits(&mut world, "max_cost_usd: 1.0, on_budget: refuse");
    let outcome = world.shell(&format!("{asked} || true"));
    assert_eq!(outcome.stdout(), "", "{outcome:#?}");
    assert_recorded(&outcome, "gpt-next", &["deny_llm_unknown_model"]);
    assert_eq!(world.seen_since(0, "usage").len(), 0);
    set_limits(&mut world, "max_tokens: 100000, on_budget: refuse");
    let outcome = world.shell(asked);
    outcome.assert_exit(0);
    assert_eq!(
        charged(&outcome, "gpt-next"),
        reported(&world, 0, "gpt-next")
    );
    assert_eq!(world.seen_since(0, "http")[0]["version"], "2");
}

for_each_user_in_a_world!(
    every_way_of_calling_is_charged_what_was_reported,
    openais_library_for_node_is_charged_what_was_reported,
    a_stream_that_is_left_is_settled,
    parallel_calls_never_go_beyond_the_budget,
    a_used_up_budget_ends_the_run_or_goes_on_without_models,
    a_model_without_a_price_is_refused_where_money_is_limited,
);

on_other_tiers_in_a_world!(
    a_used_up_budget_ends_the_run_or_goes_on_without_models,
    parallel_calls_never_go_beyond_the_budget
);
