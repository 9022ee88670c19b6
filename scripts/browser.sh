#!/usr/bin/env bash
# The browser tests that operate a fleet, against a real supervisor with real agents, which is killed and started again among them.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --quiet --locked --package belljar
target=${CARGO_TARGET_DIR:-target}
host=$(rustc -vV | sed -n 's/^host: //p')
belljar=$(realpath "$target/$host/debug/belljar")
place=$(mktemp -d)
export BELLJAR_STATE_DIR=$place/state
mkdir "$place/work"
# What a token starts works below a directory that is named, and that is not root's.
if [ "$(id -u)" = 0 ]; then
    chmod 711 "$place"
    chown 65534:65534 "$place/work"
fi
printf '[supervisor]\nmax_agents = 60\nstop_grace_seconds = 1\n[supervisor.api]\nworkspaces = ["work"]\n' >"$place/supervisor.toml"

# Starts the supervisor in the background, and waits until it answers; its process and its address are left in files.
cat >"$place/start" <<START
#!/usr/bin/env bash
set -euo pipefail
cd "$place/work"
port=\$(cat "$place/port" 2>/dev/null || echo 0)
"$belljar" supervisor start --config "$place/supervisor.toml" --web-port "\$port" >"$place/log" 2>&1 </dev/null &
echo \$! >"$place/pid"
until grep -q 'dashboard at' "$place/log"; do
    kill -0 "\$(cat "$place/pid")" || { cat "$place/log" >&2; exit 1; }
    sleep 0.1
done
sed -n 's|.*dashboard at http://127.0.0.1:\([0-9]*\).*|\1|p' "$place/log" >"$place/port"
START
cat >"$place/restart" <<RESTART
#!/usr/bin/env bash
set -euo pipefail
kill -9 "\$(cat "$place/pid")"
while kill -0 "\$(cat "$place/pid")" 2>/dev/null; do sleep 0.1; done
exec "$place/start"
RESTART
chmod +x "$place/start" "$place/restart"

finish() {
    "$belljar" supervisor kill-all --reason "the tests are over" >/dev/null 2>&1 || true
    "$belljar" supervisor shutdown >/dev/null 2>&1 || kill -9 "$(cat "$place/pid")" 2>/dev/null || true
    rm -rf "$place"
}
trap finish EXIT

"$place/start"
token=$("$belljar" token create --role admin --name browser 2>/dev/null | grep -o 'bj_[A-Za-z0-9_-]*')
cd dashboard
BELLJAR_URL=http://127.0.0.1:$(cat "$place/port") BELLJAR_TOKEN=$token BELLJAR_RESTART=$place/restart \
    node --import tsx --test --test-concurrency=1 tests/browser/operate.test.ts tests/browser/states.test.ts
