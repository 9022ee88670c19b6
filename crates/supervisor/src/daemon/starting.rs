//! From a wish to an agent with a name.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use belljar_api::{Problem, StartRequest, Status};
use belljar_policy::{Capability, FsMode, Origin, PathRule, Places, Rule};
use belljar_replication::WorkerId;

use super::roster::{Again, Roster};
use super::{AgentSpec, Inner};
use crate::apart::words::Card;
use crate::command::Command;
use crate::error::RunError;
use crate::fleet::{Candidate, Refused, keeper_thread};
use crate::places::find_places;
use crate::tools::{Backstage, ServerFiles};

/// Below the state directory.
const RELEASES: &str = "evolve/releases";

impl From<StartRequest> for AgentSpec {
    fn from(request: StartRequest) -> Self {
        Self {
            name: request.name.as_str().to_owned(),
            command: request.command.into_words(),
            workdir: request.workdir.map(Into::into),
            capability: request.capability,
            profile: request.profile.map(|name| name.as_str().to_owned()),
            restart: request.restart,
            restart_on_oom: request.restart_on_oom,
            share: None,
            budget: belljar_policy::Budget::UNBOUNDED,
            follows_releases: false,
            protected: Vec::new(),
            servers: ServerFiles {
                texts: request.server_capabilities,
                paths: Vec::new(),
            },
        }
    }
}

impl Inner {
    /// Starts an agent, and waits until its first instruction may run.
    pub(super) fn start(&self, spec: AgentSpec) -> Result<WorkerId, Refused> {
        if self.roster.is_live(&spec.name) {
            let problem = Problem::new(
                "name_taken",
                format!("an agent {} lives already", spec.name),
            );
            return Err(Refused(
                Status::CONFLICT,
                problem.hint("choose another name, or stop that one first"),
            ));
        }
        let card = card_of(&spec);
        self.start_with(spec, card)
    }

    /// Starts an agent again that ended by itself.
    pub(super) fn start_again(&self, again: Again) {
        let card = again.card.clone();
        // What its file says by now is what is started.
        let spec = self.roster.declared.spec(&card.name);
        let spec = spec.map(|spec| self.in_its_place(spec));
        let spec = spec.unwrap_or(again.spec);
        let lives = Card {
            restarts: card.restarts,
            recent_ms: card.recent_ms.clone(),
            ..card_of(&spec)
        };
        match self.start_with(spec, lives) {
            Ok(_) => self.roster.replaced(again.worker, None),
            Err(Refused(_, problem)) => {
                if self.roster.declared.knows(&card.name) {
                    // It is tried again as one that never started: a refusal is no crash.
                    self.roster.replaced(again.worker, None);
                    return self.declared_refused(&card.name, &problem);
                }
                let why = format!("it can't be started again: {}", problem.message);
                self.roster.replaced(again.worker, Some((card, &why)));
            }
        }
    }

    fn start_with(&self, spec: AgentSpec, card: Card) -> Result<WorkerId, Refused> {
        if self.roster.is_closing() {
            let problem = Problem::new("shutting_down", "the supervisor shuts down");
            return Err(Refused(Status::UNAVAILABLE, problem));
        }
        let candidate = self.candidate(spec)?;
        let hired = self.post().hire(None, candidate)?;
        let worker = hired.worker();
        let (told, first) = sync_channel(1);
        let spawned = keeper_thread(worker).spawn(move || hired.keep_apart(card, Some(told)));
        spawned.map_err(|error| {
            let problem = Problem::new("unavailable", format!("no thread for its keeper: {error}"));
            Refused(Status::UNAVAILABLE, problem)
        })?;
        match first.recv_timeout(Roster::FIRST) {
            Ok(Ok(())) => Ok(worker),
            Ok(Err(error)) => Err(refused(&error)),
            Err(_) => {
                let problem = Problem::new("unavailable", "its box takes too long to be put up")
                    .hint("`belljar supervisor status` shows what becomes of it");
                Err(Refused(Status::UNAVAILABLE, problem))
            }
        }
    }

    pub(super) fn candidate(&self, spec: AgentSpec) -> Result<Candidate, Refused> {
        let asked = self.asked(&spec.name);
        let mut capability = capability(&spec)?;
        let backstage = Backstage::behind(&mut capability, spec.servers);
        let backstage = backstage.map_err(|error| refused(&error))?;
        let work = spec.workdir.map_or_else(std::env::current_dir, Ok);
        let work = work.map_err(|source| {
            refused(&RunError::System {
                doing: "finding the working directory",
                source,
            })
        })?;
        let (_, places) = find_places(&work).map_err(|error| refused(&error))?;
        // Whoever asked was let in for this very place. What another agent put under its name since is none of it.
        if places.work != work {
            let said = format!(
                "its workdir {} is elsewhere by now: {}",
                work.display(),
                places.work.display()
            );
            let hint =
                "something was put in its place; look who may write there, then start it anew";
            let problem = Problem::new("workdir_moved", said).hint(hint);
            return Err(Refused(Status::FORBIDDEN, problem));
        }
        let protected = spec.protected.iter();
        let protected: Vec<_> = protected.flat_map(|file| file.canonicalize()).collect();
        // What was released is what was approved: nobody who runs from it changes it.
        if places.work.starts_with(self.releases()) || protected.contains(&places.work) {
            seal_work(&mut capability, &places);
        }
        for file in protected.into_iter().filter(|file| *file != places.work) {
            let rule = Rule::new(PathRule::Root(file), Origin::built_in());
            capability.filesystem.protected.push(rule);
        }
        Ok(Candidate {
            capability: self.post().narrowed(&capability),
            command: Command::new(spec.command).settled_in(places.work.clone()),
            places,
            state: None,
            asked,
            reason: format!("agent {}", spec.name),
            backstage: Arc::new(backstage),
        })
    }

