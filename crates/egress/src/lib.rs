//! The agent's only way out.
//!
//! A box has no network but the sockets its [`Engine`] listens on. The engine answers name lookups for allowed names alone,
//! takes every connection the agent makes, asks the rules, resolves on the host, checks the address, and passes bytes on. It
//! runs where the agent can't reach it; when it ends, its sockets close and the box's network with them.
//!
//! - A name's address inside the box stands for the name, so a connection is known by the name it was made for, whatever is
//!   spoken on it.
//! - TLS is passed on untouched once the name in its greeting agrees. Where a rule asks about requests, or a secret or a
//!   budget is concerned, it is looked at, with a certificate authority of the box's own.
//! - A published port leads the other way: a connection on the host is passed to a server inside the box.
//! - Everything that is refused is handed to a [`Recorder`], with the line that would allow it.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable
    )
)]

mod config;
mod contain;
mod dial;
mod dns;
mod engine;
mod gate;
mod hello;
mod inspect;
mod llm;
mod pipes;
mod proxy;
mod publish;
mod rate;
mod record;
mod relay;
mod secret;
mod serve;
mod strays;

pub use belljar_policy::{LlmApi, LlmEndpointRule as LlmEndpoint, ProxyResolution, SecretPlace};
pub use config::{
    Arrival, BoxSockets, Config, EncryptedHello, EngineLimits, NameBlock, ProtocolPorts, Published,
    Timeouts, Transparent, Ways,
};
pub use contain::is_contained;
pub use dial::UpstreamProxy;
pub use dns::{Resolve, ResolveError, Resolving, SystemResolver};
pub use engine::{Engine, PublishedUsage, StartError, Usage};
pub use inspect::{
    Authority, AuthorityError, HeaderSecret, Roots, TrustError, client_config, host_roots,
    java_trust_store,
};
pub use llm::{
    Charge, InvalidPrices, LlmBudget, LlmPolicy, LlmUsage, ModelUsage, PicoUsd, PriceTable, Tokens,
};
pub use record::{Connection, Event, Recorder, Refusal, RefusalCode, Way};
pub use secret::{LiveSecret, SecretText};
