use super::*;
use crate::gateway::Limits;
use crate::record::MemoryRecorder;
use crate::{PolicyJudge, ServerFacts};
use belljar_policy::ToolRules;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};

/// A client's two ends and a server's two ends, with a relay between them on a thread.
struct Ends {
    to_server: Option<File>,
    to_client: BufReader<File>,
    server_hears: BufReader<File>,
    server_says: Option<File>,
    relay: std::thread::JoinHandle<Ended>,
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

fn ends(limits: Limits) -> Ends {
    let [
        (client_in, to_server),
        (to_client, client_out),
        (hears, server_in),
        (server_out, says),
    ] = [pipe(), pipe(), pipe(), pipe()];
    let state = tempfile::tempdir().unwrap();
    let rules = Arc::new(ToolRules::open());
    let servers = vec![ServerFacts::remote("s", "pipe")];
    let recorder = Box::new(MemoryRecorder::default());
    let judge = Arc::new(PolicyJudge::new(rules, servers, state.path(), recorder).unwrap());
    let session = Session::new("s", judge, limits);
    let pipes = Pipes {
        client_in,
        client_out,
        server_in,
        server_out,
    };
    Ends {
        to_server: Some(to_server.into()),
        to_client: BufReader::new(to_client.into()),
        server_hears: BufReader::new(hears.into()),
        server_says: Some(says.into()),
        relay: std::thread::spawn(move || relay(session, pipes).unwrap()),
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line
}

impl Ends {
    fn ask(&mut self, text: &str) {
        writeln!(self.to_server.as_mut().unwrap(), "{text}").unwrap();
    }

    fn say(&mut self, text: &str) {
        writeln!(self.server_says.as_mut().unwrap(), "{text}").unwrap();
    }
}

#[test]
fn what_one_side_says_the_other_hears_however_long() {
    let mut ends = ends(Limits::default());
    let long = "x".repeat(300_000);
    ends.ask(&format!(
        r#"{{"jsonrpc":"2.0","id":"q","method":"ping","params":{{"x":"{long}"}}}}"#
    ));
    let heard = line(&mut ends.server_hears);
    assert!(heard.contains(&long) && heard.contains(r#""id":1,"#));
    ends.say(&format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"x":"{long}"}}}}"#
    ));
    let heard = line(&mut ends.to_client);
    assert!(heard.contains(&long) && heard.contains(r#""id":"q","#));
    ends.to_server = None;
    assert_eq!(
        line(&mut ends.server_hears),
        "",
        "the server hears that its client left"
    );
    ends.server_says = None;
    assert_eq!(ends.relay.join().unwrap(), Ended::ByServer);
}

#[test]
fn a_server_that_ends_answers_everybody_first() {
    let mut ends = ends(Limits::default());
    ends.ask(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    ends.ask(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
    line(&mut ends.server_hears);
    line(&mut ends.server_hears);
    ends.server_says = None;
    assert_eq!(ends.relay.join().unwrap(), Ended::ByServer);
    assert!(line(&mut ends.to_client).contains("-32014"));
    assert!(line(&mut ends.to_client).contains("-32014"));
    assert_eq!(line(&mut ends.to_client), "");
}

#[test]
fn a_server_that_takes_nothing_does_not_keep_its_client_waiting_for_ever() {
    let limits = Limits {
        patience: Duration::from_millis(50),
        ..Limits::default()
    };
    let mut ends = ends(limits);
    let long = "x".repeat(100_000);
    // More than pipes and buffers hold together; the relay has to go on reading for the last to be answered.
    let mut to_server = ends.to_server.take().unwrap();
    let asker = std::thread::spawn(move || {
        for id in 0..40 {
            writeln!(
                to_server,
                r#"{{"jsonrpc":"2.0","id":{id},"method":"ping","params":{{"x":"{long}"}}}}"#
            )
            .unwrap();
        }
        to_server
    });
    let mut answered: Vec<i64> = (0..40)
        .map(|_| {
            let answer: serde_json::Value =
                serde_json::from_str(&line(&mut ends.to_client)).unwrap();
            assert_eq!(answer["error"]["code"], -32013, "{answer}");
            answer["id"].as_i64().unwrap()
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..40).collect::<Vec<_>>());
    drop(asker.join().unwrap());
    ends.server_says = None;
    ends.relay.join().unwrap();
}

#[test]
fn a_client_that_left_is_not_waited_for() {
    let mut ends = ends(Limits::default());
    ends.ask(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    line(&mut ends.server_hears);
    let Ends {
        to_server,
        to_client,
        mut server_says,
        relay,
        ..
    } = ends;
    drop((to_server, to_client));
    writeln!(
        server_says.as_mut().unwrap(),
        r#"{{"jsonrpc":"2.0","id":1,"result":{{}}}}"#
    )
    .unwrap();
    assert_eq!(relay.join().unwrap(), Ended::ByClient);
}
