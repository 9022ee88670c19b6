#!/usr/bin/env bash
# Installs the programs that tests of the network drive from inside boxes: Python's and Node's, MCP's servers and clients among them, pinned, in the build directory.
# Does nothing when they are there.
#   scripts/clients.sh
set -euo pipefail
cd "$(dirname "$0")/.."
# Boxes run as other users, and have to read it.
umask 022

# A client of models; MCP's own servers, client library, inspector and conformance suite; the Node that these two need.
readonly NODE_PACKAGES=(
    openai@6.49.0
    @modelcontextprotocol/server-everything@2026.8.31
    @modelcontextprotocol/server-filesystem@2026.8.31
    @modelcontextprotocol/sdk@1.32.2
    @modelcontextprotocol/inspector@2.12.0
    @modelcontextprotocol/conformance@0.1.16
)
readonly NODE_FOR_INSPECTOR=node@24.9.0
# Projects whose own tests judge changes to them: from PyPI, and from crates.io.
readonly PROJECT=six==1.17.0
readonly CRATE=fnv CRATE_VERSION=1.0.7
readonly REQUIREMENTS=crates/belljar/tests/world/requirements.txt
place=${CARGO_TARGET_DIR:-target}/test-clients

# What stands in `ready` is what was installed: another version is another install.
wanted=$({ echo "${NODE_PACKAGES[@]}" "$NODE_FOR_INSPECTOR" "$PROJECT" "$CRATE" "$CRATE_VERSION"; cat "$REQUIREMENTS"; /usr/bin/python3 --version; } | sha256sum)
[[ -f $place/ready && $(<"$place/ready") == "$wanted" ]] && exit 0

echo "setup: installing the clients of the network tests in $place"
rm -rf "$place"
mkdir -p "$place/node"
# The system's own Python: one below somebody's home can't be run by the users of the tests.
/usr/bin/python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "$REQUIREMENTS"
mkdir -p "$place/projects/six"
"$place/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$place/projects" "$PROJECT"
tar --extract --gzip --strip-components 1 --directory "$place/projects/six" --file "$place"/projects/six-*.tar.gz
# Cargo fetches what something depends on, and checks what it fetched.
fetches=$place/projects/fetches
mkdir -p "$fetches/src"
touch "$fetches/src/lib.rs"
printf '[package]\nname = "fetches"\nedition = "2024"\n[dependencies]\n%s = "=%s"\n[workspace]\n' "$CRATE" "$CRATE_VERSION" >"$fetches/Cargo.toml"
cargo vendor --quiet --manifest-path "$fetches/Cargo.toml" "$place/projects/crates" >/dev/null
npm install --silent --no-audit --no-fund --no-save --prefix "$place/node" "${NODE_PACKAGES[@]}"
# Beside the others, which run on the system's.
npm install --silent --no-audit --no-fund --no-save --prefix "$place/newer" "$NODE_FOR_INSPECTOR"
printf '%s\n' "$wanted" >"$place/ready"
