"""Holds a connection that no answer comes on, and tries for hosts that no rule allows, for as long as it lives.

usage: linger.py linger    writes `WHAT HOST` for each try to the file `tried`
       linger.py once      prints them for one try each
"""

import itertools
import socket
import sys

OTHERS = ["93.184.216.35", "8.8.8.8"]


def try_for(host):
    """A connection alone means nothing here: the box's keeper takes every one, and closes those it refuses."""
    try:
        with socket.create_connection((host, 53 if host == "8.8.8.8" else 80), 60) as stream:
            # A question that both kinds of server answer: a name lookup is no request, nor the other way round.
            ask = b"\0\x1d" + LOOKUP if host == "8.8.8.8" else b"GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n"
            stream.sendall(ask)
            return "reached" if stream.recv(1) else "closed"
    except OSError:
        return "refused"


LOOKUP = b"\0\1\1\0\0\1\0\0\0\0\0\0\7example\3com\0\0\1\0\1"

if sys.argv[1] == "once":
    for host in OTHERS:
        print(try_for(host), host)
else:
    held = socket.create_connection(("allowed.example.com", 80))
    held.sendall(b"GET /never HTTP/1.1\r\nHost: allowed.example.com\r\n\r\n")
    with open("tried", "w", buffering=1) as report:
        for host in itertools.cycle(OTHERS):
            print(try_for(host), host, file=report)
