//! The loop: one thread, one epoll, every socket.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::answer::{Command, Mail};
use super::connection::Connection;
use super::listening::{Accepted, Listening, Pause};
use super::{Request, Tag, Tenure};
use crate::Limits;
use crate::route::Side;

/// The number of the bell. Listeners and connections count on from here.
const BELL: u64 = 0;
/// Connections taken from one listener in one turn, so that one crowd does not hold up the rest.
const ACCEPTS_PER_TURN: usize = 8;
/// Bytes read from one connection in one turn.
const READ_AT_ONCE: usize = 64 * 1024;
/// How long a listener waits for a place where nobody can be asked to give one up.
const WAIT_FOR_A_PLACE: Duration = Duration::from_millis(100);

pub(super) fn run(
    limits: Limits,
    mail: Arc<Mail>,
    inbox: Receiver<Command>,
    handler: impl FnMut(Request),
) -> io::Result<()> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        mail.bell(),
        EventData::new_u64(BELL),
        EventFlags::IN,
    )?;
    let mut turns = Loop {
        limits,
        epoll,
        mail,
        handler,
        listeners: HashMap::new(),
        connections: HashMap::new(),
        timers: BTreeSet::new(),
        again: Vec::new(),
        last_id: BELL,
        scratch: vec![0; READ_AT_ONCE],
    };
    turns.run(&inbox)
}

/// Everything the thread owns. Numbers of listeners and connections are never used twice.
pub(super) struct Loop<F> {
    pub(super) limits: Limits,
    pub(super) mail: Arc<Mail>,
    pub(super) handler: F,
    pub(super) listeners: HashMap<u64, Listening>,
    pub(super) connections: HashMap<u64, Connection>,
    pub(super) scratch: Vec<u8>,
    /// Connections with a next request already read. Each has its turn, like one that has just sent something.
    pub(super) again: Vec<u64>,
    epoll: OwnedFd,
    timers: BTreeSet<(Instant, u64)>,
    last_id: u64,
}

