"""Greets whoever connects to ADDRESS, and writes a line to FILE for each. Prints its port and pid, and stays behind."""

import os
import socket
import sys

listener = socket.create_server((sys.argv[1], 0))
child = os.fork()
if child:
    print(listener.getsockname()[1], child)
    sys.exit()
nothing = os.open("/dev/null", os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(nothing, stream)
while True:
    connection, _ = listener.accept()
    with open(sys.argv[2], "a") as file:
        file.write("called\n")
    with connection:
        connection.makefile().readline()
        connection.sendall(b"hello from outside\n")
