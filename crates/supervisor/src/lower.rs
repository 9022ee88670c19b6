//! From a capability and a command to a plan that leaves nothing to choose.

use crate::changes::{RunOrigin, make_overlay};
use crate::command::{Answered, Command};
use crate::environment as names;
use crate::error::RunError;
use crate::home::{HeldHome, HomeOwner, HomeRequest, HomeStore};
use crate::image::BoxImage;
use crate::key_files::withhold_secrets;
use crate::network::{
    Eyes, Fittings, Outlook, SecretReader, network_of, other_values, secret_files,
};
use crate::places::{Principal, find_places};
use crate::program::Search;
use crate::repositories::{Judged, with_repositories};
use crate::secret_files::check_secret_files;
use crate::shows;
use crate::state::StateDir;
use crate::view::{Builder, BuiltView, Changes, demand_image_as_ground};
use belljar_gate::in_full;
use belljar_policy::{
    Access, Capability, FsMode, HomeMode, Origin, PathRule, PathTable, Permission, Places, Rule,
    Tier, Workspace, decide_env,
};
use belljar_sandbox::Host;
use belljar_sandbox::gvisor::Runtime;
use belljar_sandbox::host::Missing;
use belljar_sandbox::microvm::{Emulation, Parts};
use belljar_sandbox::native::Outline;
use belljar_sandbox::plan::{Freezer, Limits, Network, Plan, Spawn, Watch};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A plan, and what must live as long as its box.
#[derive(Debug)]
pub(crate) struct Lowered {
    /// The plan.
    pub(crate) plan: Plan,
    /// Bytes of memory that the box may have, its wall included.
    pub(crate) memory_held: Option<u64>,
    /// When the clock runs out.
    pub(crate) wall_time: Option<Duration>,
    /// Things the user should know.
    pub(crate) notes: Vec<String>,
    /// What it does not get of variables and files, because keys are in them.
    pub(crate) withheld: Vec<String>,
    /// What the host must have while the box runs, for there to be something to cover.
    pub(crate) stand_ins: Vec<(PathBuf, belljar_sandbox::plan::Kind)>,
    /// What to look through when it has ended, where it writes to the workspace itself.
    pub(crate) judged: Option<Judged>,
    /// The home directory of the box's user.
    pub(crate) home: PathBuf,
    /// Whether the program sees the box's mounts itself, not through another kernel.
    pub(crate) is_native: bool,
    /// Where changes are kept, with an overlay.
    pub(crate) overlay: Option<PathBuf>,
    /// The private home it has, held as long as it runs.
    pub(crate) home_copy: Option<HeldHome>,
    /// Whether it has one.
    pub(crate) has_private_home: bool,
    /// What answers for its network, if it is not closed.
    pub(crate) outlook: Option<Outlook>,
    /// The image whose files it has.
    pub(crate) image: Option<BoxImage>,
}

/// What is known of a box before anybody looks at what it will show: enough to begin it.
#[derive(Debug)]
pub(crate) struct Sketch {
    pub(crate) outline: Outline,
    /// What stands between its program and the host's kernel.
    pub(crate) tier: belljar_sandbox::Tier,
    pub(crate) places: Places,
    /// The program and its arguments.
    pub(crate) argv: Vec<OsString>,
    principal: Principal,
    /// Things the user should know.
    notes: Vec<String>,
    pub(crate) image: Option<BoxImage>,
}

impl Sketch {
    /// Finds out for whom and where a command is to run, and what it may use.
    pub(crate) fn of(
        id: &str,
        capability: &Capability,
        command: &Command,
        freezer: Freezer,
        host: &Host,
        state: &StateDir,
    ) -> Result<Self, RunError> {
        let image = BoxImage::find(capability, state)?;
        if image.is_some() && command.watch == Watch::Files {
            return Err(RunError::Refused {
                what: "what a program does in an image can't be learned: rules are about the host's files".into(),
                hint: "learn without `image`; what is learned of hosts and limits holds with it".into(),
            });
        }
        let limits = limits(capability);
        let network = network_of(capability);
        let (tier, notes) = find_tier(capability, &limits, &network, host, state)?;
        let work = match (&command.workdir, &capability.workdir) {
            (Some(path), _) => path.clone(),
            (None, Some(rule)) => rule_directory(rule)?,
            (None, None) => current_dir()?,
        };
        let (principal, places) = find_places(&work)?;
        if command.is_settled && places.work != work {
            return Err(RunError::Refused {
                what: format!(
                    "the working directory {} is elsewhere by now: {}",
                    work.display(),
                    places.work.display()
                ),
                hint: "something was put in its place; look who may write there".into(),
            });
        }
        Ok(Self {
            outline: Outline {
                id: id.to_owned(),
                identity: principal.identity,
                private_bytes: private_bytes(capability),
                limits,
                freezer,
                network,
                answered_port: command.answered.as_ref().map(Answered::port),
            },
            tier,
            places,
            argv: match &image {
                Some(image) if command.argv.is_empty() => image.command(),
                _ => command.argv.clone(),
            },
            principal,
            notes,
            image,
        })
    }
}

