#!/usr/bin/env bash
# The schemas in the repository are what editors fetch; the binary prints its own. They must agree.
set -euo pipefail
cd "$(dirname "$0")/.."

for kind in capability sandbox contract supervisor agent experiment evolve request; do
    cargo run --quiet --locked --package belljar -- schema "$kind" |
        diff --unified "schemas/$kind.schema.json" - || {
        echo "schema: schemas/$kind.schema.json is stale: BELLJAR_BLESS=1 cargo test -p belljar-manifest -p belljar-experiment -p belljar-evolve" >&2
        exit 1
    }
done
