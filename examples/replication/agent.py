#!/usr/bin/env python3
"""An agent that hands parts of its work to copies of itself, for as long as its contract lets it.

It needs no library: the way out of its box is one Unix socket, and `belljar` is in the box to speak to it.
"""
import json
import os
import subprocess
import sys
import time

BELLJAR = "/belljar/bin/belljar"


def belljar(*words, text=None):
    """What `belljar agent …` answers, as an object, and whether it was granted."""
    done = subprocess.run(
        [BELLJAR, "agent", *words, "--output", "json"], input=text, capture_output=True, text=True, check=False
    )
    try:
        return done.returncode == 0, json.loads(done.stdout)
    except json.JSONDecodeError:
        return False, {"error": {"code": "no_answer", "message": done.stderr.strip()}}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def main():
    task = json.loads(read("/belljar/state")) if os.path.exists("/belljar/state") else {"part": "everything", "depth": 0}
    name = task["part"]
    print(f"[{name}] at work in a box of its own, depth {task['depth']}", flush=True)
    granted, refused = 0, 0
    for part in range(3):
        state = json.dumps({"part": f"{name}/{part}", "depth": task["depth"] + 1})
        ok, answer = belljar(
            "replicate", "--reason", f"part {part} of {name}", "--state", "-", text=state
        )
        if ok:
            granted += 1
            print(f"[{name}] granted: {answer['worker_id'][:8]} takes part {part}", flush=True)
        else:
            refused += 1
            error = answer.get("error", answer)
            print(f"[{name}] refused: {error['code']}: {error['message']}", flush=True)
            time.sleep(error.get("retry_after_ms", 0) / 1000)
    print(f"[{name}] {granted} granted, {refused} refused", flush=True)
    # At work until somebody ends it.
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 60):
        belljar("heartbeat")
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
