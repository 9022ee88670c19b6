//! The tiers of this host: which can be had, what getting out of each takes, and how fast it starts.

use crate::print;
use belljar_sandbox::gvisor::Runtime;
use belljar_sandbox::host::Missing;
use belljar_sandbox::microvm::{Carrier, Emulation, Parts, try_kvm};
use belljar_sandbox::plan::{Limits, Network};
use belljar_sandbox::{Ground, Host, Tier, trial};
use belljar_supervisor::StateDir;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// One tier.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// As policies name it.
    tier: &'static str,
    available: bool,
    /// What was found, or why it can't be had.
    found: String,
    /// What getting out takes.
    escape_needs: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// From the first step to the end of a box whose program ends at once, in the middle of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    start_ms: Option<f64>,
}

/// How closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Whether a box stands.
    Once,
    /// How fast, too.
    Timed,
}

impl Effort {
    fn boxes(self) -> usize {
        match self {
            Effort::Once => 1,
            Effort::Timed => 9,
        }
    }
}

/// Tries every tier: one that is told to be there has just carried a box, but for those that take seconds to.
pub(super) fn all(host: &Host, effort: Effort) -> Vec<Report> {
    vec![
        native(host, effort),
        container(host, effort),
        gvisor(host, effort),
        microvm(host, effort),
        firecracker(host, effort),
    ]
}

fn native(host: &Host, effort: Effort) -> Report {
    const NEEDS: &str = "a fault in the host's kernel, behind a filter of its calls";
    let found = "namespaces, Landlock, seccomp".to_owned();
    let tried = try_tier(host, Ground::Bare, &|| Ok(Tier::Native), effort);
    report("seccomp", found, NEEDS, tried)
}

/// The wall is the native one; what the tier needs beside it is an image, in whose files a box is tried.
fn container(host: &Host, effort: Effort) -> Report {
    const NEEDS: &str =
        "what getting out of seccomp takes: the files are an image's, the walls are the same";
    let images = StateDir::find()
        .map_err(|error| error.to_string())
        .and_then(|state| {
            let store = belljar_image::Store::open(state.path());
            store.list().map_err(|error| error.to_string())
        });
    let lacks = |found: String, hint: &str| Report {
        tier: "container",
        available: false,
        found,
        escape_needs: NEEDS,
        hint: Some(hint.into()),
        start_ms: None,
    };
    match images {
        Err(why) => lacks(why, "make the state directory readable"),
        Ok(images) if images.is_empty() => lacks(
            "no image".into(),
            "make one: `belljar image build NAME --from-dir DIRECTORY`; see docs/images.md",
        ),
        Ok(images) => {
            let names: Vec<&str> = images
                .iter()
                .take(SHOWN)
                .map(|image| &*image.name)
                .collect();
            let more = match images.len() > SHOWN {
                true => format!(" and {} more", images.len() - SHOWN),
                false => String::new(),
            };
            let found = format!("images: {}{more}", names.join(", "));
            let (found, tried) = match images.first().map(|image| (image, image.hold())) {
                Some((image, Ok(_held))) => {
                    let found = format!("{found}; tried in {}", image.name);
                    let tree = image.tree.canonicalize();
                    let tried = tree.map_err(|error| chain(&error)).and_then(|tree| {
                        let ground = Ground::Image(&tree);
                        try_tier(host, ground, &|| Ok(Tier::Native), effort)
                    });
                    (found, tried)
                }
                Some((_, Err(error))) => (found, Err(chain(&error))),
                None => (found, Ok(None)),
            };
            report("container", found, NEEDS, tried)
        }
    }
}

/// So many images are named.
const SHOWN: usize = 5;

fn gvisor(host: &Host, effort: Effort) -> Report {
    const NEEDS: &str = "a fault in gVisor's kernel, and then one in the host's behind two filters";
    let runtime = find_runsc().and_then(|runtime| {
        let version = runtime.version()?;
        Ok((runtime, version))
    });
    match runtime {
        Err(missing) => Report {
            tier: "gvisor",
            available: false,
            found: missing.what,
            escape_needs: NEEDS,
            hint: Some(missing.hint),
            start_ms: None,
        },
        Ok((runtime, version)) => {
            let found = format!(
                "{}, release {version}, by {}",
                runtime.path().display(),
                version.platform()
            );
            // Found anew for every box, as a run does.
            let find = || match find_runsc() {
                Ok(runtime) => Ok(Tier::Gvisor(Arc::new(runtime))),
                Err(missing) => Err(missing.what),
            };
            let tried = try_tier(host, Ground::Bare, &find, effort);
            report("gvisor", found, NEEDS, tried)
        }
    }
}

fn find_runsc() -> Result<Runtime, Missing> {
    let notes = StateDir::find().and_then(|state| state.tiers());
    let notes = notes.map_err(|error| Missing {
        what: error.to_string(),
        hint: "set BELLJAR_STATE_DIR to a directory you can write to".into(),
    })?;
    Runtime::find(belljar_supervisor::runsc().as_deref(), &notes)
}

