//! What a second of a fleet costs: samples of so many agents, some events, a query; CPU time, memory, bytes on disk.
//!
//!     cargo run --release -p belljar-monitor --example cost -- 500 120
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use belljar_api::{
    AgentId, AgentPhase, AgentView, BudgetView, EventKind, LimitsView, NewEvent, Severity, Shown,
    UsageNow,
};
use belljar_monitor::{Monitor, Settings};

fn main() {
    let mut words = std::env::args()
        .skip(1)
        .map(|word| word.parse::<u64>().unwrap());
    let (count, seconds) = (words.next().unwrap_or(500), words.next().unwrap_or(120));
    let directory = std::env::temp_dir().join(format!("belljar-cost-{}", std::process::id()));
    let monitor = Monitor::open(&directory, Settings::default()).unwrap();
    let mut agents: Vec<AgentView> = (0..count).map(agent).collect();
    let (began, cpu_began) = (Instant::now(), cpu());
    let mut random = 1_u64;
    for second in 0..seconds {
        for agent in &mut agents {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            agent.usage.cpu_ms += random >> 58;
            agent.usage.read_bytes += random >> 50;
            agent.usage.sent_bytes += random >> 55;
            agent.usage.memory_bytes = (64 << 20) + (random >> 44 << 12);
            monitor.sampled(agent);
        }
        for _ in 0..5 {
            monitor.happened(NewEvent {
                agent: Some(agents[0].id.clone()),
                kind: EventKind::Started,
                severity: Severity::Info,
                text: Shown::new("something happened"),
                code: None,
                hint: None,
            });
        }
        let next = began + Duration::from_secs(second + 1);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let spent = cpu() - cpu_began;
    let bytes: u64 = std::fs::read_dir(&directory)
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .map(|meta| meta.len())
        .sum();
    println!("{count} agents for {seconds} s");
    println!(
        "cpu   {:.2} % of one core",
        spent * 100.0 / began.elapsed().as_secs_f64()
    );
    println!("disk  {bytes} bytes, {:?} dropped", monitor.dropped());
    println!("memory {}", memory());
    drop(monitor);
    std::fs::remove_dir_all(directory).unwrap();
}

fn agent(number: u64) -> AgentView {
    AgentView {
        id: AgentId::new(format!("agent-{number}")).unwrap(),
        name: Shown::new("agent"),
        parent: None,
        depth: 0,
        phase: AgentPhase::Running,
        since_ms: 0,
        started_at_ms: 0,
        restarts: 0,
        restart_at_ms: None,
        command: Shown::new("sh"),
        capability: Shown::new("moderate"),
        usage: UsageNow::default(),
        limits: LimitsView::default(),
        budget: BudgetView::default(),
        open_alerts: 0,
        end: None,
    }
}

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap_or_default();
    line.trim_start_matches("VmRSS:").trim().to_owned()
}
