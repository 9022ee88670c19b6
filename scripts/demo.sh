#!/usr/bin/env bash
# Shows a box at work: an agent that does its job, and is refused everything else it tries.
#   BELLJAR=path/to/belljar scripts/demo.sh
# Works in a temporary project with a made-up home directory: nothing of yours is touched or shown.
set -euo pipefail
cd "$(dirname "$0")/.."

belljar=$(realpath "${BELLJAR:?set BELLJAR to the belljar binary}")
examples=$PWD/examples
# The system's own Python: one in your home directory would be hidden along with it.
python=/usr/bin/python3
if [[ -t 1 && -z ${NO_COLOR-} ]]; then
    bold=$'\e[1m' cyan=$'\e[36m' red=$'\e[31m' plain=$'\e[0m'
else
    bold='' cyan='' red='' plain=''
fi

stage=$(mktemp -d)
cleanup() {
    [[ -z ${server_pid-} ]] || kill "$server_pid" 2>/dev/null || true
    rm -rf "$stage"
}
trap cleanup EXIT

say() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
show() { printf '%s$ %s%s\n' "$cyan" "$1" "$plain"; }
fail() {
    printf '%sdemo: %s%s\n' "$red" "$1" "$plain" >&2
    exit 1
}

set_the_stage() {
    mkdir -p "$stage/home/.ssh" "$stage/project/.git/hooks"
    echo '-----BEGIN OPENSSH PRIVATE KEY----- (made up for the demo)' >"$stage/home/.ssh/id_ed25519"
    printf '%s\n' 'pears' 'apples' 'quinces' >"$stage/project/notes.txt"
    cp "$examples/agent.py" "$examples/demo.yaml" "$stage/project/"
    export HOME=$stage/home BELLJAR_STATE_DIR=$stage/state DEMO_API_KEY=sk-made-up-for-the-demo
    cd "$stage/project"
}

start_server() {
    mkfifo "$stage/port"
    "$python" "$OLDPWD/scripts/demo_host.py" host.sock >"$stage/port" &
    server_pid=$!
    read -r server_port <"$stage/port"
}

# expect CODE COMMAND…: runs it and insists on its exit code.
expect() {
    local wanted=$1 code=0
    shift
    "$@" || code=$?
    ((code == wanted)) || fail "exit code $code instead of $wanted"
}

set_the_stage
start_server

say '1. An agent at work, under glass'
echo 'It has a project directory, a home with an SSH key, and DEMO_API_KEY in its environment.'
show 'belljar run --config demo.yaml -- python3 agent.py'
expect 0 "$belljar" run --config demo.yaml -- "$python" agent.py \
    --host-port "$server_port" --host-socket host.sock --host-pid "$server_pid"

say '2. A child of the agent takes 500 MB; the box has 128'
show 'belljar run --config demo.yaml -- python3 agent.py --devour 500'
expect 123 "$belljar" run --config demo.yaml -- "$python" agent.py --devour 500

say '3. Why was that refused, and what would allow it?'
show 'belljar check path ~/.ssh/id_ed25519'
expect 1 "$belljar" check path "$HOME/.ssh/id_ed25519"

say 'What the agent left behind in the project'
show 'ls -A'
ls -A