/// Resolves everything. No program runs yet, and nothing is changed but that an overlay has its directories.
pub(crate) fn lower(
    sketch: Sketch,
    capability: &Capability,
    command: &Command,
    host: &Host,
    state: &StateDir,
) -> Result<Lowered, RunError> {
    let Sketch {
        outline,
        tier,
        places,
        argv,
        principal,
        mut notes,
        image,
    } = sketch;
    let tree = image.as_ref().map(|image| &image.tree);
    let id = outline.id.as_str();
    let withheld = hide_state(capability, Some(state.path()), &places);
    let table = with_repositories(withheld, &places).path_table(&places);
    check_disk(capability, &table, &places)?;
    check_secret_files(capability, &places, &table)?;
    if tree.is_some() {
        demand_image_as_ground(&table)?;
    }
    let reader = SecretReader::new(&places, state);
    let outlook = Outlook::of(capability, &places, &reader)?;
    let eyes = Eyes {
        table: &table,
        image: tree,
    };
    let fittings = match &outlook {
        Some(outlook) => outlook.fittings(capability, &eyes)?,
        None => Fittings::default(),
    };
    let mut known = other_values(capability, &reader);
    known.extend(
        outlook
            .iter()
            .flat_map(|outlook| outlook.secrets.iter().cloned()),
    );
    let mut env = environment(capability, &principal, &places, id, image.as_ref());
    let mut withheld = withhold_secrets(&mut env, &known);
    for (name, value) in fittings.env.into_iter().chain(command.env.iter().cloned()) {
        env.retain(|(known, _)| *known != name);
        env.push((name, value));
    }
    let workdir = match &image {
        Some(image) if table.access(&places.work) < Access::Read => {
            let own = image.workdir();
            match table.access(&own) {
                Access::Image => own,
                _ => PathBuf::from("/"),
            }
        }
        _ => places.work.clone(),
    };
    let search = Search {
        table: &table,
        image: tree,
        workdir: &workdir,
        env: &env,
    };
    let program = search.find(command, argv.first().map(OsString::as_os_str))?;
    let overlay = match capability.filesystem.workspace {
        Workspace::Overlay if capability.filesystem.mode == FsMode::ReadWrite => {
            let origin = RunOrigin {
                work: workdir.clone(),
                home: places.home.clone(),
                program: argv.first().map(PathBuf::from).unwrap_or_default(),
            };
            Some(make_overlay(id, &table, &principal, state, &origin)?)
        }
        _ => None,
    };
    let changes = overlay.as_deref().map_or(Changes::Direct, Changes::Overlay);
    let home_copy = hold_home(id, capability, command, &table, &places, &principal, state)?;
    let built = Builder::new(&table, &places, principal.identity, changes)
        .on_image(tree)
        .with_home(home_copy.as_ref().map(HeldHome::layers))
        .without_keys(&known)
        .with_own_home(command.watch == Watch::Files)
        .build(&fittings.links);
    if let Some(store) = &overlay {
        crate::changes::hand_over(store, &principal.identity)?;
    }
    let BuiltView {
        mut entries,
        stand_ins,
        notes: more,
        altered,
        withheld: in_files,
        mounted_in_home,
        ..
    } = built?;
    if let Some(held) = &home_copy {
        held.prepare(&places.home, &mounted_in_home)?;
        if held.is_new() {
            notes.push(
                "what is written in the home directory goes to a private copy, kept for this project: see `belljar home show`"
                    .into(),
            );
        }
    }
    withheld.extend(in_files);
    let mut shows = shows::resolve(&command.shows)?;
    shows.extend(fittings.shows);
    let mut replaced = fittings.replaced;
    shows::show_altered(altered, &mut shows, &mut replaced)?;
    if !shows.is_empty() {
        shows::make_room(&mut entries, &places)?;
    }
    notes.extend(more);
    let plan = Plan {
        program,
        argv,
        env,
        workdir,
        identity: outline.identity,
        view: entries,
        private_bytes: outline.private_bytes,
        limits: outline.limits,
        spawn: if capability
            .permissions
            .contains(&Permission::SpawnSubprocess)
        {
            Spawn::Allow
        } else {
            Spawn::Refuse
        },
        shows,
        replaced,
        freezer: outline.freezer,
        id: outline.id,
        network: fittings.network,
        entry: fittings.entry,
        answered_port: outline.answered_port,
        watch: command.watch,
    };
    host.can_carry(&plan, &tier).map_err(refused)?;
    let judged = Judged::of(&plan, &places, &table);
    let memory_held = tier.group_limits(&plan.limits).memory_bytes;
    let wall_time = command.timeout.or(capability.limits.wall_time);
    Ok(Lowered {
        plan,
        memory_held,
        wall_time,
        notes,
        withheld,
        stand_ins,
        judged,
        home: places.home,
        is_native: matches!(tier, belljar_sandbox::Tier::Native),
        overlay,
        has_private_home: home_copy.is_some(),
        home_copy,
        outlook,
        image,
    })
}

