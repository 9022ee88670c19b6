//! The gateway of one running box: the engine that holds its sockets.

use super::book::{Book, NetworkUsage};
use super::outlook::Outlook;
use super::ports::OpenPort;
use super::refresh::{RefreshedSecret, SecretRefresher};
use super::source::SecretReader;
use super::{proxy, secrets};
use crate::error::RunError;
use crate::reins::Reins;
use belljar_egress::{
    Arrival, BoxSockets, Config, Engine, LlmBudget, LlmPolicy, LlmUsage, PicoUsd, PriceTable,
    Published, Refusal, StartError, Transparent,
};
use belljar_policy::{Capability, OnBudget, PathRule, Rule};
use belljar_sandbox::native::{Standing, Ways};
use std::io::{self, Read as _};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The only way out of a box. Dropped, it closes the box's network.
#[derive(Debug)]
pub(crate) struct Gateway {
    engine: Engine,
    book: Arc<Book>,
    /// What was used of its budget before.
    before: LlmUsage,
    _refresher: SecretRefresher,
}

impl Gateway {
    /// Gets ready to answer for a box: takes its secrets from where they are. Call it when the box's first process is made
    /// and before its program runs.
    pub(crate) fn prepare(
        outlook: Outlook,
        capability: &Capability,
        budget: Option<Arc<LlmBudget>>,
    ) -> Result<Prepared, RunError> {
        // Each connection takes two descriptors. Where there are no more to be had, there are fewer connections.
        let _ = crate::raise_descriptor_limit();
        let mut config = Config::new(outlook.rules.clone());
        config.authority = outlook.authority.clone();
        if let Some(most) = capability.limits.connections {
            config.limits.connections = most;
        }
        config.secrets = secrets::headers(capability, &outlook.secrets);
        let refreshed = secrets::refreshed(capability, &config.secrets);
        config.upstream_proxy = proxy::resolve(capability, &outlook.reader)?;
        let budget = budget.unwrap_or_else(|| own_budget(capability));
        config.llm = llm(&outlook, capability, &budget)?;
        Ok(Prepared {
            config,
            before: budget.usage(),
            on_budget: capability.llm.on_budget,
            ports: outlook.ports,
            refreshed,
            reader: outlook.reader,
        })
    }

    /// Refusals of a kind that was not seen before. The reins' bell rings when there are some.
    pub(crate) fn take_news(&self) -> Vec<Refusal> {
        self.book.take_news()
    }

    /// Refusals that were taken before and came again, with how often since the last time.
    pub(crate) fn take_repeats(&self) -> Vec<(Refusal, u64)> {
        self.book.take_repeats()
    }

    /// Bytes sent and received so far.
    pub(crate) fn carried(&self) -> (u64, u64) {
        let usage = self.engine.usage();
        (usage.sent, usage.received)
    }

    /// Tokens and money so far.
    pub(crate) fn metered(&self) -> (u64, u64) {
        metered(&self.engine.usage().llm.since(&self.before))
    }

    /// Closes the box's network; what was used of it, and the refusals that nobody has taken note of.
    pub(crate) fn close(self) -> (NetworkUsage, Vec<Refusal>) {
        let mut usage = self.engine.stop();
        usage.llm = usage.llm.since(&self.before);
        let news = self.book.take_news();
        (self.book.close(usage), news)
    }
}

/// A gateway that waits for its box's sockets.
pub(crate) struct Prepared {
    config: Config,
    /// What was used of the budget before.
    before: LlmUsage,
    on_budget: OnBudget,
    ports: Vec<OpenPort>,
    refreshed: Vec<RefreshedSecret>,
    reader: SecretReader,
}

impl Prepared {
    /// Its ports that are open on the host.
    pub(crate) fn ports(&self) -> &[OpenPort] {
        &self.ports
    }

    /// Starts to answer for a box.
    pub(crate) fn open(self, standing: &mut Standing, reins: &Reins) -> Result<Gateway, RunError> {
        let book = Arc::new(Book::new(reins.clone(), self.on_budget));
        let recorder: Arc<dyn belljar_egress::Recorder> = book.clone();
        let mut ways = standing.take_ways().map(engine_ways).unwrap_or_default();
        ways.published = self.ports.into_iter().map(published).collect();
        ways.box_sockets = standing
            .take_sockets()
            .map(|sockets| Arc::new(Sockets(sockets)) as Arc<dyn BoxSockets>);
        let refresher =
            SecretRefresher::start(self.refreshed, &self.reader, &recorder).map_err(|source| {
                RunError::System {
                    doing: "starting to refresh secrets",
                    source,
                }
            })?;
        let engine = Engine::start(self.config, ways, recorder).map_err(cannot_start)?;
        Ok(Gateway {
            engine,
            book,
            before: self.before,
            _refresher: refresher,
        })
    }
}

fn published(open: OpenPort) -> Published {
    Published {
        listener: open.listener,
        port: open.port.in_box,
    }
}

/// The box's init makes them.
struct Sockets(belljar_sandbox::native::BoxSockets);

impl BoxSockets for Sockets {
    fn tcp_socket(&self) -> io::Result<OwnedFd> {
        Ok(self.0.tcp()?)
    }
}

/// What a box may spend on models when nobody else decides.
fn own_budget(capability: &Capability) -> Arc<LlmBudget> {
    let limits = &capability.limits;
    LlmBudget::new(limits.tokens, limits.cost_usd.map(PicoUsd::from_usd))
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

fn llm(
    outlook: &Outlook,
    capability: &Capability,
    budget: &Arc<LlmBudget>,
) -> Result<Option<LlmPolicy>, RunError> {
    if outlook.endpoints.is_empty() {
        return Ok(None);
    }
    let mut prices = PriceTable::shipped().map_err(|error| RunError::Invalid {
        what: error.to_string(),
        hint: "this is a fault of the table that ships with Belljar".into(),
    })?;
    if let Some(rule) = &capability.llm.prices {
        prices = own_prices(prices, rule, outlook)?;
    }
    Ok(Some(LlmPolicy {
        endpoints: outlook.endpoints.clone(),
        budget: Arc::clone(budget),
        prices: Arc::new(prices),
    }))
}

/// No table of prices is larger.
const LARGEST_PRICES: u64 = 16 << 20;

fn own_prices(
    shipped: PriceTable,
    rule: &Rule<PathRule>,
    outlook: &Outlook,
) -> Result<PriceTable, RunError> {
    let path = rule.value.resolve(&outlook.places);
    let fail = |why: String| RunError::Refused {
        what: format!("{}: prices {}: {why}", rule.origin, rule.value),
        hint: "a line is provider, model, and prices per token between tabs; see docs/egress.md"
            .into(),
    };
    let path = path.ok_or_else(|| fail("nowhere on this host".to_owned()))?;
    let file = std::fs::File::open(path).map_err(|error| fail(error.to_string()))?;
    let mut text = String::new();
    let read = std::io::Read::take(file, LARGEST_PRICES).read_to_string(&mut text);
    read.map_err(|error| fail(error.to_string()))?;
    shipped.with(&text).map_err(|error| fail(error.to_string()))
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
