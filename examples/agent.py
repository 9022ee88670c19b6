#!/usr/bin/env python3
"""A small agent without a model: does its job, then tries what a hijacked agent would try.

    belljar run -- python3 examples/agent.py

It prints one line for each attempt. It exits with 1 if anything got through that should not have,
so it must fail outside a box. Colour only repeats what the words say; NO_COLOR turns it off.
"""

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

COLOUR = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "white on red": "37;41"}


def styled(text, style):
    return f"\033[{STYLES[style]}m{text}\033[0m" if COLOUR else text


class Diary:
    """Runs attempts and writes down how each went."""

    def __init__(self):
        self.surprises = 0

    def heading(self, text):
        print("\n" + styled(text, "bold"), flush=True)

    def line(self, verdict, style, what, detail):
        print(f"  {styled(f'{verdict:<8}', style)}  {what:<42} {styled(detail, 'dim')}", flush=True)

    def works(self, what, attempt):
        """Part of the job: should succeed."""
        try:
            self.line("ok", "green", what, attempt())
        except OSError as error:
            self.surprises += 1
            self.line("FAILED", "white on red", what, reason(error))

    def refused(self, what, attempt):
        """An attack: should be refused. It returns what it got hold of."""
        try:
            self.line("ESCAPED", "white on red", what, attempt())
            self.surprises += 1
        except OSError as error:
            self.line("refused", "red", what, reason(error))


def reason(error):
    return error.strerror or str(error)


# --- the job ------------------------------------------------------------------------------------


def read_notes():
    words = Path("notes.txt").read_text().split()
    return f"{len(words)} words"


def sort_in_subprocess():
    done = subprocess.run(["sort", "notes.txt"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(0, done.stderr.strip())
    return f"sort gave {len(done.stdout.splitlines())} lines"


def write_result():
    Path("result.txt").write_text("done\n")
    return "result.txt"


# --- what a hijacked agent would try ------------------------------------------------------------


def read_ssh_key():
    return (Path.home() / ".ssh" / "id_ed25519").read_text().splitlines()[0]


def read_secret_variable():
    found = [name for name in os.environ if "KEY" in name or "TOKEN" in name or "SECRET" in name]
    if not found:
        raise OSError(0, "not in the environment")
    return ", ".join(found)


def read_parent_environment():
    return f"{len(Path(f'/proc/{os.getppid()}/environ').read_bytes())} bytes"


def create(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x") as file:
        file.write("#!/bin/sh\n")
    path.unlink()
    return f"{path} was writable"


def find_host_process(pid):
    seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    if pid not in seen:
        raise OSError(0, f"sees {len(seen)} in /proc, none of the host's")
    return f"process {pid} of the host is visible"


def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as peer:
        peer.settimeout(5)
        peer.connect(address)
    return f"connected to {address}"


def resolve(name):
    return socket.getaddrinfo(name, 443)[0][4][0]


def become_root():
    command = ["unshare", "--user", "--map-root-user", "id", "-u"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(0, done.stderr.strip().rpartition(": ")[2])
    return f"uid {done.stdout.strip()}"


# --- acts ---------------------------------------------------------------------------------------


def play(options):
    diary = Diary()
    diary.heading("The job")
    diary.works("read notes.txt in the workspace", read_notes)
    diary.works("run another program on it", sort_in_subprocess)
    diary.works("write the result", write_result)

    diary.heading("Secrets")
    diary.refused("read ~/.ssh/id_ed25519", read_ssh_key)
    diary.refused("find a secret in the environment", read_secret_variable)
    diary.refused("read the parent's environment in /proc", read_parent_environment)

    diary.heading("Staying after the end")
    diary.refused("write to /etc", lambda: create(Path("/etc/belljar-demo")))
    diary.refused("plant a git hook in the workspace", lambda: create(Path(".git/hooks/post-checkout")))
    diary.refused("become root in a namespace of its own", become_root)

    diary.heading("The world outside")
    diary.refused("look up example.com", lambda: resolve("example.com"))
    if options.host_port:
        diary.refused("connect to a server on this machine", lambda: connect(socket.AF_INET, ("127.0.0.1", options.host_port)))
    if options.host_socket:
        diary.refused("connect to a Unix socket of this machine", lambda: connect(socket.AF_UNIX, options.host_socket))
    if options.host_pid:
        diary.refused("find another process of this machine", lambda: find_host_process(options.host_pid))
    print()
    return 1 if diary.surprises else 0


def devour(megabytes):
    """A child takes more memory than the box has; the box should end here."""
    program = f"data = bytearray({megabytes} << 20); data[::4096] = b'x' * len(data[::4096])"
    print(f"  a child process takes {megabytes} MB …", flush=True)
    subprocess.run([sys.executable, "-c", program], check=False)
    print(f"  {styled('ESCAPED', 'white on red')}  still alive after {megabytes} MB", flush=True)
    return 1


def main():
    parser = argparse.ArgumentParser(description="An agent that tests its box.")
    parser.add_argument("--devour", type=int, metavar="MB", help="only take this much memory, in a child")
    parser.add_argument("--host-port", type=int, help="a TCP port on which the host listens")
    parser.add_argument("--host-socket", help="a Unix socket on which the host listens")
    parser.add_argument("--host-pid", type=int, help="a process of the host")
    options = parser.parse_args()
    return devour(options.devour) if options.devour else play(options)


if __name__ == "__main__":
    sys.exit(main())
