#!/usr/bin/env bash
# Licences, bans and sources of every dependency, checked without the network; then the advisories,
# which need a database from the network. What can't be checked is said by name, never skipped silently.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v cargo-deny >/dev/null; then
    echo "deny: compiling cargo-deny once, which takes a minute or two"
    if ! cargo install cargo-deny --quiet --locked --debug --config profile.dev.debug=0; then
        echo "deny: LICENCES, BANS, SOURCES AND ADVISORIES NOT CHECKED: cargo-deny could not be installed" >&2
        # On a developer's train ride that is bearable; where a merge depends on it, it is not.
        [[ -z ${CI-} ]] && exit 0 || exit 1
    fi
fi

cargo deny --all-features check licenses bans sources

if cargo deny fetch db; then
    cargo deny --all-features check --disable-fetch advisories
else
    echo "deny: ADVISORIES NOT CHECKED: the RustSec advisory database could not be fetched" >&2
fi
