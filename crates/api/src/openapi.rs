//! OpenAPI 3.1 from the table of routes.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::Method;
use crate::route::{Asker, RouteInfo, Side};
use crate::types::Problem;

/// The OpenAPI document of a side.
#[must_use]
pub fn openapi(side: Side) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for route in side.routes() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = operation(route, &mut generator);
    }
    let (title, description) = match side {
        Side::Agent => (
            "Belljar agent API",
            "What an agent may ask its keeper, over the Unix socket in its box. The socket says who asks.",
        ),
        Side::Operator => (
            "Belljar operator API",
            "What an operator may ask the supervisor, over its Unix socket.",
        ),
    };
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {"title": title, "description": description, "version": "1"},
        "servers": [{"url": "http://localhost", "description": "over a Unix socket"}],
        "paths": paths,
        "components": {"schemas": generator.take_definitions(true)},
    });
    bound(&mut document);
    document
}

/// Says of every integer how large it may be: readers refuse what does not fit.
pub fn bound(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let most = match fields.get("format").and_then(Value::as_str) {
                Some("uint64" | "uint") => Some(json!(u64::MAX)),
                Some("uint32") => Some(json!(u32::MAX)),
                Some("uint16") => Some(json!(u16::MAX)),
                Some("uint8") => Some(json!(u8::MAX)),
                Some("int32") => {
                    fields.entry("minimum").or_insert(json!(i32::MIN));
                    Some(json!(i32::MAX))
                }
                _ => None,
            };
            if let Some(most) = most {
                fields.entry("maximum").or_insert(most);
            }
            fields.values_mut().for_each(bound);
        }
        Value::Array(all) => all.iter_mut().for_each(bound),
        _ => {}
    }
}

/// The document as it is kept in `schemas/`.
#[must_use]
pub fn openapi_text(side: Side) -> String {
    format!("{:#}\n", openapi(side))
}

fn operation(route: &RouteInfo, generator: &mut SchemaGenerator) -> Value {
    let mut responses = Map::new();
    responses.insert(
        route.success.code().to_string(),
        json!({"description": "Granted.", "content": content((route.response)(generator).to_value())}),
    );
    let problem = generator.subschema_for::<Problem>().to_value();
    responses.insert(
        "default".to_owned(),
        json!({"description": "Refused, or not possible.", "content": content(problem)}),
    );
    let mut operation = json!({
        "operationId": route.name,
        "description": route.doc.trim(),
        "responses": responses,
    });
    if route.method == Method::Post {
        let schema = (route.request)(generator).to_value();
        operation["requestBody"] =
            json!({"required": !(route.body_is_optional)(), "content": content(schema)});
    }
    let mut parameters = Vec::new();
    if let Some(schema) = (route.target)(generator) {
        let schema = schema.to_value();
        parameters.push(json!({"name": "id", "in": "path", "required": true, "schema": schema}));
    }
    if route.method == Method::Get {
        parameters.extend(query(&(route.request)(generator), generator));
    }
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    if route.asker != Asker::Agent {
        operation["x-role"] = json!(format!("{:?}", route.asker).to_ascii_lowercase());
    }
    operation
}

/// The fields of what a `GET` asks, as parameters.
fn query(request: &Schema, generator: &SchemaGenerator) -> Vec<Value> {
    let name = request.get("$ref").and_then(Value::as_str);
    let name = name.and_then(|path| path.rsplit('/').next());
    let fields = name
        .and_then(|name| generator.definitions().get(name))
        .and_then(|schema| schema.get("properties"))
        .and_then(Value::as_object);
    let parameter = |(name, schema): (&String, &Value)| json!({"name": name, "in": "query", "required": false, "schema": schema});
    fields.map_or_else(Vec::new, |fields| fields.iter().map(parameter).collect())
}

fn content(schema: Value) -> Value {
    json!({"application/json": {"schema": schema}})
}
