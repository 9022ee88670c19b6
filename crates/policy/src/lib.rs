//! Belljar's policy vocabulary and its pure decisions.
//!
//! A [`Capability`] says what an agent may touch and spend. The functions here answer stateless
//! questions about it (may this path be read, does this variable pass, is this host reachable) and
//! compare two of them ([`Capability::attenuate`], [`Capability::meet`]). Nothing in this crate does
//! I/O, reads a clock or asks the network: the caller supplies every fact, so a decision made in a
//! simulation is the decision made in production.

mod agent_paths;
mod attenuate;
mod budget;
mod builtin_paths;
mod capability;
mod codes;
mod contract;
mod decision;
mod egress;
mod env;
mod env_patterns;
mod harmless;
mod image;
mod limits;
mod meet;
mod origin;
mod path_map;
mod path_rule;
mod path_table;
mod tools;

pub use agent_paths::agent_directory;
pub use attenuate::Excess;
pub use budget::{Amount, Budget, Dimension};
pub use capability::{
    Capability, Degraded, Emulation, Filesystem, FsMode, HomeMode, Permission, Strength, Tier,
    Workspace,
};
pub use contract::{Contract, OnParentExit, OnTrigger, ResourceSpec, SignerKind, StopCondition};
pub use decision::{Because, Decision, Reason, Verdict};
pub use egress::{
    AddressAnswer, AddressClass, CompiledRules, Cover, DomainPattern, EgressAnswer, EgressEffect,
    EgressQuestion, EgressRule, EgressTerms, Host, HttpTerms, Inspection, InvalidDomain,
    InvalidHeader, InvalidHost, InvalidPathPattern, InvalidProxy, IpBlock, LlmApi, LlmEndpointRule,
    LlmTerms, METADATA_HINT, MOST_REFRESH, OnBudget, Outcome, PathPattern, PrivateAddresses,
    ProxyPlace, ProxyResolution, ProxyTerms, PublishedPort, Reach, RequestQuestion, RuleId,
    SecretPlace, SecretRule, SecretSource, TLS_PORTS, Upgrade, WebSocket, decide_host, host_ports,
    is_method, is_plain_path, is_provider, is_secret_name, is_variable_name, names_metadata,
};
pub use env::{EnvAllow, EnvPolicy, decide_env, is_credential, is_credential_name};
pub use harmless::{harmless, harmless_bytes, harmless_path, harmless_text, is_harmful};
pub use image::{ImageName, InvalidImageName};
pub use limits::Limits;
pub use origin::{Origin, Rule, Source};
pub use path_rule::{InvalidPathRule, PathRule};
pub use path_table::{Access, Entry, FileOp, Ground, PathTable, Places};
pub use tools::{
    BlockedTool, CallRule, Condition, Glob, InvalidPathGlob, InvalidPointer, InvalidRegex,
    InvalidToolPattern, Lexical, McpServer, NameRules, PathGlob, Paths, Pointer, RateUse,
    ResourcePattern, ServerHeader, ServerRequests, Test, TextTrick, ToolAnswer, ToolPattern,
    ToolQuestion, ToolRules, WholeRegex, decide_tool, is_mcp_header, is_mcp_name, is_mcp_server,
    text_tricks,
};
