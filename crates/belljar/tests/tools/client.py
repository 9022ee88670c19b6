"""Calls tools at $BELLJAR_MCP_SOCKET, each given as TOOL or TOOL={arguments}. Prints each answer as a line of JSON."""

import json
import os
import socket
import sys

stream = socket.socket(socket.AF_UNIX)
stream.connect(os.environ["BELLJAR_MCP_SOCKET"])
lines = stream.makefile("rw")
count = 0


def ask(method, params):
    global count
    count += 1
    lines.write(json.dumps({"jsonrpc": "2.0", "id": count, "method": method, "params": params}) + "\n")
    lines.flush()
    while True:
        line = lines.readline()
        if not line:
            sys.exit("the gateway is gone")
        answer = json.loads(line)
        if answer.get("id") == count:
            return answer


def call(word):
    tool, _, arguments = word.partition("=")
    return ask("tools/call", {"name": tool, "arguments": json.loads(arguments or "{}")})


hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
begun = ask("initialize", hello)
if "error" in begun:
    print(json.dumps(begun), flush=True)
    sys.exit(1)
ask("tools/list", {})
for word in sys.argv[1:]:
    print(json.dumps(call(word)), flush=True)
