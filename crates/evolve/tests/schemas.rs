//! The schemas in the repository are what the files are checked against.

#[test]
fn the_committed_schemas_are_the_ones_that_are_checked() {
    for (name, schema) in [
        ("evolve", belljar_evolve::config::schema()),
        ("request", belljar_evolve::request::schema()),
    ] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../../schemas/{name}.schema.json"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("BELLJAR_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            text,
            "run it with BELLJAR_BLESS=1"
        );
    }
}
