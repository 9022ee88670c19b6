//! JSON Schemas, written from the shapes the decoder checks with.

use serde_json::{Map, Value, json};

use crate::shape::{Case, Choice, Object, Presence, Shape};

/// The JSON Schema of `capability.yaml`.
#[must_use]
pub fn schema_capability() -> Value {
    document(
        &crate::capability_file::CAPABILITY,
        "Belljar capability file",
    )
}

/// The JSON Schema of `sandbox.toml`.
#[must_use]
pub fn schema_sandbox_toml() -> Value {
    document(&crate::sandbox_file::DOCUMENT, "Belljar sandbox file")
}

/// The JSON Schema of `supervisor.toml`.
#[must_use]
pub fn schema_supervisor() -> Value {
    document(
        &crate::supervisor_file::SUPERVISOR_FILE,
        "Belljar supervisor file",
    )
}

/// The JSON Schema of `agent.toml`.
#[must_use]
pub fn schema_agent() -> Value {
    document(&crate::supervisor_file::AGENT_FILE, "Belljar agent file")
}

/// The JSON Schema of `contract.yaml`.
#[must_use]
pub fn schema_contract() -> Value {
    document(
        &crate::contract_file::CONTRACT,
        "Belljar replication contract",
    )
}

/// The JSON Schema of a document with this shape.
#[must_use]
pub fn document(shape: &Object, title: &str) -> Value {
    let mut schema = object(shape);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!(title);
    schema["description"] = json!(shape.doc);
    schema
}

fn of(shape: &Shape) -> Value {
    match shape {
        Shape::Object(shape) => object(shape),
        Shape::List { item, most } => {
            json!({"type": "array", "items": of(item), "maxItems": most})
        }
        Shape::Lines { most } => json!({"type": "string", "minLength": 1, "maxLength": most}),
        Shape::Text { most } => json!({
            "type": "string",
            "minLength": 1,
            "maxLength": most,
            "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$",
        }),
        Shape::Choice(shape) => choice(shape),
        Shape::Whole { least, most } => {
            json!({"type": "integer", "minimum": least, "maximum": most})
        }
        Shape::Number { above, most } => {
            json!({"type": "number", "exclusiveMinimum": above, "maximum": most})
        }
        Shape::NumberFrom { least, most } => {
            json!({"type": "number", "minimum": least, "maximum": most})
        }
        Shape::Bool => json!({"type": "boolean"}),
        Shape::OnlyTrue { .. } => json!({"const": true}),
        Shape::OrNull(inner) => json!({"anyOf": [of(inner), {"type": "null"}]}),
        Shape::OneOf(shapes) => {
            json!({"anyOf": shapes.iter().map(of).collect::<Vec<_>>()})
        }
        Shape::Variant(shape) => {
            let mut schema = object(shape);
            schema["minProperties"] = json!(1);
            schema["maxProperties"] = json!(1);
            schema
        }
        Shape::VariantWith(shape, (extra, beside)) => {
            let mut schema = object(shape);
            let keys = shape.fields.iter().map(|field| field.key);
            let forms = keys.filter(|key| key != extra);
            let forms = forms.map(|key| json!({"required": [key]}));
            schema["oneOf"] = forms.collect::<Vec<_>>().into();
            schema["dependentRequired"] = json!({*extra: [beside]});
            schema
        }
        Shape::Open => json!({"type": "object"}),
        Shape::Map { item, most } => {
            json!({"type": "object", "additionalProperties": of(item), "maxProperties": most})
        }
        Shape::Any => json!({}),
        Shape::Guarded(inner) => of(inner),
    }
}

fn object(shape: &Object) -> Value {
    let mut properties = Map::new();
    for field in shape.fields {
        let mut schema = of(&field.shape);
        schema["description"] = json!(field.doc);
        properties.insert(field.key.to_owned(), schema);
    }
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    let needed = shape
        .fields
        .iter()
        .filter(|field| field.presence == Presence::Required);
    let needed: Vec<_> = needed.map(|field| field.key).collect();
    if !needed.is_empty() {
        schema["required"] = json!(needed);
    }
    schema
}

/// Where case is ignored, the words are offered to editors and every spelling is accepted.
fn choice(shape: &Choice) -> Value {
    match shape.case {
        Case::Exact => json!({"enum": shape.words}),
        Case::Ignored => {
            let spellings: Vec<_> = shape.words.iter().map(|word| any_case(word)).collect();
            let pattern = format!("^({})$", spellings.join("|"));
            json!({"anyOf": [{"enum": shape.words}, {"type": "string", "pattern": pattern}]})
        }
    }
}

fn any_case(word: &str) -> String {
    word.chars()
        .map(|c| format!("[{}{}]", c.to_ascii_uppercase(), c.to_ascii_lowercase()))
        .collect()
}
