//! The gateway of one running box: the engine that holds its sockets.

use super::book::{Book, NetworkUsage};
use super::outlook::Outlook;
use crate::error::RunError;
use crate::reins::Reins;
use belljar_egress::{
    Arrival, Config, Engine, LlmBudget, LlmPolicy, LlmUsage, PicoUsd, PriceTable, Refusal,
    StartError, Transparent,
};
use belljar_policy::Capability;
use belljar_sandbox::native::Ways;
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;

/// The only way out of a box. Dropped, it closes the box's network.
#[derive(Debug)]
pub(crate) struct Gateway {
    engine: Engine,
    book: Arc<Book>,
}

impl Gateway {
    /// Starts to answer for a box.
    pub(crate) fn open(
        outlook: &Outlook,
        capability: &Capability,
        ways: Ways,
        reins: &Reins,
    ) -> Result<Self, RunError> {
        let mut config = Config::new(outlook.rules.clone());
        config.authority = outlook.authority.clone();
        if let Some(most) = capability.limits.connections {
            config.limits.connections = most;
        }
        config.llm = llm(outlook, capability)?;
        let book = Arc::new(Book::new(reins.clone()));
        let recorder: Arc<dyn belljar_egress::Recorder> = book.clone();
        let engine = Engine::start(config, engine_ways(ways), recorder).map_err(cannot_start)?;
        Ok(Self { engine, book })
    }

    /// Refusals of a kind that was not seen before. The reins' bell rings when there are some.
    pub(crate) fn take_news(&self) -> Vec<Refusal> {
        self.book.take_news()
    }

    /// What calls to models have used so far: tokens, and millionths of a dollar.
    pub(crate) fn metered(&self) -> (u64, u64) {
        metered(&self.engine.usage().llm)
    }

    /// Closes the box's network; what was used of it.
    pub(crate) fn close(self) -> NetworkUsage {
        let usage = self.engine.stop();
        self.book.close(usage)
    }
}

impl std::fmt::Debug for Book {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Book(…)")
    }
}

fn engine_ways(ways: Ways) -> belljar_egress::Ways {
    let transparent = ways.arrivals.into_iter().map(|listener| Transparent {
        listener: TcpListener::from(listener),
        arrival: Arrival::AnyAddress,
    });
    belljar_egress::Ways {
        transparent: transparent.collect(),
        dns_udp: vec![UdpSocket::from(ways.dns_udp)],
        dns_tcp: vec![TcpListener::from(ways.dns_tcp)],
        proxy: vec![TcpListener::from(ways.proxy)],
        strays: vec![ways.strays],
        ..belljar_egress::Ways::default()
    }
}

fn llm(outlook: &Outlook, capability: &Capability) -> Result<Option<LlmPolicy>, RunError> {
    if outlook.endpoints.is_empty() {
        return Ok(None);
    }
    let limits = &capability.limits;
    let prices = PriceTable::shipped().map_err(|error| RunError::Invalid {
        what: error.to_string(),
        hint: "this is a fault of the table that ships with Belljar".into(),
    })?;
    Ok(Some(LlmPolicy {
        endpoints: outlook.endpoints.clone(),
        budget: LlmBudget::new(limits.tokens, limits.cost_usd.map(PicoUsd::from_usd)),
        prices: Arc::new(prices),
    }))
}

/// Tokens, and millionths of a dollar, rounded up.
pub(crate) fn metered(used: &LlmUsage) -> (u64, u64) {
    (used.total.tokens.total(), used.total.cost.as_micro_usd())
}

fn cannot_start(error: StartError) -> RunError {
    RunError::System {
        doing: "starting the box's gateway",
        source: std::io::Error::other(error),
    }
}
