//! `cargo xtask bench launch`: what a box costs, side by side with bare processes and bubblewrap.
//!
//! Machines are noisy, so the contenders take turns within each round and only ratios of medians are judged.

use crate::Failure;
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// An id that no user of this machine has, to measure what an unprivileged user gets when root runs the benchmark.
const UNPRIVILEGED: u32 = 54_321;
const ROUNDS: usize = 300;
const WARM_UP: usize = 20;
const BWRAP: &[&str] = &[
    "bwrap",
    "--unshare-all",
    "--ro-bind",
    "/",
    "/",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
];

/// Where and as whom to measure.
pub(super) struct Stage {
    name: &'static str,
    user: Option<u32>,
    directory: PathBuf,
    belljar: PathBuf,
    own: PathBuf,
}

/// Runs all measurements, prints a table and writes `target/bench/launch.json`.
pub(crate) fn launch(belljar: &Path) -> Result<(), Failure> {
    let report = super::in_scratch(|base| measure_all(belljar, base))?;
    super::write_report("launch", &report)
}

fn measure_all(belljar: &Path, base: &Path) -> Result<Value, Failure> {
    let mut report = serde_json::Map::new();
    for stage in stages(belljar, base)? {
        report.insert(stage.name.to_owned(), stage.measure()?);
    }
    Ok(Value::Object(report))
}

/// As root, if we are root, and as an ordinary user.
pub(super) fn stages(belljar: &Path, base: &Path) -> Result<Vec<Stage>, Failure> {
    let is_root = std::fs::metadata("/proc/self")
        .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let users = if is_root {
        &[("root", None), ("user", Some(UNPRIVILEGED))][..]
    } else {
        &[("user", None)][..]
    };
    users
        .iter()
        .map(|(name, user)| Stage::set_up(name, *user, belljar, &base.join(name)))
        .collect()
}

impl Stage {
    fn set_up(
        name: &'static str,
        user: Option<u32>,
        belljar: &Path,
        base: &Path,
    ) -> Result<Self, Failure> {
        let directory = base.join("project");
        std::fs::create_dir_all(&directory)?;
        let stage = Self {
            name,
            user,
            directory,
            belljar: base.join("belljar"),
            own: base.join("project/xtask"),
        };
        std::fs::copy(belljar, &stage.belljar)?;
        std::fs::copy(std::env::current_exe()?, &stage.own)?;
        for path in [base, &stage.directory, &stage.own] {
            std::os::unix::fs::chown(path, user, user)?;
        }
        Ok(stage)
    }

    fn measure(&self) -> Result<Value, Failure> {
        println!("\nas {}", self.name);
        let start = self.contest("/bin/true", &["/bin/true"], ROUNDS)?;
        let python = self.contest(
            "python3 -c pass",
            &["/usr/bin/python3", "-c", "pass"],
            ROUNDS / 6,
        )?;
        let way_out = self.way_out()?;
        let inside = self.inside()?;
        let overshoot = self.cpu_overshoot()?;
        let resident = self.keeper_memory(&[])?;
        let looked_at = "[{domain: example.org, http: {methods: [GET]}}]";
        self.policy("looked-at.yaml", looked_at)?;
        let with_gateway = self.keeper_memory(&["--config", "looked-at.yaml"])?;
        println!(
            "  {:<28} {:>8.1} ms of CPU past a limit of 1 s (bound 50)",
            "killed for CPU", overshoot
        );
        println!(
            "  {:<28} {:>8.2} MiB resident (bound 8, aim 4), {:.2} while it starts",
            "keeper", resident.waiting, resident.started
        );
        println!(
            "  {:<28} {:>8.2} MiB resident (bound 12), {:.2} while it starts",
            "keeper that looks inside", with_gateway.waiting, with_gateway.started
        );
        Ok(json!({
            "start": start, "python": python, "way_out": way_out, "inside": inside,
            "cpu_overshoot_ms": overshoot, "keeper_resident_mib": resident.waiting,
            "keeper_with_gateway_resident_mib": with_gateway.waiting,
        }))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .current_dir(&self.directory)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.directory.parent().unwrap_or(&self.directory))
            .env("BELLJAR_STATE_DIR", self.directory.with_file_name("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// As whom.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Puts a file into the project.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        Ok(std::fs::write(self.directory.join(name), text)?)
    }

    /// A file of the stage's, beside its project.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.with_file_name(name)
    }

