//! The routes that only the web has. Those of the operator's protocol are in `belljar_api::OPERATOR_ROUTES`.

use belljar_api::{Asker, Method};

/// Who may ask for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody who reaches the server.
    Open,
    /// Whoever has a token whose role is enough.
    Role(Asker),
}

/// A route of the web's own.
#[derive(Clone, Copy, Debug)]
pub struct WebRoute {
    /// Its name.
    pub name: &'static str,
    /// How it is asked.
    pub method: Method,
    /// Where.
    pub path: &'static str,
    /// Who may ask.
    pub access: Access,
    /// What it does.
    pub doc: &'static str,
    pub(crate) own: Own,
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    Health,
    Readiness,
    BeginSession,
    ReadSession,
    EndSession,
    Stream,
    Openapi,
    Prometheus,
}

/// The routes that only the web has.
pub const WEB_ROUTES: &[WebRoute] = &[
    WebRoute {
        name: "ReadHealth",
        method: Method::Get,
        path: "/healthz",
        access: Access::Open,
        doc: "Says that the server answers, and nothing else.",
        own: Own::Health,
    },
    WebRoute {
        name: "ReadReadiness",
        method: Method::Get,
        path: "/readyz",
        access: Access::Open,
        doc: "Whether the daemon can do its work: 200, or 503 with the names of the agents that should run and don't, and no other reason.",
        own: Own::Readiness,
    },
    WebRoute {
        name: "BeginSession",
        method: Method::Post,
        path: "/v1/session",
        access: Access::Open,
        doc: "Begins a session of a browser with a token, and sets its cookie. Failures are limited by address and in all.",
        own: Own::BeginSession,
    },
    WebRoute {
        name: "ReadSession",
        method: Method::Get,
        path: "/v1/session",
        access: Access::Role(Asker::Viewer),
        doc: "Who asks: the token's name and role, and for a session the value that its POSTs need in `X-Belljar-Csrf`.",
        own: Own::ReadSession,
    },
    WebRoute {
        name: "EndSession",
        method: Method::Post,
        path: "/v1/session/end",
        access: Access::Role(Asker::Viewer),
        doc: "Ends the session of the browser that asks, and its streams.",
        own: Own::EndSession,
    },
    WebRoute {
        name: "WatchLive",
        method: Method::Get,
        path: "/v1/stream",
        access: Access::Role(Asker::Viewer),
        doc: "What happens, as it happens: server-sent events named agents, forgotten, event, alert, holds, status and lost.",
        own: Own::Stream,
    },
    WebRoute {
        name: "ReadOpenapi",
        method: Method::Get,
        path: "/v1/openapi.json",
        access: Access::Role(Asker::Viewer),
        doc: "This description.",
        own: Own::Openapi,
    },
    WebRoute {
        name: "ReadPrometheus",
        method: Method::Get,
        path: "/metrics",
        access: Access::Role(Asker::Viewer),
        doc: "Numbers for Prometheus.",
        own: Own::Prometheus,
    },
];