fn microvm(host: &Host, effort: Effort) -> Report {
    const NEEDS: &str = "a fault in a guest's kernel, one in its emulator, and then one in the host's behind a filter";
    let find = || {
        Parts::find(
            Emulation::Allowed,
            belljar_supervisor::guest_kernel().as_deref(),
        )
    };
    let by = match try_kvm() {
        Ok(()) => "by KVM".to_owned(),
        Err(why) => format!("by emulation (allow_emulation: true); no KVM: {why}"),
    };
    // The first guest takes seconds to start where it is emulated: it is tried where that is asked for.
    guests("microvm", NEEDS, host, effort, &find, &by)
}

fn firecracker(host: &Host, effort: Effort) -> Report {
    const NEEDS: &str = "a fault in a guest's kernel, one in Firecracker or KVM, and then one in the host's behind two filters";
    let find = || Parts::find_firecracker(belljar_supervisor::guest_kernel().as_deref());
    guests("firecracker", NEEDS, host, effort, &find, "by KVM")
}

fn guests(
    tier: &'static str,
    needs: &'static str,
    host: &Host,
    effort: Effort,
    find: &dyn Fn() -> Result<Parts, Missing>,
    by: &str,
) -> Report {
    let parts = match find() {
        Err(missing) => {
            return Report {
                tier,
                available: false,
                found: missing.what,
                escape_needs: needs,
                hint: Some(missing.hint),
                start_ms: None,
            };
        }
        Ok(parts) => parts,
    };
    let found = format!("{}, {}, {by}", parts.machine(), parts.kernel().display());
    // As a run does: from a guest that is kept.
    let find_kept = || {
        let parts = find().map_err(|missing| missing.what)?;
        let store = StateDir::find().map_err(|error| chain(&error))?.guests();
        let parts = parts.resuming(&store, host, &Limits::default(), &Network::Closed);
        let parts = parts.map_err(|error| chain(&error))?;
        Ok(Tier::Microvm(Arc::new(parts)))
    };
    let tried = match (effort, parts.carrier()) {
        (Effort::Once, Carrier::Qemu(_)) => Ok(None),
        (Effort::Once, Carrier::Firecracker) => {
            let find = || match find() {
                Ok(parts) => Ok(Tier::Microvm(Arc::new(parts))),
                Err(missing) => Err(missing.what),
            };
            try_tier(host, Ground::Bare, &find, effort)
        }
        (Effort::Timed, _) => {
            find_kept().and_then(|_| try_boxes(host, Ground::Bare, &find_kept, 3))
        }
    };
    report(tier, found, needs, tried)
}

type Tried = Result<Option<f64>, String>;

fn report(tier: &'static str, found: String, escape_needs: &'static str, tried: Tried) -> Report {
    match tried {
        Ok(start_ms) => Report {
            tier,
            available: true,
            found,
            escape_needs,
            hint: None,
            start_ms,
        },
        Err(why) => Report {
            tier,
            available: false,
            found: format!("{found}; a trial failed: {why}"),
            escape_needs,
            hint: Some(
                "boxes of this tier are refused; the lines above say what the host lacks".into(),
            ),
            start_ms: None,
        },
    }
}

fn try_tier(
    host: &Host,
    ground: Ground<'_>,
    find: &dyn Fn() -> Result<Tier, String>,
    effort: Effort,
) -> Tried {
    let tried = try_boxes(host, ground, find, effort.boxes())?;
    Ok(tried.filter(|_| effort == Effort::Timed))
}

/// Puts boxes of this tier up around our own program.
fn try_boxes(
    host: &Host,
    ground: Ground<'_>,
    find: &dyn Fn() -> Result<Tier, String>,
    boxes: usize,
) -> Tried {
    let program = PathBuf::from("/proc/self/exe");
    let mut times = Vec::new();
    for _ in 0..boxes {
        let begun = std::time::Instant::now();
        let outcome = trial(find()?, host, ground, &program, &["--version"]);
        outcome.map_err(|error| chain(&error))?;
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied())
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

/// For people.
pub(super) fn show(tiers: &[Report], colours: bool) {
    for tier in tiers {
        let mark = match tier.available {
            true => print::styled("ok     ", "32", colours),
            false => print::styled("missing", "31", colours),
        };
        let name = format!("tier {}", tier.tier);
        let start = match tier.start_ms {
            Some(ms) => format!("; starts and ends in {ms:.1} ms"),
            None => String::new(),
        };
        print::out(&format!("{mark}  {name:<18} {}{start}\n", tier.found));
        print::out(&format!(
            "         {:<18}   getting out takes {}\n",
            "", tier.escape_needs
        ));
        if let Some(hint) = &tier.hint {
            print::out(&format!("         {:<18} → {hint}\n", ""));
        }
    }
}