    /// Runs a program to its end, as the stage's user.
    pub(super) fn run(&self, words: &[&str]) -> Result<(), Failure> {
        match self.command(words).status()?.success() {
            true => Ok(()),
            false => Err(format!("{} failed", words.join(" ")).into()),
        }
    }

    /// The same for the program that is measured.
    pub(super) fn belljar(&self, arguments: &[&str]) -> Result<(), Failure> {
        let mut words = vec![self.belljar.to_str().unwrap_or_default()];
        words.extend(arguments);
        self.run(&words)
    }

    pub(super) fn boxed<'a>(&'a self, options: &[&'a str], words: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec![self.belljar.to_str().unwrap_or_default(), "run", "--quiet"];
        all.extend(options);
        all.push("--");
        all.extend(words);
        all
    }

    /// Bare, bubblewrap and Belljar in turn.
    fn contest(&self, title: &str, program: &[&str], rounds: usize) -> Result<Value, Failure> {
        let bwrap: Vec<&str> = BWRAP.iter().chain(program).copied().collect();
        let contenders = [
            ("bare", program.to_vec()),
            ("bwrap", bwrap),
            ("belljar", self.boxed(&[], program)),
        ];
        let [bare, bwrap, belljar] = self.race(&contenders, rounds)?;
        println!("  {title}");
        for (name, spread) in [
            ("bare", &bare),
            ("bwrap --unshare-all", &bwrap),
            ("belljar run", &belljar),
        ] {
            println!(
                "    {name:<26} median {:>7.2} ms   p95 {:>7.2} ms   {:>5.2} x bare   {:>5.2} x bwrap",
                spread.median,
                spread.p95,
                spread.median / bare.median,
                spread.median / bwrap.median
            );
        }
        Ok(json!({
            "bare_ms": bare.json(), "bwrap_ms": bwrap.json(), "belljar_ms": belljar.json(),
            "belljar_to_bwrap": belljar.median / bwrap.median,
            "belljar_to_bare": belljar.median / bare.median,
            "belljar_p95_to_median": belljar.p95 / belljar.median,
        }))
    }

    /// Runs each contender in turn, round by round.
    pub(super) fn race<const N: usize>(
        &self,
        contenders: &[(&str, Vec<&str>); N],
        rounds: usize,
    ) -> Result<[Spread; N], Failure> {
        let mut times = [const { Vec::new() }; N];
        let warm_up = WARM_UP.min(rounds);
        for round in 0..rounds + warm_up {
            for ((name, words), times) in contenders.iter().zip(&mut times) {
                let begin = Instant::now();
                let status = self.command(words).status()?;
                let time = begin.elapsed().as_secs_f64() * 1000.0;
                if !status.success() {
                    return Err(format!("{name}: {} failed: {status}", words.join(" ")).into());
                }
                if round >= warm_up {
                    times.push(time);
                }
            }
        }
        Ok(times.map(Spread::of))
    }

    fn policy(&self, name: &str, rules: &str) -> Result<(), Failure> {
        let text = format!("extends: moderate\nnetwork_egress_rules: {rules}\n");
        Ok(std::fs::write(self.directory.join(name), text)?)
    }

    /// What a way out adds to a start: the same box with one host allowed, and with none.
    fn way_out(&self) -> Result<Value, Failure> {
        let files = [
            ("closed.yaml", "[]"),
            ("one-host.yaml", "[{domain: example.org}]"),
        ];
        for (name, rules) in files {
            self.policy(name, rules)?;
        }
        let belljar = self.belljar.to_str().unwrap_or_default();
        let contenders = files.map(|(name, _)| {
            let words = [
                belljar,
                "run",
                "--quiet",
                "--config",
                name,
                "--",
                "/bin/true",
            ];
            (name, words.to_vec())
        });
        let [closed, open] = self.race(&contenders, ROUNDS)?;
        let added = open.median - closed.median;
        println!(
            "  {:<28} {added:>+8.2} ms a start (bound +0.5): {:.2} ms to {:.2}",
            "one host allowed", closed.median, open.median
        );
        Ok(json!({
            "closed_ms": closed.json(), "one_host_ms": open.json(), "added_ms": added,
        }))
    }

