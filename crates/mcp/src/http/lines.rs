//! Clients on a Unix socket that speak as on standard input and output: a message in a line.

use super::Hub;
use super::client::Client;
use super::post::{Spoken, greet, speak};
use crate::message::{INVALID_REQUEST, Kind, Message};
use crate::stdio::{Line, Lines};
use rustix::net::RecvFlags;
use std::os::fd::AsFd;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_local;

/// The most answers on the way to a client that reads slowly.
const ON_THE_WAY: usize = 1024;

/// Whether the client begins with a message and not with a request of HTTP's.
pub(super) async fn is_spoken(stream: &UnixStream) -> bool {
    let peek = || -> std::io::Result<u8> {
        let mut first = [0_u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(stream.as_fd(), &mut first[..], flags)?;
        Ok(first[0])
    };
    let first = stream.async_io(Interest::READABLE, peek).await;
    first.is_ok_and(|first| !first.is_ascii_uppercase())
}

/// Talks until the client leaves; its session ends with it.
pub(super) async fn talk(hub: &Rc<Hub>, stream: UnixStream) {
    let (mut input, mut output) = stream.into_split();
    let (to, mut from): (Sender<Message>, Receiver<Message>) = channel(ON_THE_WAY);
    spawn_local(async move {
        let mut line = Vec::new();
        while let Some(message) = from.recv().await {
            line.clear();
            message.write(&mut line);
            line.push(b'\n');
            if output.write_all(&line).await.is_err() {
                return;
            }
        }
    });
    let mut client: Option<Rc<Client>> = None;
    let mut lines = Lines::new(hub.setup.limits.from_client);
    let mut chunk = vec![0; 64 << 10];
    loop {
        let count = input.read(&mut chunk).await.unwrap_or(0);
        if count == 0 || to.is_closed() {
            break;
        }
        let limit = hub.setup.limits.from_client;
        let mut said = Vec::new();
        lines.take(&chunk[..count], |line| match line {
            Line::Whole(bytes) => said.push(Message::read(bytes, limit)),
            Line::TooLong => said.push(Err(crate::message::Malformed::TooLong { limit })),
        });
        for message in said {
            match message {
                Ok(message) => hear(hub, &mut client, message, &to).await,
                Err(malformed) => {
                    hub.setup.judge.malformed("-", &malformed.to_string());
                    let what = format!("refused: {malformed}");
                    let _ = to
                        .send(Message::error(None, malformed.code(), &what, None))
                        .await;
                }
            }
        }
    }
    if let Some(client) = client {
        hub.clients.borrow_mut().remove(client.id());
        client.leave();
    }
}

async fn hear(
    hub: &Rc<Hub>,
    client: &mut Option<Rc<Client>>,
    message: Message,
    to: &Sender<Message>,
) {
    let asked = match message.kind() {
        Kind::Request(id) => Some(id.clone()),
        _ => None,
    };
    match (client.as_ref(), &asked) {
        (None, Some(id)) if message.method() == "initialize" => {
            let (begun, answer) = greet(hub, &message, id).await;
            if let Some(aside) = begun.as_ref().and_then(|client| client.listen()) {
                pass_on(aside, to.clone());
            }
            *client = begun;
            let _ = to.send(answer).await;
        }
        (None, _) => {
            // A client of the version without sessions goes on with a handshake when it hears this.
            let code = if asked.is_some() {
                -32601
            } else {
                INVALID_REQUEST
            };
            let what = "begin with initialize";
            let _ = to
                .send(Message::error(asked.as_ref(), code, what, None))
                .await;
        }
        (Some(client), _) => {
            client.spoke();
            let (hub, client, to) = (hub.clone(), client.clone(), to.clone());
            // What is slow keeps nothing else waiting; what is first is begun first.
            spawn_local(async move {
                match speak(&hub, &client, message, None).await {
                    Spoken::Nothing => {}
                    Spoken::Answer(answer) => {
                        let _ = to.send(answer).await;
                    }
                    Spoken::More(first, rest) => {
                        let _ = to.send(first).await;
                        pass_on(rest, to);
                    }
                }
            });
        }
    }
}

fn pass_on(mut from: Receiver<Message>, to: Sender<Message>) {
    spawn_local(async move {
        while let Some(message) = from.recv().await {
            if to.send(message).await.is_err() {
                return;
            }
        }
    });
}
