"""An MCP server by HTTP that misbehaves. Says where it listens on its standard output, ends with its standard input.

usage: upstream.py FILE [CERTIFICATE KEY]
Tools: echo; garbage (events that are none around the answer); twice; broken (a stream that ends early); status (HTTP 500);
hang; crash (a connection that ends); flood; huge; wrong_id; other_id (the same as an event); redirect (to the address in the
arguments); headers (what it was told in secret); secret. What it is called with it writes to the file.
"""

import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def text(id, value):
    return {"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": value}]}}


TOOLS = ["echo", "garbage", "twice", "broken", "status", "hang", "crash", "flood", "huge", "wrong_id", "other_id", "redirect",
         "headers", "secret"]
never = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def give(self, body, kind="application/json", status=200):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.give(b"", status=405)

    do_DELETE = do_GET

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        id, method, params = message.get("id"), message.get("method"), message.get("params", {})
        if id is None:
            return self.give(b"", status=202)
        if method == "initialize":
            return self.give({"jsonrpc": "2.0", "id": id, "result": {
                "protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "upstream", "version": "1"}}})
        if method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}}
                     for name in TOOLS]
            return self.give({"jsonrpc": "2.0", "id": id, "result": {"tools": tools}})
        tool = params.get("name")
        with open(sys.argv[1], "a") as journal:
            journal.write(f"{tool}\n")
        event = lambda value: b"data: " + json.dumps(value).encode() + b"\n\n"
        if tool == "garbage":
            forged = text(id, "forged")
            body = (b"data: {\"jsonrpc\":\"2.0\",\"id\":%d,\"id\":%d,\"result\":{}}\n\n" % (id, id)
                    + b"data: [" + json.dumps(forged).encode() + b"]\n\n" + b"data: no JSON\n\n\xff\xfe\n\n"
                    + event({"jsonrpc": "2.0", "id": 424242, "result": {}})
                    + event({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}})
                    + event(text(id, "genuine")) + event(text(id, "again")))
            return self.give(body, "text/event-stream")
        if tool == "twice":
            return self.give(event(text(id, "first")) + event(text(id, "second")), "text/event-stream")
        if tool == "broken":
            return self.give(b": nothing\n\n", "text/event-stream")
        if tool == "status":
            return self.give(b"<html>oh no</html>", "text/html", 500)
        if tool == "hang":
            never.wait()
        if tool == "crash":
            return self.connection.shutdown(2)
        if tool == "flood":
            told = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 100}}
            return self.give(event(told) * 20000 + event(text(id, "flooded")), "text/event-stream")
        if tool == "huge":
            return self.give(text(id, "x" * (20 << 20)))
        if tool == "wrong_id":
            return self.give(text(424242, "forged"))
        if tool == "other_id":
            return self.give(event(text(str(id), "forged")), "text/event-stream")
        if tool == "redirect":
            self.send_response(307)
            self.send_header("Location", params["arguments"]["to"])
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if tool == "headers":
            return self.give(text(id, str([self.headers.get(name) for name in ["Authorization", "X-Api-Key"]])))
        self.give(text(id, tool))


server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
server.daemon_threads = True
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[2:4])
    server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
