//! What a family spends on models: metered by its gateway, taken from one budget, whoever of it calls.

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use support::{Family, Host, Said, Who, eventually, for_each_user};

/// Speaks like a provider: every answer is as long as it may be, and says so. It counts what it said.
struct Provider {
    port: u16,
    tokens: Arc<AtomicU64>,
}

const PROMPT: u64 = 10;

impl Provider {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let tokens = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&tokens);
        // Ends with the test's process, as a listener nobody connects to any more.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || serve(stream, &counted));
            }
        });
        Self { port, tokens }
    }

    fn said(&self) -> u64 {
        self.tokens.load(Ordering::SeqCst)
    }
}

fn serve(stream: TcpStream, counted: &AtomicU64) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let asked: Value = serde_json::from_slice(&body).ok()?;
        let output = asked["max_tokens"]
            .as_u64()
            .or(asked["max_completion_tokens"].as_u64())?;
        counted.fetch_add(PROMPT + output, Ordering::SeqCst);
        let answer = json!({
            "id": "x", "object": "chat.completion", "model": asked["model"],
            "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "…"}}],
            "usage": {"prompt_tokens": PROMPT, "completion_tokens": output, "total_tokens": PROMPT + output},
        })
        .to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        (&stream).write_all(head.as_bytes()).ok()?;
        (&stream).write_all(answer.as_bytes()).ok()?;
    }
}

fn family_with_models(who: Who, host: Host, provider: &Provider, tokens: u64) -> Family {
    let contract = format!("max_depth: 2\nmax_replicas: 4\nbudget:\n  tokens: {tokens}\n");
    let mut family = Family::prepare(who, &contract).host(host);
    let port = provider.port;
    let capability = format!(
        "extends: moderate\nnetwork_egress_rules:\n  - {{domain: localhost, ports: [{port}], rate_limit_per_min: 1000}}\n\
         llm:\n  on_budget: refuse\n  endpoints:\n    - {{domain: localhost, ports: [{port}], api: openai}}\n\
         resource_limits:\n  max_tokens: 1000000\n  max_cost_usd: 1000.0\n"
    );
    let jail = &family.jail;
    jail.put(&jail.base.join("capability.yaml"), &capability);
    family.start_puppet();
    family
}

/// Has a puppet call a model once.
fn call(family: &Family, name: &str, provider: &Provider) -> Said {
    let body =
        r#"{"model":"gpt-4o-mini","max_tokens":10000,"messages":[{"role":"user","content":"hi"}]}"#;
    let port = provider.port;
    family.order(
        name,
        &format!(
            "curl -sS -m 60 -w '\\n%{{http_code}}' -H 'content-type: application/json' -d '{body}' http://localhost:{port}/v1/chat/completions"
        ),
    )
}

/// Calls until it is refused; the codes.
fn call_until_refused(family: &Family, name: &str, provider: &Provider) -> Vec<String> {
    let mut codes = Vec::new();
    for _ in 0..10 {
        let said = call(family, name, provider);
        let code = said.out.lines().last().unwrap_or_default().to_owned();
        codes.push(code.clone());
        if code != "200" {
            assert!(
                said.out.contains("budget") || said.out.contains("insufficient_quota"),
                "{said:?}\n{}",
                family.output()
            );
            return codes;
        }
    }
    panic!("{name} was never refused: {codes:?}");
}

fn a_family_spends_from_one_budget(who: Who) {
    spends_from_one_budget(who, Host::Run);
}

fn a_family_spends_from_one_budget_under_a_supervisor(who: Who) {
    spends_from_one_budget(who, Host::Supervisor);
}

fn spends_from_one_budget(who: Who, host: Host) {
    let provider = Provider::start();
    let family = family_with_models(who, host, &provider, 50_000);
    let ann = family
        .replicate("root", "ann", "--tokens 20000")
        .expect("a grant");
    let codes = call_until_refused(&family, "root", &provider);
    let spent = provider.said();
    assert!(codes.len() > 2, "{codes:?}");
    assert!(
        spent <= 30_000,
        "the root spent its replica's part: {spent}"
    );
    assert_eq!(
        call(&family, "ann", &provider).out.lines().last(),
        Some("200")
    );
    // What the gateway metered stands in the books, for each of them.
    eventually("the root's calls are charged", || {
        let usage = family.agent("root", "usage").expect("its usage");
        (usage["spent"]["tokens"].as_u64() == Some(spent)).then_some(())
    });
    // What a replica leaves comes back to its parent, and no more than that.
    family.operator(&["kill", &ann]);
    let codes = call_until_refused(&family, "root", &provider);
    assert!(codes.len() >= 2, "nothing came back: {codes:?}");
    assert!(provider.said() <= 50_000, "{}", provider.said());
}

/// Agents that use models out of the gateway's sight say so at their door, and it counts.
fn what_is_reported_counts_too(who: Who) {
    counts_what_is_reported(who, Host::Run);
}

fn what_is_reported_counts_too_under_a_supervisor(who: Who) {
    counts_what_is_reported(who, Host::Supervisor);
}

fn counts_what_is_reported(who: Who, host: Host) {
    let provider = Provider::start();
    let family = family_with_models(who, host, &provider, 50_000);
    family
        .agent("root", "usage --tokens-in 40000 --tokens-out 9000")
        .expect("a report");
    let codes = call_until_refused(&family, "root", &provider);
    assert_eq!(codes.len(), 1, "{codes:?}");
    assert_eq!(provider.said(), 0);
}

for_each_user! {
    a_family_spends_from_one_budget,
    what_is_reported_counts_too,
    a_family_spends_from_one_budget_under_a_supervisor,
    what_is_reported_counts_too_under_a_supervisor,
}
