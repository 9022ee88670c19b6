//! How many connections a second the rules could decide about.

use std::time::Instant;

use belljar_policy::{CompiledRules, Host, Origin, Outcome, Rule};
use serde_json::{Value, json};

use crate::engine::allow;
use crate::median;

const RULES: usize = 1000;
const COUNT: u32 = 1_000_000;
const ROUNDS: usize = 7;

pub(crate) fn measure() -> Value {
    let rules = (0..RULES).map(|at| {
        let domain = match at % 3 {
            0 => format!("h{at}.example.com"),
            1 => format!("*.s{at}.example.org"),
            _ => format!("10.{}.{}.0/24", at % 256, at / 256),
        };
        Rule::new(allow(&domain, &[443]), Origin::built_in())
    });
    let rules = CompiledRules::new(rules.collect::<Vec<_>>());
    let hosts = [
        "h3.example.com",
        "a.b.s4.example.org",
        "10.2.0.9",
        "nowhere.test",
    ];
    let hosts = hosts.map(|host| Host::parse(host).unwrap());
    let rounds = (0..ROUNDS).map(|_| {
        let (started, mut allowed) = (Instant::now(), 0_u32);
        for at in 0..COUNT {
            let host = std::hint::black_box(&hosts[at as usize % hosts.len()]);
            allowed += u32::from(matches!(rules.decide(host, 443), Outcome::Allow(_)));
        }
        assert_eq!(allowed, COUNT / 4 * 3);
        f64::from(COUNT) / started.elapsed().as_secs_f64()
    });
    json!({"rules": RULES, "per_second": median(rounds)})
}