    /// Where releases of evolved code are kept, with no symbolic link in it.
    fn releases(&self) -> std::path::PathBuf {
        let releases = self.post().state.path().join(RELEASES);
        releases.canonicalize().unwrap_or(releases)
    }

    /// Looks at everybody's budget at once.
    pub(super) fn look_at_budgets(&self) {
        let seen = self.post().gate.look(|state, _| {
            let all = state.workers();
            all.map(|view| (view.id, crate::fleet::budget_view(&view)))
                .collect()
        });
        match seen {
            Ok(budgets) => {
                self.roster.ledger(None);
                self.roster.put_budgets(budgets);
            }
            Err(unrecorded) => self.roster.ledger(Some(&unrecorded.to_string())),
        }
    }
}

/// Where an agent is to work, with no symbolic link in it: from here on that place is meant, whatever its name leads to later.
pub(super) fn settle(spec: &mut AgentSpec) {
    let work = spec.workdir.take();
    let work = work.or_else(|| std::env::current_dir().ok());
    spec.workdir = work.map(|work| work.canonicalize().unwrap_or(work));
}

/// What the next daemon wants to know of it again.
fn card_of(spec: &AgentSpec) -> Card {
    Card {
        name: spec.name.clone(),
        restart: spec.restart,
        restart_on_oom: spec.restart_on_oom,
        capability: spec.capability.clone(),
        profile: spec.profile.clone(),
        protected: spec.protected.clone(),
        servers: spec.servers.clone(),
        ..Card::default()
    }
}

/// Leaves the working directory for reading, whatever the capability says of it. Everything else stays as it is.
fn seal_work(capability: &mut Capability, places: &Places) {
    let filesystem = &mut capability.filesystem;
    filesystem.writable.retain(|rule| {
        let path = rule.value.resolve(places);
        path.is_none_or(|path| !path.starts_with(&places.work))
    });
    if filesystem.writable.is_empty() && filesystem.mode == FsMode::ReadWrite {
        // Nothing named would mean the working directory.
        filesystem.mode = FsMode::ReadOnly;
    }
    // The longest path wins over whatever is writable above.
    let rule = Rule::new(PathRule::Root(places.work.clone()), Origin::built_in());
    filesystem.readable.push(rule);
}

pub(super) fn capability(spec: &AgentSpec) -> Result<Capability, Refused> {
    let invalid = |message: String, hint: &str| {
        let problem = Problem::new("invalid_capability", message).hint(hint);
        Refused(Status::BAD_REQUEST, problem)
    };
    match (&spec.capability, &spec.profile) {
        // Told by its first line whether it is a capability.yaml or a sandbox.toml.
        (Some(text), _) => belljar_manifest::parse_capability("capability", text.as_bytes())
            .map_err(|error| {
                let hint = error.hint.clone().unwrap_or_default();
                invalid(error.to_string(), &hint)
            }),
        (None, profile) => {
            let name = profile.as_deref().unwrap_or("moderate");
            belljar_manifest::profile(name).ok_or_else(|| {
                invalid(
                    format!("no profile {name}"),
                    "`belljar profile list` names them",
                )
            })
        }
    }
}

/// Why an agent did not start, in the protocol's words.
fn refused(error: &RunError) -> Refused {
    let status = match error.code() {
        "internal" | "keeper_lost" => Status::UNAVAILABLE,
        "refused" | "deny_permit" | "killed_early" => Status::FORBIDDEN,
        _ => Status::BAD_REQUEST,
    };
    let problem = Problem::new(error.code(), error.to_string());
    Refused(status, problem.hint(error.hint().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_policy::FileOp;

    #[test]
    fn a_sealed_place_is_for_reading_whatever_a_capability_grants() {
        let places = Places {
            home: "/home/ada".into(),
            work: "/var/lib/belljar/evolve/releases/p/objects/t".into(),
            homes: vec!["/home".into()],
        };
        let grants = [
            "extends: moderate\n",
            "extends: moderate\nfilesystem_config:\n  writable_paths: [\".\", \"./data\"]\n",
            "extends: moderate\nfilesystem_config:\n  writable_paths: [\"/var/lib\"]\n",
            "extends: moderate\nfilesystem_config:\n  writable_paths: [\"/srv/out\", \".\"]\n",
        ];
        for text in grants {
            let Ok(mut capability) =
                belljar_manifest::parse_capability("capability", text.as_bytes())
            else {
                panic!("{text}");
            };
            let file = places.work.join("data/agent.py");
            let may = |capability: &Capability, op| {
                capability.path_table(&places).decide(&file, op).is_allow()
            };
            let could = may(&capability, FileOp::Write);
            assert!(could, "it could be written before: {text}");
            seal_work(&mut capability, &places);
            assert!(!may(&capability, FileOp::Write), "{text}");
            assert!(may(&capability, FileOp::Read), "{text}");
        }
    }
}
