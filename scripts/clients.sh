#!/usr/bin/env bash
# Installs the programs that tests of the network drive from inside boxes: Python's and Node's, pinned, in the build directory.
# Does nothing when they are there.
#   scripts/clients.sh
set -euo pipefail
cd "$(dirname "$0")/.."
# Boxes run as other users, and have to read it.
umask 022

readonly OPENAI_FOR_NODE=openai@6.49.0
# A project whose own tests judge changes to it.
readonly PROJECT=six==1.17.0
readonly REQUIREMENTS=crates/belljar/tests/world/requirements.txt
place=${CARGO_TARGET_DIR:-target}/test-clients

# What stands in `ready` is what was installed: another version is another install.
wanted=$({ echo "$OPENAI_FOR_NODE" "$PROJECT"; cat "$REQUIREMENTS"; /usr/bin/python3 --version; } | sha256sum)
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
npm install --silent --no-audit --no-fund --no-save --prefix "$place/node" "$OPENAI_FOR_NODE"
printf '%s\n' "$wanted" >"$place/ready"
