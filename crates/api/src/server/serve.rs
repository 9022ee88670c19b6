//! One connection's turn: from bytes to a request, and from an answer to bytes.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use super::answer::{Answer, Reply, ReplyTo};
use super::connection::{After, Connection, Got, Phase};
use super::event_loop::Loop;
use super::listening::Expected;
use super::{Call, Request};
use crate::Status;
use crate::http::{self, Rejection, RequestHead, Then};
use crate::route::Side;
use crate::routes::{AgentCall, OperatorCall};
use crate::types::Problem;

impl<F: FnMut(Request)> Loop<F> {
    /// Something happened on a connection.
    pub(super) fn serve(&mut self, id: u64, flags: EventFlags, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match connection.phase {
            Phase::Reply(_) => return self.go_on_writing(id, now),
            // The peer is gone; whoever decides may finish, but there is nobody to tell.
            Phase::UnderWay { .. } if flags.intersects(EventFlags::HUP | EventFlags::ERR) => {
                return self.close(id);
            }
            _ => {}
        }
        // Here only `100 Continue` can be waiting to go out.
        if connection.flush().is_err() {
            return self.close(id);
        }
        let got = connection.read(&mut self.scratch, self.limits.head_bytes);
        match (got, &mut connection.phase) {
            (Got::Bytes(count), Phase::Drain { left }) => match left.checked_sub(count) {
                Some(rest) => *left = rest,
                None => self.close(id),
            },
            (Got::Bytes(_), _) => self.digest(id, now),
            (Got::Nothing, _) => {}
            (Got::End, Phase::Head | Phase::Body(_)) => {
                let problem = Problem::new("bad_http", "the request ended before it was whole");
                self.reject(
                    id,
                    Rejection::new(Status::BAD_REQUEST, problem),
                    After::Close,
                    now,
                );
            }
            (Got::End | Got::Broken, _) => self.close(id),
        }
        self.watch(id);
    }

    /// Makes what it can of the bytes that have come, up to one request.
    pub(super) fn digest(&mut self, id: u64, now: Instant) {
        loop {
            let Some(connection) = self.connections.get_mut(&id) else {
                return;
            };
            match &connection.phase {
                Phase::Idle if connection.has_input() => {
                    self.enter(id, Phase::Head, self.limits.request, now);
                }
                Phase::Head => match connection.take_head(self.limits.head_bytes) {
                    Ok(None) => return,
                    Ok(Some(head)) => {
                        if self.admit(id, &head, now).is_break() {
                            return;
                        }
                    }
                    Err(rejection) => return self.reject(id, rejection, After::Drain, now),
                },
                Phase::Body(expected) => {
                    let length = expected.length;
                    match connection.take_body(length) {
                        None => return,
                        Some(body) => return self.hand_over(id, &body, now),
                    }
                }
                _ => return,
            }
        }
    }

