//! `belljar monitor top`: the agents as they are now, drawn again and again.

use std::collections::HashMap;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::time::{Duration, Instant};

use belljar_api::{AgentId, AgentList, AgentPhase, AgentView, FleetQuery, ListAgents};
use belljar_sandbox::signals::SignalWatch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::show::bytes;
use crate::cli::OutputFormat;
use crate::commands::supervisor::Reached;
use crate::exit::{self, Failure};
use crate::print::{self, harmless};

const EVERY: Duration = Duration::from_secs(1);
/// Another screen, and no cursor on it.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HELP: &str =
    "c cpu  m memory  p processes  n network  t tokens  u usd  a name  r turn  q quit";

pub(super) fn top(operator: &mut Reached, output: OutputFormat) -> Result<u8, Failure> {
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    if output == OutputFormat::Json || !stdin.is_terminal() || !stdout.is_terminal() {
        let list = ask(operator)?;
        match output {
            OutputFormat::Json => print::json(&list),
            OutputFormat::Text => {
                let rows = View::default().rows(&list);
                print::out(&lines(&list, &rows, usize::MAX, usize::MAX).join("\n"));
                print::out("\n");
            }
        }
        return Ok(exit::OK);
    }
    // Signals come as something to read, so that the terminal is put back whatever ends us.
    let signals = SignalWatch::new().map_err(|errno| terminal(errno.into()))?;
    let screen = Screen::enter()?;
    let outcome = watch(operator, &signals);
    drop(screen);
    outcome
}

fn watch(operator: &mut Reached, signals: &SignalWatch) -> Result<u8, Failure> {
    let mut view = View::default();
    let mut list = ask(operator)?;
    let mut next = Instant::now() + EVERY;
    loop {
        draw(&list, &view.rows(&list));
        let stdin = std::io::stdin();
        let mut watched = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
        ];
        let left = next.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(1),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let _interrupted = poll(&mut watched, Some(&timeout));
        let [keys, came] = watched.map(|watched| watched.revents());
        if !came.is_empty()
            && signals
                .next()
                .is_some_and(|signal| signal != belljar_sandbox::signals::CONTINUED)
        {
            return Ok(exit::OK);
        }
        if !keys.is_empty() {
            let mut typed = [0; 64];
            match stdin.lock().read(&mut typed) {
                // The terminal is gone.
                Ok(0) | Err(_) => return Ok(exit::OK),
                Ok(count) => {
                    if typed[..count].iter().any(|key| !view.key(*key)) {
                        return Ok(exit::OK);
                    }
                }
            }
        }
        if Instant::now() >= next {
            view.remember(&list);
            list = ask(operator)?;
            next = Instant::now() + EVERY;
        }
    }
}

fn ask(operator: &mut Reached) -> Result<AgentList, Failure> {
    Ok(operator
        .client
        .call::<ListAgents>(&FleetQuery { ended: Some(false) })?)
}

/// The terminal, ours until this is dropped.
struct Screen(Termios);

impl Screen {
    fn enter() -> Result<Self, Failure> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).map_err(|errno| terminal(errno.into()))?;
        let mut ours = before.clone();
        ours.local_modes
            .remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(&stdin, OptionalActions::Now, &ours).map_err(|errno| terminal(errno.into()))?;
        print::raw(ENTER);
        Ok(Self(before))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        print::raw(LEAVE);
        // A terminal that is gone needs nothing back.
        let _gone = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

fn terminal(error: std::io::Error) -> Failure {
    Failure::Invalid(
        format!("the terminal can't be used: {error}"),
        "with its output in a pipe, `belljar monitor top` prints once".into(),
    )
}

/// How it is looked at.
#[derive(Default)]
struct View {
    column: Column,
    is_turned: bool,
    /// Bytes through the gateway, and when that was.
    before: HashMap<AgentId, (u64, u64)>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Column {
    #[default]
    Cpu,
    Memory,
    Processes,
    Network,
    Tokens,
    Usd,
    Name,
}

/// An agent, and its bytes a second through the gateway.
type Row<'a> = (&'a AgentView, f64);

impl View {
    /// Takes a key. Says whether to go on.
    fn key(&mut self, key: u8) -> bool {
        const INTERRUPT: u8 = 3;
        let column = match key {
            b'q' | b'Q' | INTERRUPT => return false,
            b'c' => Column::Cpu,
            b'm' => Column::Memory,
            b'p' => Column::Processes,
            b'n' => Column::Network,
            b't' => Column::Tokens,
            b'u' => Column::Usd,
            b'a' => Column::Name,
            b'r' => {
                self.is_turned = !self.is_turned;
                return true;
            }
            _ => return true,
        };
        self.column = column;
        true
    }

