"""Abuses its gateway as an agent could, in the way it is told; prints what it saw as JSON."""

import json
import os
import socket
import sys

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def line(number, method, params):
    return (json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n").encode()


def call(number, tool, arguments, **more):
    return line(number, "tools/call", {"name": tool, "arguments": arguments, **more})


class Session:
    def __init__(self, hello=HELLO):
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.connect(os.environ["BELLJAR_MCP_SOCKET"])
        self.lines = self.stream.makefile("rb")
        self.begun = self.ask(line(1, "initialize", hello))

    def ask(self, message):
        self.stream.sendall(message)
        answer = self.lines.readline()
        return json.loads(answer) if answer else None

    def leave(self):
        self.lines.close()
        self.stream.close()


def works():
    session = Session()
    answer = session.ask(call(2, "echo", {"text": "still here"}))
    session.leave()
    return answer.get("result", {}).get("content", [{}])[0].get("text")


def leaves():
    """Goes away in the middle of things."""
    for number in range(40):
        session = Session()
        session.stream.sendall(call(2, "echo", {"text": "x"}))
        if number % 2:
            session.stream.sendall(b'{"jsonrpc": "2.0", "id": 3, "met')
        session.leave()
    return {"works": works()}


def floods():
    """Says much and reads nothing."""
    session = Session()
    session.stream.setblocking(False)
    sent = 0
    for number in range(20000):
        try:
            sent += session.stream.send(call(number + 2, "echo", {"text": "x" * 200}))
        except BlockingIOError:
            break
    idle = []
    for _ in range(1500):
        stream = socket.socket(socket.AF_UNIX)
        try:
            stream.connect(os.environ["BELLJAR_MCP_SOCKET"])
        except OSError:
            break
        idle.append(stream)
    for stream in idle:
        stream.close()
    session.leave()
    return {"sent": sent > 0, "works": works()}


def crowds():
    """A hundred sessions at once, each of which wants a server of its own."""
    sessions = [Session() for _ in range(100)]
    served = [session for session in sessions if session.begun and "result" in session.begun]
    echoed = 0
    for session in served:
        answer = session.ask(call(2, "echo", {"text": "x"}))
        echoed += 1 if answer and "result" in answer else 0
    with open("crowd", "w") as file:
        file.write("here\n")
    while not os.path.exists("enough"):
        pass
    for session in sessions:
        session.leave()
    # Their boxes end before there is room again.
    for _ in range(1000):
        again = works()
        if again:
            break
    return {"echoed": echoed, "works": again}


def lies():
    """Says that it is somebody else."""
    other = sys.argv[2]
    hello = {**HELLO, "clientInfo": {"name": other, "version": "1"}, "run": other, "_meta": {"run": other, "worker": other}}
    session = Session(hello)
    answer = session.ask(call(2, "echo", {"text": "x", "run": other}, run=other, _meta={"run": other, "worker": other}))
    return {"answered": answer is not None}


def borrows():
    """Tries every way to a neighbour's socket."""
    reached = []
    for path in sys.argv[2:]:
        stream = socket.socket(socket.AF_UNIX)
        try:
            stream.connect(path)
            reached.append(path)
        except OSError:
            pass
    return {"reached": reached, "works": works()}


print(json.dumps(globals()[sys.argv[1]]()), flush=True)
