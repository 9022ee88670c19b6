#!/usr/bin/env python3
"""What the demo's agent must not reach: a server of this machine, on a Unix socket and a TCP port.

Prints the port when both listen, then waits to be ended.
"""

import signal
import socket
import sys

unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
unix.bind(sys.argv[1])
unix.listen()
tcp = socket.create_server(("127.0.0.1", 0))
print(tcp.getsockname()[1], flush=True)
signal.pause()
