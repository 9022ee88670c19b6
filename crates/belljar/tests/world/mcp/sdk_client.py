"""The Python SDK as a client that shakes hands and lets itself be asked: of a command (its arguments), or of a socket with HTTP on it
(SOCKET_OF_SERVER). Says what happened as one JSON object."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import httpx2
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

prefix = os.environ.get("PREFIX", "")


@asynccontextmanager
async def transport():
    if socket := os.environ.get("SOCKET_OF_SERVER"):
        over = httpx2.AsyncHTTPTransport(uds=socket)
        async with httpx2.AsyncClient(transport=over, timeout=60) as http:
            async with streamable_http_client("http://localhost/mcp", http_client=http) as streams:
                yield streams
    else:
        words = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ))
        async with stdio_client(words) as streams:
            yield streams


async def asked(_context, params):
    return ElicitResult(action="accept", content={"name": f"ann ({params.message})"})


async def main():
    said = {}
    async with transport() as streams, ClientSession(*streams[:2], elicitation_callback=asked) as session:
        hello = await session.initialize()
        said["version"], said["server"] = hello.protocol_version, hello.server_info.name
        said["tools"] = sorted(tool.name for tool in (await session.list_tools()).tools)
        call = lambda name, arguments: session.call_tool(prefix + name, arguments)
        said["echo"] = (await call("echo", {"message": "hello"})).content[0].text
        try:
            await call("get-env", {})
            said["denied_code"] = 0
        except Exception as error:
            said["denied_code"] = error.error.code
        if "ASK" in os.environ:
            said["asked"] = (await call("ask", {})).content[0].text
        await session.send_ping()
    print(json.dumps(said))


asyncio.run(main())