    /// Lets the body come, or answers at once.
    fn admit(&mut self, id: u64, head: &RequestHead, now: Instant) -> ControlFlow<()> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return ControlFlow::Break(());
        };
        let Some(listening) = self.listeners.get_mut(&connection.listener) else {
            return ControlFlow::Break(());
        };
        match listening.admit(head, &self.limits, now) {
            Ok(expected) => {
                connection.request_bytes = expected.length;
                if head.waits && expected.length > 0 && !connection.has_input() {
                    connection.queue(http::CONTINUE);
                    // What can't go out now goes when the socket has room.
                    let _later = connection.flush();
                }
                // The clock runs since the first byte of the head.
                connection.phase = Phase::Body(expected);
                ControlFlow::Continue(())
            }
            Err(rejection) => {
                // A peer that is told to wait also has to connect anew, and new connections are counted.
                let slow_down = rejection.status == Status::TOO_MANY_REQUESTS;
                let whole = head.length == 0 && head.persistent;
                let after = if whole && !slow_down {
                    After::Next
                } else {
                    After::Drain
                };
                self.reject(id, rejection, after, now);
                ControlFlow::Break(())
            }
        }
    }

    /// Reads the body and gives the request to whoever decides.
    fn hand_over(&mut self, id: u64, body: &[u8], now: Instant) {
        let request = self.next_request();
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let phase = std::mem::replace(&mut connection.phase, Phase::Idle);
        let (Phase::Body(expected), Some(listening)) =
            (phase, self.listeners.get(&connection.listener))
        else {
            return;
        };
        let Expected {
            index,
            ref target,
            ref query,
            persistent,
            ..
        } = expected;
        let (tag, side) = (listening.tag, listening.side);
        let mail = std::sync::Arc::clone(&self.mail);
        let most = self.limits.reply_bytes;
        let answer = || {
            Answer::new(
                mail,
                ReplyTo {
                    connection: id,
                    request,
                },
                most,
            )
        };
        let call: Result<Call, Problem> = match side {
            Side::Agent => AgentCall::read(index, target.as_deref(), query, body, answer),
            Side::Operator => OperatorCall::read(index, target.as_deref(), query, body, answer),
        };
        match call {
            Ok(call) => {
                self.enter(
                    id,
                    Phase::UnderWay {
                        request,
                        persistent,
                    },
                    self.limits.answer,
                    now,
                );
                (self.handler)(Request { tag, call });
            }
            Err(problem) => {
                let after = if persistent {
                    After::Next
                } else {
                    After::Close
                };
                self.reject(id, Rejection::new(Status::BAD_REQUEST, problem), after, now);
            }
        }
    }

    /// An answer came, from whatever thread.
    pub(super) fn answer(&mut self, to: ReplyTo, reply: Reply, now: Instant) {
        let Some(connection) = self.connections.get(&to.connection) else {
            return;
        };
        match connection.phase {
            Phase::UnderWay {
                request,
                persistent,
            } if request == to.request => {
                let after = if persistent {
                    After::Next
                } else {
                    After::Close
                };
                self.reply(to.connection, reply, after, now);
            }
            // Too late: the peer was told so.
            _ => {}
        }
    }

    fn reject(&mut self, id: u64, rejection: Rejection, after: After, now: Instant) {
        let mut reply = Reply::problem(rejection.status, &rejection.problem);
        reply.allow = rejection.allow;
        self.reply(id, reply, after, now);
    }

    fn reply(&mut self, id: u64, mut reply: Reply, after: After, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Some(listening) = self.listeners.get_mut(&connection.listener) else {
            return;
        };
        listening.release_request(connection.request_bytes);
        connection.request_bytes = 0;
        let wanted = reply.body.len();
        match listening.reserve_reply(wanted, &self.limits) {
            Ok(()) => connection.reply_bytes = wanted,
            Err(busy) => reply = Reply::problem(busy.status, &busy.problem),
        }
        let then = if after == After::Next {
            Then::KeepAlive
        } else {
            Then::Close
        };
        let bytes = http::write_response(reply.status, &reply.allow, &reply.body, then);
        connection.queue_last(bytes);
        self.enter(id, Phase::Reply(after), self.limits.reply, now);
        self.go_on_writing(id, now);
    }

    fn go_on_writing(&mut self, id: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match (connection.flush(), &connection.phase) {
            (Err(_), _) | (Ok(true), Phase::Reply(After::Close)) => return self.close(id),
            (Ok(true), Phase::Reply(After::Next)) => {
                self.release_reply(id);
                self.enter(id, Phase::Idle, self.limits.idle, now);
                if self.connections.get(&id).is_some_and(Connection::has_input) {
                    self.again.push(id);
                }
            }
            (Ok(true), Phase::Reply(After::Drain)) => {
                connection.stop_writing();
                self.release_reply(id);
                let left = 2 * self.limits.body_bytes;
                self.enter(id, Phase::Drain { left }, self.limits.linger, now);
            }
            (Ok(_), _) => {}
        }
        self.watch(id);
    }

    fn release_reply(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id)
            && let Some(listening) = self.listeners.get_mut(&connection.listener)
        {
            listening.release_reply(connection.reply_bytes);
            connection.reply_bytes = 0;
        }
    }

    /// A deadline has passed.
    pub(super) fn expire(&mut self, id: u64, now: Instant) {
        match self
            .connections
            .get(&id)
            .map(|connection| &connection.phase)
        {
            Some(Phase::Head | Phase::Body(_)) => {
                let problem = Problem::new("too_slow", "the request did not arrive whole in time");
                self.reject(
                    id,
                    Rejection::new(Status::REQUEST_TIMEOUT, problem),
                    After::Drain,
                    now,
                );
            }
            Some(&Phase::UnderWay { persistent, .. }) => {
                let problem = Problem::new("undecided", "there was no decision in time")
                    .hint("it may still come about: look before you ask again");
                let after = if persistent {
                    After::Next
                } else {
                    After::Close
                };
                self.reject(
                    id,
                    Rejection::new(Status::GATEWAY_TIMEOUT, problem),
                    after,
                    now,
                );
            }
            _ => self.close(id),
        }
    }

    /// Whoever waits for a decision learns that none will come.
    pub(super) fn say_goodbye(&mut self, id: u64, now: Instant) {
        if let Some(Connection {
            phase: Phase::UnderWay { .. },
            ..
        }) = self.connections.get(&id)
        {
            let problem = Problem::new("stopping", "this socket is being closed");
            self.reject(
                id,
                Rejection::new(Status::UNAVAILABLE, problem),
                After::Close,
                now,
            );
        }
    }

    fn enter(&mut self, id: u64, phase: Phase, within: Duration, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = phase;
            connection.since = now;
            self.set_deadline(id, now + within);
            self.watch(id);
        }
    }
}
