"""An MCP server by HTTP that misbehaves. Says where it listens on its standard output, ends with its standard input.

Tools: echo; garbage (events that are none around the answer); twice; broken (a stream that ends early); status (HTTP 500);
secret. What it is called with it writes to the file it is given.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def text(id, value):
    return {"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": value}]}}


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
                     for name in ["echo", "garbage", "twice", "broken", "status", "secret"]]
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
        self.give(text(id, tool))


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