/// The private home that the box gets, if its policy says so and it has a home at all.
fn hold_home(
    id: &str,
    capability: &Capability,
    command: &Command,
    table: &PathTable,
    places: &Places,
    principal: &Principal,
    state: &StateDir,
) -> Result<Option<HeldHome>, RunError> {
    if !has_private_home(capability, table, places) {
        return Ok(None);
    }
    let owner = match &command.home {
        HomeRequest::OfProject => HomeOwner::Project(places.work.clone()),
        HomeRequest::OfAgent(name) => HomeOwner::Agent(name.clone()),
        HomeRequest::OfItsOwn => HomeOwner::Box(id.to_owned()),
    };
    let held = HomeStore::of(state).hold(&owner, &places.home, principal.identity)?;
    Ok(Some(held))
}

/// Whether the box keeps what it changes in its home directory, over the host's or over nothing.
fn has_private_home(capability: &Capability, table: &PathTable, places: &Places) -> bool {
    let is_own = matches!(
        table.access(&places.home),
        Access::CopyOnWrite | Access::Private
    );
    capability.filesystem.home == HomeMode::Private && is_own && places.home.is_dir()
}

/// Records, keys and kept changes of other boxes are none of this one's business, wherever the user keeps them. Who
/// could read the signing key could write the record.
pub(crate) fn hide_state(
    capability: &Capability,
    state: Option<&Path>,
    places: &Places,
) -> Capability {
    let mut capability = capability.clone();
    let key_file = std::env::var_os(crate::environment::KEY_FILE).map(PathBuf::from);
    let ours = [state.map(Path::to_owned), names::guest_store(), key_file];
    let secrets = secret_files(&capability).filter_map(|rule| rule.resolve(places));
    let hidden: Vec<PathBuf> = ours.into_iter().flatten().chain(secrets).collect();
    for path in hidden.into_iter().flat_map(|path| path.canonicalize()) {
        capability
            .filesystem
            .hidden
            .push(Rule::new(PathRule::Root(path), Origin::built_in()));
    }
    capability
}

/// A tier that is not there is refused, never replaced by another. What comes with it is for the user to know.
fn find_tier(
    capability: &Capability,
    limits: &Limits,
    network: &Network,
    host: &Host,
    state: &StateDir,
) -> Result<(belljar_sandbox::Tier, Vec<String>), RunError> {
    let mut notes = Vec::new();
    let mut resume = |parts: Parts| {
        let resuming = parts
            .clone()
            .resuming(&state.guests(), host, limits, network);
        let parts = resuming.unwrap_or_else(|error| {
            // Slower, with the same walls.
            let why = in_full(&error);
            notes.push(format!(
                "the guest starts from nothing: none could be kept: {why}"
            ));
            parts
        });
        belljar_sandbox::Tier::Microvm(Arc::new(parts))
    };
    let tier = match capability.tier {
        // An image changes what is to be seen, not the wall.
        Tier::Native | Tier::Container => belljar_sandbox::Tier::Native,
        Tier::Gvisor => {
            let named = names::runsc();
            let runtime = Runtime::find(named.as_deref(), &state.tiers()?).map_err(refused)?;
            belljar_sandbox::Tier::Gvisor(Arc::new(runtime))
        }
        Tier::Microvm => {
            let emulation = match capability.emulation {
                belljar_policy::Emulation::Allow => Emulation::Allowed,
                belljar_policy::Emulation::Refuse => Emulation::Refused,
            };
            let parts = Parts::find(emulation, names::guest_kernel().as_deref());
            resume(parts.map_err(refused)?)
        }
        Tier::Firecracker => {
            let parts = Parts::find_firecracker(names::guest_kernel().as_deref());
            resume(parts.map_err(refused)?)
        }
    };
    Ok((tier, notes))
}

