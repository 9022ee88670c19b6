//! OpenAPI of everything that the server serves: the operator's protocol and the web's own routes.

use std::sync::OnceLock;

use belljar_api::{Live, Method, Problem, Side};
use bytes::Bytes;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::login::{LoginRequest, SessionView};
use super::own::{Access, Own, WEB_ROUTES, WebRoute};

/// The OpenAPI document of the web server.
#[must_use]
pub fn openapi() -> Value {
    let mut document = belljar_api::openapi(Side::Operator);
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    document["info"] = json!({
        "title": "Belljar web API",
        "description": "What an operator may ask the supervisor over HTTP, with a token or a browser's session.",
        "version": "1",
    });
    document["servers"] = json!([{"url": "/"}]);
    for route in WEB_ROUTES {
        document["paths"][route.path][route.method.as_str().to_ascii_lowercase()] =
            operation(route, &mut generator);
    }
    let live = generator.subschema_for::<Live>().to_value();
    document["paths"]["/v1/stream"]["get"]["x-event"] = live;
    for (name, schema) in generator.take_definitions(true) {
        document["components"]["schemas"][name] = schema;
    }
    document["components"]["securitySchemes"] = json!({
        "token": {"type": "http", "scheme": "bearer", "description": "A token of `belljar token create`."},
        "session": {
            "type": "apiKey", "in": "cookie", "name": "belljar_PORT",
            "description": "A browser's session. Over TLS the name begins with __Secure-. POSTs need an Origin and X-Belljar-Csrf too.",
        },
    });
    document["security"] = json!([{"token": []}, {"session": []}]);
    belljar_api::bound(&mut document);
    document
}

/// The document as it is served: it is made once.
pub(super) fn served() -> Bytes {
    static SERVED: OnceLock<Bytes> = OnceLock::new();
    SERVED.get_or_init(|| openapi().to_string().into()).clone()
}

fn operation(route: &WebRoute, generator: &mut SchemaGenerator) -> Value {
    let (kind, schema) = match route.own {
        Own::Stream => ("text/event-stream", json!({"type": "string"})),
        Own::Prometheus => ("text/plain", json!({"type": "string"})),
        Own::BeginSession | Own::ReadSession => (
            "application/json",
            generator.subschema_for::<SessionView>().to_value(),
        ),
        Own::Health | Own::Readiness | Own::EndSession | Own::Openapi => {
            ("application/json", json!({"type": "object"}))
        }
    };
    let problem = generator.subschema_for::<Problem>().to_value();
    let mut responses = Map::new();
    responses.insert(
        "200".to_owned(),
        json!({"description": "Granted.", "content": {kind: {"schema": schema}}}),
    );
    responses.insert(
        "default".to_owned(),
        json!({"description": "Refused, or not possible.", "content": {"application/json": {"schema": problem}}}),
    );
    let mut operation = json!({
        "operationId": route.name,
        "description": route.doc,
        "responses": responses,
    });
    if route.own == Own::BeginSession && route.method == Method::Post {
        let schema = generator.subschema_for::<LoginRequest>().to_value();
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    match route.access {
        Access::Open => operation["security"] = json!([]),
        Access::Role(asker) => {
            operation["x-role"] = json!(format!("{asker:?}").to_ascii_lowercase());
        }
    }
    operation
}
