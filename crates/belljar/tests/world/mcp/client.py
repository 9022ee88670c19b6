"""The Python SDK as a client: of a command (its arguments) or of an address (URL_OF_SERVER). Says what happened as one JSON object."""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

prefix = os.environ.get("PREFIX", "")


def transport():
    if url := os.environ.get("URL_OF_SERVER"):
        return streamable_http_client(url)
    return stdio_client(StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ)))


async def main():
    said = {"progress": 0}

    async def progressed(*_):
        said["progress"] += 1

    async with transport() as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        said["lists_get_env"] = any(tool.name == prefix + "get-env" for tool in tools)
        call = lambda name, arguments, **more: session.call_tool(prefix + name, arguments, **more)
        said["echo"] = (await call("echo", {"message": "hello"})).content[0].text
        try:
            await call("get-env", {})
            said["denied_code"] = 0
        except Exception as error:
            said["denied_code"] = error.error.code
        await call("trigger-long-running-operation", {"duration": 0.2, "steps": 2}, progress_callback=progressed)
        said["after"] = (await call("echo", {"message": "again"})).content[0].text
    print(json.dumps(said))


asyncio.run(main())
