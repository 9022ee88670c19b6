"""The Python SDK as a server.

usage: sdk_server.py stdio | stateless | uds PATH
`stateless` is on standard input and output for the version without handshakes alone; `uds` is streamable HTTP on a socket, and
says `ready` when it listens. Tools: echo; get-env; ask, which wants to know a name from who calls it.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading


def stateless():
    """The SDK serves whichever version a connection begins with: this one begins with the newer."""
    child = subprocess.Popen([sys.executable, "-B", __file__, "stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    first = {"jsonrpc": "2.0", "id": "first", "method": "server/discover", "params": {"_meta": meta}}
    child.stdin.write(json.dumps(first).encode() + b"\n")
    child.stdin.flush()
    child.stdout.readline()

    def pass_on():
        for line in sys.stdin.buffer:
            child.stdin.write(line)
            child.stdin.flush()
        child.stdin.close()

    threading.Thread(target=pass_on, daemon=True).start()
    for line in child.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


if sys.argv[1:] == ["stateless"]:
    stateless()
    sys.exit()

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

server = MCPServer("sdk")


@server.tool()
def echo(message: str) -> str:
    return f"Echo: {message}"


@server.tool(name="get-env")
def get_env() -> str:
    return json.dumps(dict(os.environ))


@server.tool()
async def ask(ctx: Context) -> str | InputRequiredResult:
    if ctx.input_responses is None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        question = ElicitRequest(params=ElicitRequestFormParams(message="who?", requested_schema=schema))
        return InputRequiredResult(input_requests={"who": question}, request_state="asked")
    return f"{ctx.request_state} {ctx.input_responses['who'].content['name']}"


async def on_a_socket(path):
    app = server.streamable_http_app(transport_security=TransportSecuritySettings(allowed_hosts=["localhost"]))
    running = uvicorn.Server(uvicorn.Config(app, uds=path, log_level="error"))
    serving = asyncio.create_task(running.serve())
    while not (running.started or serving.done()):
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    running.should_exit = True
    await serving


match sys.argv[1:]:
    case ["stdio"]:
        server.run("stdio")
    case ["uds", path]:
        asyncio.run(on_a_socket(path))