    fn remember(&mut self, list: &AgentList) {
        let bytes = |agent: &AgentView| agent.usage.sent_bytes + agent.usage.received_bytes;
        self.before = list
            .agents
            .iter()
            .map(|agent| (agent.id.clone(), (bytes(agent), list.at_ms)))
            .collect();
    }

    /// Sorted as asked: numbers from the largest, names from the first.
    fn rows<'a>(&self, list: &'a AgentList) -> Vec<Row<'a>> {
        let rate = |agent: &AgentView| {
            let now = agent.usage.sent_bytes + agent.usage.received_bytes;
            let (bytes, at) = self.before.get(&agent.id).copied().unwrap_or((now, 0));
            let seconds = list.at_ms.saturating_sub(at).max(1) as f64 / 1000.0;
            now.saturating_sub(bytes) as f64 / seconds
        };
        let mut rows: Vec<Row<'_>> = list
            .agents
            .iter()
            .map(|agent| (agent, rate(agent)))
            .collect();
        let number = |(agent, network): &Row<'_>| match self.column {
            Column::Cpu => agent.usage.cpu_percent,
            Column::Memory => agent.usage.memory_bytes as f64,
            Column::Processes => agent.usage.processes as f64,
            Column::Network => *network,
            Column::Tokens => agent.usage.tokens as f64,
            Column::Usd => agent.usage.micro_usd as f64,
            Column::Name => 0.0,
        };
        rows.sort_by(|one, other| {
            let by_number = number(other).total_cmp(&number(one));
            by_number
                .then_with(|| one.0.name.as_str().cmp(other.0.name.as_str()))
                .then_with(|| one.0.id.cmp(&other.0.id))
        });
        if self.is_turned {
            rows.reverse();
        }
        rows
    }
}

fn draw(list: &AgentList, rows: &[Row<'_>]) {
    // A terminal that does not know its size is taken for the usual one.
    let size = tcgetwinsize(std::io::stdout()).ok();
    let known = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    let (width, height) = known.map_or((80, 24), |size| {
        (usize::from(size.ws_col), usize::from(size.ws_row))
    });
    let mut frame = String::from("\x1b[H");
    let lines = lines(list, rows, width, height);
    for (number, line) in lines.iter().enumerate() {
        let end = if number + 1 == lines.len() {
            ""
        } else {
            "\r\n"
        };
        frame.push_str(line);
        frame.push_str("\x1b[K");
        frame.push_str(end);
    }
    frame.push_str("\x1b[J");
    let mut out = std::io::stdout().lock();
    let _gone = out.write_all(frame.as_bytes()).and_then(|()| out.flush());
}

/// The picture, no wider and no higher than that.
fn lines(list: &AgentList, rows: &[Row<'_>], width: usize, height: usize) -> Vec<String> {
    let count = |phase| {
        list.agents
            .iter()
            .filter(|agent| agent.phase == phase)
            .count()
    };
    let cpu: f64 = list
        .agents
        .iter()
        .map(|agent| agent.usage.cpu_percent)
        .sum();
    let memory: u64 = list
        .agents
        .iter()
        .map(|agent| agent.usage.memory_bytes)
        .sum();
    let alerts: u32 = list.agents.iter().map(|agent| agent.open_alerts).sum();
    let mut all = vec![
        format!(
            "{} agents of {}, {} running, {} quarantined   cpu {cpu:.0} %   mem {}   alerts {alerts}",
            list.agents.len(),
            list.max_agents,
            count(AgentPhase::Running),
            count(AgentPhase::Quarantined),
            bytes(memory as f64),
        ),
        format!(
            "{:14} {:8} {:11} {:>6} {:>7} {:>4} {:>8} {:>7} {:>7}",
            "NAME", "ID", "PHASE", "CPU%", "MEM", "PROC", "NET/s", "TOKENS", "USD"
        ),
    ];
    all.extend(rows.iter().map(row));
    let is_live = height != usize::MAX;
    if is_live && all.len() + 1 > height {
        let hidden = all.len() + 2 - height.max(3);
        all.truncate(height.max(3) - 2);
        all.push(format!("… {hidden} more"));
    }
    if is_live {
        all.push(HELP.to_owned());
        all.truncate(height);
    }
    all.into_iter()
        .map(|line| line.chars().take(width).collect())
        .collect()
}

fn row((agent, network): &Row<'_>) -> String {
    let usage = &agent.usage;
    let name: String = harmless(agent.name.as_str()).chars().take(14).collect();
    format!(
        "{name:14} {:.8} {:11} {:>6.1} {:>7} {:>4} {:>8} {:>7} {:>7.2}",
        format!("{:8}", agent.id.as_str()),
        phase_word(agent.phase),
        usage.cpu_percent,
        short(usage.memory_bytes as f64),
        usage.processes,
        short(*network),
        short(usage.tokens as f64),
        usage.micro_usd as f64 / 1e6,
    )
}

/// A number in at most five characters or so.
fn short(number: f64) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
    let (mut number, mut unit) = (number, 0);
    while number >= 1000.0 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{number:.0}"),
        _ => format!("{number:.1}{}", UNITS[unit]),
    }
}

