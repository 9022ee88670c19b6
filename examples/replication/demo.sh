#!/usr/bin/env bash
# Shows a family of agents within a contract: grants, refusals, quarantine, the kill switch, and the record of it all.
#   BELLJAR=path/to/belljar examples/replication/demo.sh
# Works in temporary directories: nothing of yours is touched or shown.
set -euo pipefail
cd "$(dirname "$0")"

belljar=$(realpath "${BELLJAR:?set BELLJAR to the belljar binary}")
# The system's own Python: one in your home directory would be hidden along with it.
python=/usr/bin/python3
if [[ -t 1 && -z ${NO_COLOR-} ]]; then
    bold=$'\e[1m' cyan=$'\e[36m' red=$'\e[31m' plain=$'\e[0m'
else
    bold='' cyan='' red='' plain=''
fi

stage=$(mktemp -d)
cleanup() {
    [[ -z ${family-} ]] || kill "$family" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$stage"
}
trap cleanup EXIT

say() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
show() {
    printf '%s$ %s%s\n' "$cyan" "$*" "$plain"
    shift
    "$belljar" "$@"
}
fail() {
    printf '%sdemo: %s%s\n' "$red" "$1" "$plain" >&2
    exit 1
}
# await WHAT COMMAND…: until it succeeds, for a minute at most.
await() {
    local what=$1
    shift
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    fail "waited in vain for $what"
}

mkdir "$stage/work"
cp agent.py contract.yaml "$stage/work/"
export BELLJAR_STATE_DIR=$stage/state
cd "$stage/work"

say '1. The contract'
show belljar replication contract validate contract.yaml

say '2. An agent that hands parts of its work to copies of itself'
echo "$ belljar run --contract contract.yaml -- python3 agent.py &"
"$belljar" run --quiet --contract contract.yaml -- "$python" agent.py 60 &
family=$!
workers() { "$belljar" replication workers --output json | "$python" -c "import json, sys
live = json.load(sys.stdin)['workers']
print(*[worker['id'] for worker in live if worker['depth'] == int(sys.argv[1])])" "$1"; }
has_children() { [[ -n $(workers 1) && -n $(workers 2) ]]; }
await 'replicas' has_children
sleep 2

say '3. The family, as an operator sees it'
show belljar replication tree

say '4. One of them is put in quarantine: no process of it runs, it gets no grants'
read -r suspect _ <<<"$(workers 1)"
show belljar replication quarantine "${suspect:0:8}" --reason 'asks for too much'

say '5. The kill switch'
show belljar replication kill-switch engage --reason 'end of the demo'
code=0
wait "$family" || code=$?
family=''
echo "the agent's run ended with code $code"
show belljar run -- /bin/true && fail 'something started after the kill switch'

say '6. The record: whole, signed, and it names every refusal'
show belljar audit verify --log fleet
show belljar audit tail --log fleet -n 6
show belljar replication kill-switch reset --reason 'the demo is over'
