//! A public package, judged by its own tests.

mod support;

use support::{World, clients};

fn request(modification: &str) -> String {
    format!(
        "description: d\ntarget_files: [six.py]\nrollback_plan: the tree before\ntests: [test_six.py]\nmodifications:\n{modification}"
    )
}

#[test]
fn six_is_judged_by_its_own_tests() {
    let world = World::with(&[]);
    for item in std::fs::read_dir(clients().join("projects/six")).expect("the project") {
        let item = item.expect("an entry");
        if item.file_type().expect("a kind").is_file() {
            let text = std::fs::read_to_string(item.path()).expect("a text");
            world.write(&item.file_name().to_string_lossy(), &text);
        }
    }
    let rewrite = |with: &str| {
        request(&format!(
            "  - rewrite: {{file: six.py, pattern: 'orig_vars = cls.__dict__.copy()', with: '{with}'}}\n"
        ))
    };
    world
        .check(&rewrite("orig_vars = dict(cls.__dict__)"))
        .passes();
    world
        .check(&rewrite("orig_vars = dict()"))
        .is_refused_for("test_failed");
    // Its tests of this one are in a class that the test runner does not collect, so nothing would notice a wrong answer.
    let body = "if isinstance(s, binary_type):\\n    s = s.decode(encoding, errors)\\nreturn s";
    world
        .check(&request(&format!(
            "  - replace_body: {{file: six.py, function: ensure_text, body: \"{body}\"}}\n"
        )))
        .is_refused_for("coverage");
}