fn phase_word(phase: AgentPhase) -> &'static str {
    match phase {
        AgentPhase::Starting => "starting",
        AgentPhase::Running => "running",
        AgentPhase::Freezing => "freezing",
        AgentPhase::Quarantined => "quarantined",
        AgentPhase::Stopping => "stopping",
        AgentPhase::Waiting => "waiting",
        AgentPhase::CrashLoop => "crash loop",
        AgentPhase::Ended => "ended",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_api::{BudgetView, LimitsView, Shown, UsageNow};

    fn list(count: u64) -> AgentList {
        let agent = |number: u64| AgentView {
            id: AgentId::new(format!("{number:032}")).unwrap(),
            name: Shown::new(&format!("agent {number} \u{1b}[2J with quite a long name")),
            parent: None,
            depth: 0,
            phase: AgentPhase::Running,
            since_ms: 0,
            started_at_ms: 0,
            restarts: 0,
            restart_at_ms: None,
            command: Shown::new("sh"),
            capability: Shown::new("moderate"),
            usage: UsageNow {
                cpu_percent: number as f64,
                memory_bytes: (1 << 40) - number,
                processes: 10_000,
                tokens: u64::MAX / 4,
                micro_usd: 9_999_000_000,
                ..UsageNow::default()
            },
            limits: LimitsView::default(),
            budget: BudgetView::default(),
            open_alerts: 1,
            end: None,
        };
        AgentList {
            not_running: Vec::new(),
            agents: (0..count).map(agent).collect(),
            max_agents: 1_000,
            at_ms: 2_000,
        }
    }

    #[test]
    fn the_picture_fits_the_terminal_whatever_is_in_it() {
        for (count, width, height) in [
            (0, 80, 24),
            (3, 80, 24),
            (500, 80, 24),
            (500, 20, 5),
            (9, 1, 1),
            (30, 200, 3),
        ] {
            let list = list(count);
            let lines = lines(&list, &View::default().rows(&list), width, height);
            assert!(
                lines.len() <= height,
                "{count} in {width}×{height}: {}",
                lines.len()
            );
            for line in &lines {
                assert!(line.chars().count() <= width, "{line}");
                assert!(!line.contains('\u{1b}'), "{line:?}");
            }
        }
        let list = list(500);
        let lines = lines(&list, &View::default().rows(&list), 80, 24);
        assert_eq!(lines.last().map(String::as_str), Some(HELP));
        assert_eq!(lines[22], "… 480 more");
        assert!(HELP.len() <= 80);
    }

    #[test]
    fn keys_sort_turn_and_quit() {
        let list = list(3);
        let mut view = View::default();
        let first = |view: &View| view.rows(&list)[0].0.usage.cpu_percent;
        assert_eq!(first(&view), 2.0);
        assert!(view.key(b'm'));
        assert_eq!(first(&view), 0.0, "by memory");
        assert!(view.key(b'r'));
        assert_eq!(first(&view), 2.0, "turned");
        assert!(view.key(b'x'), "other keys do nothing");
        assert!(!view.key(b'q'));
        assert!(!view.key(3));
    }

    #[test]
    fn the_networks_rate_is_the_difference_over_the_time() {
        let mut list = list(1);
        let mut view = View::default();
        view.remember(&list);
        list.agents[0].usage.sent_bytes = 5_000;
        list.at_ms += 2_500;
        assert_eq!(view.rows(&list)[0].1, 2_000.0);
    }
}
