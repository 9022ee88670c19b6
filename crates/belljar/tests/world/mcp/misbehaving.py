"""An MCP server on standard input and output that misbehaves as its arguments say.

Tools: echo, twice, hang, crash, flood, garbage, huge, ask, wrong_id. What it is called with it writes to the file `called`.
"""

import json
import os
import sys


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value):
    return {"content": [{"type": "text", "text": value}]}


TOOLS = ["echo", "twice", "hang", "crash", "flood", "garbage", "huge", "ask", "wrong_id", "progress", "secret"]
asked = {}

for line in sys.stdin:
    message = json.loads(line)
    # A server that takes arrays and odd spellings, as the careless do.
    for message in message if isinstance(message, list) else [message]:
        message = {key.lower().replace("\x00", ""): value for key, value in message.items()}
        method, params, id = message.get("method"), message.get("params") or {}, message.get("id")
        if method == "initialize":
            send({"id": id, "result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                                       "serverInfo": {"name": "misbehaving", "version": "1"}}})
        elif method == "tools/list":
            tools = [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in TOOLS]
            send({"id": id, "result": {"tools": tools}})
        elif method and method.lower() == "tools/call":
            params = {key.lower(): value for key, value in params.items()}
            tool = params["name"]
            with open("called", "a") as journal:
                journal.write(tool + "\n")
            if tool == "echo":
                send({"id": id, "result": text(json.dumps(params.get("arguments")))})
            elif tool == "twice":
                send({"id": id, "result": text("first")})
                send({"id": id, "result": text("second")})
            elif tool == "crash":
                sys.stderr.write("crashing\n")
                os._exit(9)
            elif tool == "flood":
                for number in range(20000):
                    send({"method": "notifications/message", "params": {"level": "info", "data": "x" * 100 + str(number)}})
                send({"id": id, "result": text("flooded")})
            elif tool == "garbage":
                sys.stdout.write("this is no JSON\n{\"jsonrpc\":\"2.0\",\"id\":" + str(id) + ",\"id\":7,\"result\":{}}\n[1]\n")
                sys.stdout.write("\xff\xfe\n")
                send({"id": id, "result": text("after garbage")})
            elif tool == "huge":
                send({"id": id, "result": text("x" * (20 << 20))})
            elif tool == "wrong_id":
                send({"id": 999999, "result": text("forged")})
                send({"id": str(id), "result": text("forged")})
                send({"id": id, "result": text("genuine")})
            elif tool == "ask":
                asked["q"] = id
                send({"id": "q", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
            elif tool == "progress":
                token = params["_meta"]["progressToken"]
                send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "total": 2}})
                send({"id": id, "result": text("done")})
            elif tool == "secret":
                send({"id": id, "result": text("the secret")})
            elif tool == "hang":
                asked["hang"] = id
        elif method == "notifications/cancelled":
            with open("called", "a") as journal:
                journal.write("cancelled %s\n" % (params["requestId"] == asked.get("hang")))
        elif method == "ping":
            send({"id": id, "result": {}})
        elif method is None and id in asked:
            send({"id": asked.pop(id), "result": text(json.dumps(message.get("error") or message.get("result")))})