impl<F: FnMut(Request)> Loop<F> {
    fn run(&mut self, inbox: &Receiver<Command>) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(64);
        loop {
            self.wait(&mut events)?;
            let now = Instant::now();
            self.mail.hush();
            for command in inbox.try_iter() {
                match command {
                    Command::Add {
                        listener,
                        tag,
                        side,
                        tenure,
                    } => self.add(listener, (tag, side, tenure), now),
                    Command::Remove { tag } => self.remove(tag, now),
                    Command::Reply { to, reply } => self.answer(to, reply, now),
                    Command::Stop => {
                        let all: Vec<_> = self.listeners.keys().copied().collect();
                        all.into_iter().for_each(|id| self.remove_listener(id, now));
                        return Ok(());
                    }
                }
            }
            for id in std::mem::take(&mut self.again) {
                self.digest(id, now);
            }
            for event in events.drain(..) {
                let (data, flags) = (event.data, event.flags);
                self.turn(data.u64(), flags, now);
            }
            // Last, so that what has arrived counts as in time, however late we are ourselves.
            self.fire_timers(now);
        }
    }

    fn wait(&self, events: &mut Vec<Event>) -> io::Result<()> {
        let at_once = (!self.again.is_empty()).then_some(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        });
        let next_timer = self.timers.first().map(|(when, _)| {
            let left = when.saturating_duration_since(Instant::now());
            // A little late rather than a little early, which would mean another round for nothing.
            let left = left + Duration::from_millis(1);
            Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            })
        });
        events.clear();
        let room = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, room, at_once.or(next_timer).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn turn(&mut self, id: u64, flags: EventFlags, now: Instant) {
        if self.listeners.contains_key(&id) {
            self.accept_some(id, now);
        } else if self.connections.contains_key(&id) {
            self.serve(id, flags, now);
        }
    }

    fn fire_timers(&mut self, now: Instant) {
        while let Some(&(when, id)) = self.timers.first() {
            if when > now {
                break;
            }
            self.timers.pop_first();
            if self.listeners.contains_key(&id) {
                self.set_pause(id, Pause::No);
            } else if self.connections.contains_key(&id) {
                self.expire(id, now);
            }
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// A number for a request: no two are alike, and none is like a connection's.
    pub(super) fn next_request(&mut self) -> u64 {
        self.next_id()
    }

    fn add(&mut self, socket: UnixListener, whose: (Tag, Side, Tenure), now: Instant) {
        let id = self.next_id();
        let data = EventData::new_u64(id);
        let watched = epoll::add(&self.epoll, &socket, data, EventFlags::IN).is_ok();
        // A listener that can't be watched is closed: its peers are refused instead of left waiting.
        if let (true, Ok(listening)) = (watched, Listening::new(socket, whose, &self.limits, now)) {
            self.listeners.insert(id, listening);
        }
    }

    fn remove(&mut self, tag: Tag, now: Instant) {
        let with_tag = self
            .listeners
            .iter()
            .filter(|(_, listening)| listening.tag == tag);
        let ids: Vec<_> = with_tag.map(|(id, _)| *id).collect();
        for id in ids {
            self.remove_listener(id, now);
        }
    }

    fn remove_listener(&mut self, id: u64, now: Instant) {
        let Some(listening) = self.listeners.get(&id) else {
            return;
        };
        for connection in listening.connections.clone() {
            self.say_goodbye(connection, now);
            self.close(connection);
        }
        if let Some(listening) = self.listeners.remove(&id) {
            if let Some(until) = listening.pause.deadline() {
                self.timers.remove(&(until, id));
            }
            let _gone = epoll::delete(&self.epoll, &listening.socket);
            listening.shut();
        }
    }

    fn accept_some(&mut self, id: u64, now: Instant) {
        for count in 0..ACCEPTS_PER_TURN {
            if !self.has_room(id) {
                // Somebody is known to wait for the first of a turn only, and nobody is closed for nobody.
                if count > 0 {
                    return;
                }
                if let Err(pause) = self.make_room(id, now) {
                    return self.set_pause(id, pause);
                }
            }
            let Some(listening) = self.listeners.get_mut(&id) else {
                return;
            };
            match listening.accept(now) {
                Accepted::New(stream) => {
                    let connection = Connection::new(id, stream, now, now + self.limits.idle);
                    self.welcome(connection);
                }
                Accepted::Again => {}
                Accepted::Nobody => return,
                Accepted::NotYet(until) => return self.set_pause(id, Pause::Until(until)),
            }
        }
    }

    fn welcome(&mut self, connection: Connection) {
        let id = self.next_id();
        let data = EventData::new_u64(id);
        // A connection that can't be watched is closed; the peer sees that at once.
        if epoll::add(&self.epoll, &connection.stream, data, connection.interest).is_err() {
            return connection.shut();
        }
        if let Some(listening) = self.listeners.get_mut(&connection.listener) {
            listening.connections.insert(id);
            self.timers.insert((connection.deadline, id));
            self.connections.insert(id, connection);
        }
    }

    fn has_room(&self, id: u64) -> bool {
        self.connections.len() < self.limits.connections_in_all
            && self
                .listeners
                .get(&id)
                .is_some_and(|listening| listening.connections.len() < self.limits.connections)
    }

    /// Makes a place for one more connection by closing one that has less claim to it.
    fn make_room(&mut self, id: u64, now: Instant) -> Result<(), Pause> {
        let Some(listening) = self.listeners.get(&id) else {
            return Err(Pause::No);
        };
        let mine = listening.connections.len();
        if mine >= self.limits.connections {
            return self.close_an_idle_one(id, now);
        }
        let greediest = self
            .listeners
            .values()
            .max_by_key(|other| other.connections.len());
        let victim = greediest
            .filter(|other| other.connections.len() > mine + 1)
            .and_then(|other| {
                let evictable = |id: &&u64| {
                    self.connections
                        .get(id)
                        .is_some_and(Connection::may_be_evicted)
                };
                let idle = |id: &&u64| self.connections.get(id).is_some_and(Connection::is_idle);
                let ids = &other.connections;
                ids.iter()
                    .find(idle)
                    .or_else(|| ids.iter().find(evictable))
                    .copied()
            });
        match victim {
            Some(victim) => {
                self.close(victim);
                Ok(())
            }
            None => Err(Pause::Until(now + WAIT_FOR_A_PLACE)),
        }
    }

    /// Without this, a program that leaks connections would keep its operator from the kill switch.
    fn close_an_idle_one(&mut self, id: u64, now: Instant) -> Result<(), Pause> {
        let mut oldest: Option<(Instant, u64)> = None;
        for candidate in self
            .listeners
            .get(&id)
            .into_iter()
            .flat_map(|l| &l.connections)
        {
            if let Some(connection) = self.connections.get(candidate)
                && oldest.is_none_or(|(since, _)| connection.since < since)
                && connection.is_idle()
            {
                oldest = Some((connection.since, *candidate));
            }
        }
        match oldest.map(|(since, victim)| (since + self.limits.idle_when_full, victim)) {
            Some((from, victim)) if from <= now => {
                self.close(victim);
                Ok(())
            }
            // One that is not idle now may be soon, so the look is repeated even where none was found.
            Some((from, _)) => Err(Pause::ForRoom(Some(from))),
            None => Err(Pause::ForRoom(Some(now + WAIT_FOR_A_PLACE))),
        }
    }

    fn set_pause(&mut self, id: u64, pause: Pause) {
        let Some(listening) = self.listeners.get_mut(&id) else {
            return;
        };
        if let Some(old) = listening.pause.deadline() {
            self.timers.remove(&(old, id));
        }
        if let Some(new) = pause.deadline() {
            self.timers.insert((new, id));
        }
        let flags = if pause == Pause::No {
            EventFlags::IN
        } else {
            EventFlags::empty()
        };
        if (listening.pause == Pause::No) != (pause == Pause::No) {
            let _gone = epoll::modify(
                &self.epoll,
                &listening.socket,
                EventData::new_u64(id),
                flags,
            );
        }
        listening.pause = pause;
    }

    pub(super) fn close(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        self.timers.remove(&(connection.deadline, id));
        let _gone = epoll::delete(&self.epoll, &connection.stream);
        connection.shut();
        if let Some(listening) = self.listeners.get_mut(&connection.listener) {
            listening.connections.remove(&id);
            listening.release_request(connection.request_bytes);
            listening.release_reply(connection.reply_bytes);
            if matches!(listening.pause, Pause::ForRoom(_)) {
                self.set_pause(connection.listener, Pause::No);
            }
        }
    }

    pub(super) fn set_deadline(&mut self, id: u64, deadline: Instant) {
        if let Some(connection) = self.connections.get_mut(&id) {
            self.timers.remove(&(connection.deadline, id));
            self.timers.insert((deadline, id));
            connection.deadline = deadline;
        }
    }

    /// Tells epoll what the connection waits for now.
    pub(super) fn watch(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let wants = connection.wants();
        if wants == connection.interest {
            return;
        }
        connection.interest = wants;
        let data = EventData::new_u64(id);
        if epoll::modify(&self.epoll, &connection.stream, data, wants).is_err() {
            self.close(id);
        }
    }
}
