"""An ordinary agent: reads, writes, starts a program, asks a server. Ends with 0 only if all of it works."""

import os
import socket
import subprocess
import sys

with open("main.txt") as file:
    assert file.read()
with open(os.path.expanduser("~/notes.txt")) as file:
    assert file.read()
os.makedirs("build", exist_ok=True)
with open("build/result.txt", "w") as file:
    file.write("done")
with open("/tmp/scratch.txt", "w") as file:
    file.write("own")
listing = subprocess.run(["/bin/ls", "build"], capture_output=True, text=True, check=True).stdout
assert listing == "result.txt\n", listing
try:
    open(os.path.expanduser("~/.ssh/id_ed25519"))
except OSError:
    pass
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    connection.sendall(b"hello?\n")
    said = connection.makefile().readline()
if said != "hello from outside\n":
    sys.exit("the server said %r" % said)
