"""An MCP server on standard input and output, with tools that tell what is around it. `tick` goes on by itself after its answer."""

import json
import os
import sys
import threading
import time

TOOLS = ["echo", "around", "tick", "remove", "secret", "die"]


def tick(name):
    count = 0
    while True:
        count += 1
        with open(name + ".new", "w") as file:
            file.write(f"{count}\n")
        os.rename(name + ".new", name)
        time.sleep(0.02)


def call(name, arguments):
    if name == "echo":
        return arguments.get("text", "")
    if name == "around":
        try:
            open(arguments["file"], "w").close()
            wrote = True
        except OSError:
            wrote = False
        return json.dumps({"token": os.environ.get("TOKEN"), "cwd": os.getcwd(), "wrote": wrote})
    if name == "die":
        os._exit(3)
    if name == "tick":
        threading.Thread(target=tick, args=(arguments["file"],), daemon=True).start()
        return "ticking"
    with open(arguments["file"], "a") as file:
        file.write(name + "\n")
    return "done " + name


for line in sys.stdin:
    ask = json.loads(line)
    if "id" not in ask:
        continue
    method = ask["method"]
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "tools", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    elif method == "tools/call":
        text = call(ask["params"]["name"], ask["params"].get("arguments") or {})
        result = {"content": [{"type": "text", "text": text}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": ask["id"], "result": result}), flush=True)
