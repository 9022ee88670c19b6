//! The live stream: server-sent events until the reader, the token or the session is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Response, StatusCode};
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::Site;
use super::admission::Admitted;
use super::calls::in_a_thread;
use super::reply::{self, Body, Refusal};
use crate::Feed;
use crate::feed::Reader;
use crate::tokens::TokenId;

/// The first thing in a stream: how soon to come back when it breaks.
const HELLO: &[u8] = b"retry: 2000\n\n";
/// A comment, so that both sides notice when the other is gone.
const HEARTBEAT: &[u8] = b": still here\n\n";

impl Site {
    pub(super) async fn stream(
        self: &Arc<Self>,
        admitted: Admitted,
    ) -> Result<Response<Body>, Refusal> {
        let place = self.streams.take(&admitted.token.id).ok_or_else(|| {
            Refusal::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_streams",
                "as many streams as may be are open",
            )
            .retry_after(Duration::from_secs(5))
        })?;
        let (feed, reader) = Feed::new(self.limits.stream_messages);
        let site = Arc::clone(self);
        in_a_thread(&self.reads, self.limits.answer, move || {
            site.backend.subscribe(feed)
        })
        .await?;
        let (sender, parts) = mpsc::channel(1);
        let site = Arc::clone(self);
        tokio::spawn(async move {
            site.tell(&sender, &reader, &admitted).await;
            drop(place);
        });
        let mut response = reply::of_kind(StatusCode::OK, "text/event-stream", "");
        *response.body_mut() = Body::stream(parts);
        Ok(response)
    }

    /// Comes back when the reader is gone, or would not be let in any more.
    async fn tell(&self, sender: &Sender<Bytes>, reader: &Reader, admitted: &Admitted) {
        let mut check = interval(self.limits.check);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next = Some(Bytes::from_static(HELLO));
        // Put off by what is told, and by nothing else.
        let heartbeat = sleep(self.limits.heartbeat);
        tokio::pin!(heartbeat);
        loop {
            // One part is ready at most: what waits for a slow reader waits in the feed, which is bounded.
            let part = tokio::select! {
                biased;
                () = sender.closed() => return,
                _ = check.tick() => {
                    if !self.is_still_good(admitted, Instant::now()) {
                        return;
                    }
                    continue;
                }
                room = sender.reserve(), if next.is_some() => {
                    if let (Ok(room), Some(part)) = (room, next.take()) {
                        room.send(part);
                    }
                    continue;
                }
                message = reader.next(), if next.is_none() => self.frames.of(&message),
                () = &mut heartbeat, if next.is_none() => Bytes::from_static(HEARTBEAT),
            };
            heartbeat
                .as_mut()
                .reset(tokio::time::Instant::now() + self.limits.heartbeat);
            next = Some(part);
        }
    }
}

/// The streams that are open.
#[derive(Debug)]
pub(super) struct Streams {
    most: usize,
    most_of_one: usize,
    open: Arc<Mutex<HashMap<TokenId, usize>>>,
}

impl Streams {
    pub(super) fn new(most: usize, most_of_one: usize) -> Self {
        Self {
            most,
            most_of_one,
            open: Arc::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.open).values().sum()
    }

    fn take(&self, token: &TokenId) -> Option<StreamPlace> {
        let mut open = lock(&self.open);
        let of_one = open.get(token).copied().unwrap_or(0);
        if of_one >= self.most_of_one || open.values().sum::<usize>() >= self.most {
            return None;
        }
        open.insert(token.clone(), of_one + 1);
        Some(StreamPlace {
            open: Arc::clone(&self.open),
            token: token.clone(),
        })
    }
}

/// The place of an open stream.
struct StreamPlace {
    open: Arc<Mutex<HashMap<TokenId, usize>>>,
    token: TokenId,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        match open.get_mut(&self.token) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.remove(&self.token)),
        }
    }
}

fn lock(open: &Mutex<HashMap<TokenId, usize>>) -> MutexGuard<'_, HashMap<TokenId, usize>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}
