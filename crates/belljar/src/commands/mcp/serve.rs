//! `belljar mcp serve`: MCP servers at one address.

use super::wrap::system;
use crate::cli::mcp::Serve;
use crate::commands::run::protect;
use crate::exit::{self, Failure};
use crate::print;
use belljar_mcp::gateway::Limits;
use belljar_mcp::http::{Endpoint, Listening, Reach, Server, Setup};
use belljar_mcp::{PolicyJudge, ServerFacts};
use belljar_sandbox::signals::SignalWatch;
use belljar_supervisor::tools::{self, Around, Backstage, Boxed, ServerFiles};
use belljar_supervisor::{Command, StateDir};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) fn serve(arguments: Serve) -> Result<u8, Failure> {
    // Before any thread is there that would take them.
    let signals = SignalWatch::new().map_err(|errno| system("watching signals", errno.into()))?;
    let mut capability = crate::commands::capability(&arguments.policy)?;
    if let Some(file) = &arguments.policy.config {
        protect(&mut capability, file);
    }
    let rules = Arc::new(capability.tools.clone());
    let state = StateDir::find()?;
    let here = std::env::current_dir().map_err(|source| system("finding the directory", source))?;
    let files = ServerFiles::read(&capability, arguments.policy.config.as_deref())?;
    let backstage = Backstage::behind(&mut capability, files)?;
    let around = Around {
        backstage: &backstage,
        work: &here,
        state: &state,
        agent: None,
    };
    let listed = tools::servers(&capability, around)?;
    let (mut servers, mut known): (Vec<Server>, Vec<ServerFacts>) = listed.into_iter().unzip();
    for (name, address) in arguments.server {
        known.push(ServerFacts::remote(&name, &address));
        let reach = Reach::Address(tools::address(&address)?);
        servers.push(Server { name, reach });
    }
    if !arguments.command.is_empty() {
        let words = super::words(&arguments.command);
        known.push(ServerFacts::local(&arguments.name, &words, &here));
        let program = Boxed::new(capability, Command::new(arguments.command), state.clone());
        servers.push(Server {
            name: arguments.name,
            reach: Reach::Program(Arc::new(program)),
        });
    }
    refuse_twins(&servers)?;
    let recorder = tools::recorder(&state, "");
    let judge = PolicyJudge::new(rules, known, state.path(), recorder);
    let judge = Arc::new(judge.map_err(|source| system("opening the state directory", source))?);
    let (listening, address, socket) = match arguments.socket {
        Some(path) => listen_at(path)?,
        None => {
            let listener = TcpListener::bind(arguments.listen)
                .map_err(|source| system("listening", source))?;
            let at = listener
                .local_addr()
                .map_err(|source| system("listening", source))?;
            (Listening::Tcp(listener), format!("http://{at}/mcp"), None)
        }
    };
    let setup = Setup {
        servers,
        judge,
        limits: Limits {
            patience: arguments.deadline,
            ..Limits::default()
        },
        hosts: arguments.host,
    };
    let endpoint = Endpoint::start(setup, listening).map_err(|source| system("serving", source))?;
    print::out(&format!("{address}\n"));
    let ended = wait_for(&signals);
    drop(endpoint);
    drop(socket);
    ended.map(|()| exit::OK)
}

/// A name stands for one server.
fn refuse_twins(servers: &[Server]) -> Result<(), Failure> {
    if servers.is_empty() {
        return Err(Failure::Invalid(
            "no server to serve".into(),
            "list some in mcp.servers, or name one with --server NAME=ADDRESS, or a program after --".into(),
        ));
    }
    for (index, server) in servers.iter().enumerate() {
        if servers[..index]
            .iter()
            .any(|other| other.name == server.name)
        {
            return Err(Failure::Invalid(
                format!("two servers are called {}", server.name),
                "give each a name of its own: rules and tools go by it".into(),
            ));
        }
    }
    Ok(())
}

/// A socket's file, which goes with us.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn listen_at(path: PathBuf) -> Result<(Listening, String, Option<SocketFile>), Failure> {
    let trouble = |source| system("listening on the socket", source);
    let listener = UnixListener::bind(&path).map_err(trouble)?;
    let file = SocketFile(path);
    // Whoever may connect is who may use the servers: nobody else's.
    std::fs::set_permissions(&file.0, Permissions::from_mode(0o600)).map_err(trouble)?;
    let address = format!("unix:{}", file.0.display());
    Ok((Listening::Unix(listener), address, Some(file)))
}

fn wait_for(signals: &SignalWatch) -> Result<(), Failure> {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(system("waiting", errno.into())),
        }
        while let Some(signal) = signals.next() {
            if signal != belljar_sandbox::signals::CONTINUED {
                return Ok(());
            }
        }
    }
}