fn refused(Missing { what, hint }: Missing) -> RunError {
    RunError::Refused { what, hint }
}

fn current_dir() -> Result<PathBuf, RunError> {
    std::env::current_dir().map_err(|error| RunError::Invalid {
        what: format!("working directory: {error}"),
        hint: "start in a directory that exists".into(),
    })
}

fn rule_directory(
    rule: &belljar_policy::Rule<belljar_policy::PathRule>,
) -> Result<PathBuf, RunError> {
    let here = current_dir()?;
    let (_, places) = find_places(&here)?;
    let path = rule.value.resolve(&places).unwrap_or(here);
    if path.is_dir() {
        return Ok(path);
    }
    Err(RunError::Invalid {
        what: format!(
            "{}: root {} is not a directory",
            rule.origin,
            path.display()
        ),
        hint: "make the directory, or remove `root` to use the current one".into(),
    })
}

/// A limit on disk space can be held on private file systems only.
fn check_disk(capability: &Capability, table: &PathTable, places: &Places) -> Result<(), RunError> {
    if capability.limits.disk_bytes.is_some() && has_private_home(capability, table, places) {
        return Err(RunError::Refused {
            what: "max_disk_mb can't be held on a private home, which is kept on the host's disk"
                .into(),
            hint:
                "use filesystem_config.home: read_only, or max_file_size_mb, or remove max_disk_mb"
                    .into(),
        });
    }
    let written = table
        .iter()
        .find(|(_, entry)| entry.access == Access::Write);
    match (capability.limits.disk_bytes, written) {
        (Some(_), Some((path, _))) => Err(RunError::Refused {
            what: format!(
                "max_disk_mb can't be held on {}, which is the host's and writable",
                path.display()
            ),
            hint:
                "use filesystem_config.mode: read_only, or max_file_size_mb, or remove max_disk_mb"
                    .into(),
        }),
        _ => Ok(()),
    }
}

fn limits(capability: &Capability) -> Limits {
    let from = &capability.limits;
    Limits {
        memory_bytes: from.memory_bytes,
        cpu_time: from.cpu_time,
        cpu_percent: from.cpu_percent,
        processes: from.processes,
        open_files: from.open_files,
        file_size_bytes: from.file_size_bytes,
    }
}

/// How large the private directories may grow together; memory bounds them anyway.
fn private_bytes(capability: &Capability) -> u64 {
    const UNLIMITED: u64 = 4 << 30;
    let limits = &capability.limits;
    limits
        .disk_bytes
        .or(limits.memory_bytes)
        .unwrap_or(UNLIMITED)
}

fn environment(
    capability: &Capability,
    principal: &Principal,
    places: &Places,
    id: &str,
    image: Option<&BoxImage>,
) -> Vec<(OsString, OsString)> {
    let replaced = [
        names::HOME,
        names::TMPDIR,
        names::USER,
        names::LOGNAME,
        names::INSIDE,
        names::STATE_DIR,
    ];
    // Where the host keeps its programs is of no use in an image.
    let passes = |name: &str| !replaced.contains(&name) && (image.is_none() || name != names::PATH);
    let mut env: Vec<(OsString, OsString)> = std::env::vars_os()
        .filter(|(name, value)| {
            name.to_str().is_some_and(|name| {
                passes(name) && decide_env(&capability.env, name, value.as_bytes()).is_allow()
            })
        })
        .collect();
    for (name, value) in image
        .into_iter()
        .flat_map(|image| image.env(&capability.env))
    {
        let is_replaced = name.to_str().is_some_and(|name| replaced.contains(&name));
        if !is_replaced && !env.iter().any(|(known, _)| *known == name) {
            env.push((name, value));
        }
    }
    if !env.iter().any(|(name, _)| name == names::PATH) {
        env.push((names::PATH.into(), names::DEFAULT_PATH.into()));
    }
    let home = if places.home.is_dir() {
        places.home.as_os_str()
    } else {
        OsStr::new("/tmp")
    };
    env.push((names::HOME.into(), home.into()));
    env.push((names::TMPDIR.into(), "/tmp".into()));
    env.push((names::INSIDE.into(), id.into()));
    if let Some(user) = &principal.user {
        env.push((names::USER.into(), user.into()));
        env.push((names::LOGNAME.into(), user.into()));
    }
    env
}
