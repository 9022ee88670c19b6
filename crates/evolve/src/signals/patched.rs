//! Where what an imported module has is set, by whatever statement.

use crate::lang::{Ast, AstNode, is_name};

use super::line;

/// Attributes of imported things that are set, counted up or deleted.
pub(super) fn patches(ast: &Ast) -> Vec<(usize, String)> {
    let root = ast.root();
    let mut imported = Vec::new();
    for node in root
        .dfs()
        .filter(|node| matches!(&*node.kind(), "import_statement" | "import_from_statement"))
    {
        imported.extend(
            node.dfs()
                .filter(is_name)
                .map(|name| name.text().into_owned()),
        );
    }
    let mut found = Vec::new();
    for target in root.dfs().filter_map(|node| target(&node)) {
        for part in target.dfs().filter(|part| part.kind() == "attribute") {
            let first = part
                .dfs()
                .find(is_name)
                .map(|name| name.text().into_owned())
                .unwrap_or_default();
            if imported.contains(&first) {
                found.push((line(&part), part.text().into_owned()));
            }
        }
    }
    found
}

/// What a statement, or a part of one, binds.
fn target<'a>(node: &AstNode<'a>) -> Option<AstNode<'a>> {
    match &*node.kind() {
        "assignment" | "augmented_assignment" | "for_statement" | "for_in_clause" => {
            node.field("left")
        }
        "named_expression" => node.field("name"),
        "delete_statement" | "as_pattern_target" => Some(node.clone()),
        _ => None,
    }
}
