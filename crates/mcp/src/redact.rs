//! Arguments as the record has them.

use belljar_policy::Pointer;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The most bytes of arguments that the record keeps as they are.
const LONGEST: usize = 4096;

/// The arguments with what the pointers say replaced by its size and digest; all of them, where they are long.
pub(crate) fn redacted(arguments: &Value, pointers: &[&Pointer]) -> Value {
    let mut shown = arguments.clone();
    for pointer in pointers {
        pointer.replace(&mut shown, &mut stand_in);
    }
    if shown.to_string().len() > LONGEST {
        return stand_in(arguments);
    }
    shown
}

fn stand_in(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let digest = data_encoding::HEXLOWER.encode(&Sha256::digest(text.as_bytes()));
    json!({"redacted": {"bytes": text.len(), "sha256": digest}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_redacted_or_long_is_its_size_and_digest() {
        let content = Pointer::parse("/content").unwrap();
        let all = Pointer::parse("/keys/*").unwrap();
        let arguments = json!({"path": "/x", "content": "secret", "keys": ["k1", {"v": 2}]});
        let shown = redacted(&arguments, &[&content, &all]);
        assert_eq!(shown["path"], "/x");
        assert_eq!(shown["content"]["redacted"]["bytes"], 6);
        assert_eq!(shown["keys"][1]["redacted"]["bytes"], 7);
        assert!(!shown.to_string().contains("secret") && !shown.to_string().contains("k1"));
        let long = json!({"x": "y".repeat(5000)});
        assert_eq!(
            redacted(&long, &[])["redacted"]["bytes"],
            long.to_string().len()
        );
    }
}
