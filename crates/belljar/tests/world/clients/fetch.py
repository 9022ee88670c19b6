"""Fetches each address with every Python library that people use, as they use it.

usage: fetch.py URL…    prints `LIBRARY URL: STATUS` for each
"""

import asyncio
import sys

import aiohttp
import httpx
import requests


def say(library, url, status):
    print(f"{library} {url}: {status}", flush=True)


async def with_aiohttp(url):
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        await answer.read()
        say("aiohttp", url, answer.status)


def main():
    for url in sys.argv[1:]:
        say("requests", url, requests.get(url).status_code)
        say("httpx", url, httpx.get(url).status_code)
        with httpx.Client(http2=True) as client:
            answer = client.get(url)
            say(answer.http_version, url, answer.status_code)
        asyncio.run(with_aiohttp(url))


main()