    /// The cost of file system calls within the walls, against the same program without.
    fn inside(&self) -> Result<Value, Failure> {
        let program = [self.own.to_str().unwrap_or_default(), "bench", "calls"];
        let mut ratios = [Vec::new(), Vec::new()];
        for _ in 0..15 {
            let bare = self.calls(&program)?;
            let boxed = self.calls(&self.boxed(&[], &program))?;
            ratios[0].push(boxed.0 / bare.0);
            ratios[1].push(boxed.1 / bare.1);
        }
        let [stat, open] = ratios.map(|ratios| Spread::of(ratios).median);
        println!("  {:<28} {stat:>8.2} x bare (bound 1.3)", "stat inside");
        println!(
            "  {:<28} {open:>8.2} x bare (bound 1.3)",
            "open+close inside"
        );
        Ok(json!({"stat_to_bare": stat, "open_close_to_bare": open}))
    }

    fn calls(&self, words: &[&str]) -> Result<(f64, f64), Failure> {
        let output = self.command(words).stdout(Stdio::piped()).output()?;
        let text = String::from_utf8(output.stdout)?;
        let mut numbers = text.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(stat), Some(open)) => Ok((stat?, open?)),
            _ => Err(format!("{} printed {text:?}", words.join(" ")).into()),
        }
    }

    /// How much CPU time past its limit a busy loop gets, in milliseconds: the worst of several.
    fn cpu_overshoot(&self) -> Result<f64, Failure> {
        let file = self.directory.join("cpu.yaml");
        std::fs::write(
            &file,
            "extends: moderate\nresource_limits: {max_cpu_seconds: 1}\n",
        )?;
        let mut worst = 0.0f64;
        for _ in 0..5 {
            let words = [
                self.belljar.to_str().unwrap_or_default(),
                "run",
                "--output",
                "json",
                "--config",
                "cpu.yaml",
                "--",
                "/bin/sh",
                "-c",
                "while :; do :; done",
            ];
            let output = self.command(&words).stdout(Stdio::piped()).output()?;
            let result: Value = serde_json::from_slice(&output.stdout)?;
            let used = result["resource_usage"]["cpu_seconds"]
                .as_f64()
                .ok_or("no cpu_seconds")?;
            if result["killed_by"] != "cpu" {
                return Err(format!("not killed for CPU: {result}").into());
            }
            worst = worst.max((used - 1.0) * 1000.0);
        }
        Ok(worst)
    }

    /// What a keeper holds while its box runs.
    fn keeper_memory(&self, options: &[&str]) -> Result<Resident, Failure> {
        let belljar = self.belljar.to_str().unwrap_or_default();
        let mut words = vec![belljar, "run", "--quiet"];
        words.extend(options);
        words.extend(["--", "/bin/sh", "-c", "echo up; exec sleep 30"]);
        let mut child = self.command(&words).stdout(Stdio::piped()).spawn()?;
        let mut up = [0u8; 3];
        if let Some(stdout) = child.stdout.as_mut() {
            std::io::Read::read_exact(stdout, &mut up)?;
        }
        let started = resident_mib(child.id());
        std::thread::sleep(Duration::from_secs(2));
        let waiting = resident_mib(child.id());
        child.kill()?;
        child.wait()?;
        Ok(Resident {
            started: started?,
            waiting: waiting?,
        })
    }
}

/// What a keeper holds in memory, in MiB: as its box starts, and as it waits for the end.
struct Resident {
    started: f64,
    waiting: f64,
}

/// What a process holds in memory, in MiB.
pub(super) fn resident_mib(pid: u32) -> Result<f64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.ok_or("no VmRSS")?.trim().trim_end_matches(" kB");
    Ok(kib.parse::<f64>()? / 1024.0)
}

/// A loop of each call on a file five levels deep; prints nanoseconds a call. Run bare and inside.
pub(crate) fn calls() -> Result<(), Failure> {
    const FILE: &str = "/usr/share/doc/coreutils/copyright";
    let file = if Path::new(FILE).exists() {
        FILE
    } else {
        "/usr/bin/env"
    };
    let time = |count: u32, call: &dyn Fn() -> bool| {
        let begin = Instant::now();
        for _ in 0..count {
            assert!(call(), "{file} can't be read");
        }
        begin.elapsed().as_nanos() as f64 / f64::from(count)
    };
    let stat = time(200_000, &|| std::fs::metadata(file).is_ok());
    let open = time(100_000, &|| std::fs::File::open(file).is_ok());
    println!("{stat} {open}");
    Ok(())
}

pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) p95: f64,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            values
                .get((values.len() as f64 * part) as usize)
                .copied()
                .unwrap_or(f64::NAN)
        };
        Self {
            median: at(0.5),
            p95: at(0.95),
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({"median": self.median, "p95": self.p95})
    }
}
