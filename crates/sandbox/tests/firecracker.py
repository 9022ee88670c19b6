#!/usr/bin/python3
"""A stand-in for Firecracker 1.13 where there is no Firecracker and no KVM: its HTTP API, strictly, with QEMU (emulation) and
vhost-device-vsock behind it. For tests of what drives Firecracker; nothing here isolates anything.

Snapshots are NOT real: QEMU 7.2 refuses to migrate a machine with a vhost-user vsock device ("non-migratable device", and the
backend lacks VHOST_USER_PROTOCOL_F_LOG_SHMFD). /snapshot/create keeps what the guest was booted from (kernel and initrd in the
memory file, the rest in the state file), /snapshot/load boots that anew and ends the guest's first connection to port 1, so that
the guest must connect again, as it must after a real load. What the guest had in its memory is gone.

Environment: VHOST_DEVICE_VSOCK (default: tools/bin/vhost-device-vsock beside this file), QEMU (default: qemu-system-x86_64),
SILENT_AFTER_LOAD (if set, a load succeeds and the guest never calls: some versions lose the call)."""

import argparse
import contextlib
import ctypes
import http.server
import json
import mmap
import os
import pathlib
import queue
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time

VERSION = "1.13.1"
BODY_LIMIT = 51200  # Firecracker's --http-api-max-payload-size, unless told.
GUEST_PORT = 1  # The port whose first connection is ended after a load.
LIBC = ctypes.CDLL(None)  # Loaded before any fork: the child must not load anything.


class Fault(Exception):
    """Answered with status 400."""


class Fatal(Fault):
    """Firecracker ends after this answer: it does when a load fails."""


# --- What requests may say: for each its fields. A question mark: it may be missing.

NUMBER = "0x[0-9a-fA-F]{1,8}|0b[01]{1,32}"  # A string, with a prefix always.
REGISTER = {"register": "e[abcd]x", "bitmap": "0b[01x]{32}"}
LEAF = {"leaf": NUMBER, "subleaf": NUMBER, "flags": range(2**32), "modifiers": [REGISTER]}
MEMORY = {"backend_type": "File", "backend_path": str}
REQUESTS = {
    "PUT /machine-config": {"vcpu_count": range(1, 33), "mem_size_mib": range(1, 2**20), "smt?": bool, "track_dirty_pages?": bool},
    "PUT /cpu-config": {"cpuid_modifiers?": [LEAF]},
    "PUT /boot-source": {"kernel_image_path": str, "initrd_path?": str, "boot_args?": str},
    "PUT /vsock": {"guest_cid": range(3, 2**32), "uds_path": str},
    "PUT /actions": {"action_type": "InstanceStart"},
    "PATCH /vm": {"state": "Paused|Resumed"},
    "PUT /snapshot/create": {"snapshot_type": "Diff", "snapshot_path": str, "mem_file_path": str},
    "PUT /snapshot/load": {"snapshot_path": str, "mem_backend": MEMORY, "resume_vm?": bool},
}


def fits(value, wanted):
    """What is wanted: a type, a range, a pattern, an object's fields, or a list of what its items are."""
    if isinstance(wanted, type):
        return type(value) is wanted
    if isinstance(wanted, range):
        return type(value) is int and value in wanted  # A bool would be an instance of int.
    if type(value) is not type(wanted):
        return False
    if isinstance(wanted, str):
        return re.fullmatch(wanted, value) is not None
    if isinstance(wanted, list):
        return all(fits(item, wanted[0]) for item in value)
    for name in value:
        if name not in wanted and f"{name}?" not in wanted:
            raise Fault(f"unknown field `{name}`, expected one of {', '.join(wanted)}")
    for name, inner in wanted.items():
        if name.rstrip("?") in value:
            if not fits(found := value[name.rstrip("?")], inner):
                raise Fault(f"invalid value of `{name}`: {json.dumps(found)[:80]}")
        elif not name.endswith("?"):
            raise Fault(f"missing field `{name}`")
    return True


def parsed(body, fields):
    def once(pairs):  # Python's JSON takes a field that is there twice; Firecracker's does not.
        if len(pairs) != len(dict(pairs)):
            raise Fault("duplicate field")
        return dict(pairs)

    try:
        if fits(value := json.loads(body, object_pairs_hook=once), fields):
            return value
        raise Fault("invalid type: expected an object")
    except (ValueError, Fault) as why:
        raise Fault(f"An error occurred when deserializing the json body of a request: {why}.") from why


# --- The machine.

def clock_words():
    """How fast the emulated processor's clock, which is the host's counter, is: on a busy host a guest can't find out itself."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))  # rdtsc; shl rdx, 32; or rax, rdx; ret
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))

    def look():
        first, start = counter(), time.monotonic_ns()
        time.sleep(0.01)
        return (counter() - first) * 1_000_000 // (time.monotonic_ns() - start)

    return f"no_timer_check tsc=reliable tsc_early_khz={sorted(look() for _ in range(3))[1]}"


class Machine:
    """Used by the main thread only: PR_SET_PDEATHSIG means the thread that forked, and requests' threads end."""

    def __init__(self, directory, events):
        self.directory, self.events = directory, events
        self.state, self.is_configured, self.is_kept = "new", False, False
        self.machine = {"vcpu_count": 1, "mem_size_mib": 128}  # Firecracker's own defaults, and so the next.
        self.boot_args = "reboot=k panic=1 nomodule 8250.nr_uarts=0 i8042.noaux i8042.nomux i8042.nopnp i8042.dumbkbd"
        self.vsock = self.placeholder = self.kernel = self.initrd = None
        self.children, self.litter = [], []  # Processes and paths that go when we go.

    def handle(self, request, body):
        if request == "GET /version":
            return 200, {"firecracker_version": VERSION}
        if request not in REQUESTS:
            raise Fault(f"Invalid request method and/or path: {request}.")
        value = parsed(body, REQUESTS[request])
        when = "before" if self.state == "new" else "after"
        if (when == "before") == (request in ("PATCH /vm", "PUT /snapshot/create")):
            raise Fault(f"The requested operation is not supported {when} starting the microVM.")
        if request in ("PUT /machine-config", "PUT /boot-source", "PUT /vsock"):
            self.is_configured = True  # Even if it is refused now, as with Firecracker.
        try:
            getattr(self, re.sub("\\W+", "_", request.lower()))(value)
        except OSError as why:
            raise Fault(f"{request}: {why}") from why
        return 204, None

    def put_machine_config(self, value):
        self.machine = value

    def put_cpu_config(self, _):
        """The emulated processor is what it is."""

    def put_boot_source(self, value):
        # Opened now, as Firecracker does: the paths, which may be /proc/self/fd/N, are not looked at again.
        self.kernel = open(value["kernel_image_path"], "rb")
        self.initrd = open(value["initrd_path"], "rb") if "initrd_path" in value else None
        self.boot_args = value.get("boot_args", self.boot_args)

    def put_vsock(self, value):
        # Firecracker binds now already, and does not replace what is there. The backend takes the path over when it starts.
        self.placeholder = socket.create_server(value["uds_path"], family=socket.AF_UNIX)
        self.litter.append(value["uds_path"])
        self.vsock = value

    def put_actions(self, _):
        if self.kernel is None:
            raise Fault("Start microvm error: Cannot start microvm without kernel configuration.")
        if os.pread(self.kernel.fileno(), 5, 0) != b"\x7fELF\x02":
            raise Fault("Start microvm error: Kernel Loader: failed to load ELF kernel image")
        self.start(self.vsock and self.vsock["uds_path"])

    def patch_vm(self, value):
        if value["state"] == "Resumed" and self.is_kept:
            # Firecracker resets a guest's connections when it makes a snapshot; that can't be done here.
            raise Fault("The stand-in can't resume a machine of which a snapshot was made.")
        self.state = value["state"]
        # The devices stand still as well: Firecracker's thread for them takes nothing but requests while it is paused.
        for child in self.children:
            child.send_signal(signal.SIGSTOP if self.state == "Paused" else signal.SIGCONT)
            if self.state == "Paused":
                with contextlib.suppress(ChildProcessError):  # It ended.
                    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)

    def put_snapshot_create(self, value):
        if self.state != "Paused":
            raise Fault("Create snapshot error: Cannot save the microVM state: it is not paused.")
        if not self.machine.get("track_dirty_pages"):
            # Newer ones take every page that has ever been there instead: that much is not asked for by mistake.
            raise Fault("Create snapshot error: Diff snapshots are not allowed on uVMs with dirty page tracking disabled.")
        state = {"machine": self.machine, "vsock": self.vsock, "boot_args": self.boot_args, "files": {}}
        with open(value["mem_file_path"], "wb") as memory:
            for name in ("kernel", "initrd"):
                if file := getattr(self, name):
                    file.seek(0)
                    shutil.copyfileobj(file, memory)
                    state["files"][name] = file.tell()
            memory.truncate(max(memory.tell(), self.machine["mem_size_mib"] << 20))  # As long as a real one.
        pathlib.Path(value["snapshot_path"]).write_text(json.dumps(state))
        self.is_kept = True

    def put_snapshot_load(self, value):
        if self.is_configured:
            raise Fault("Load snapshot error: Loading a microVM snapshot not allowed after configuring boot-specific resources.")
        try:
            state = json.loads(pathlib.Path(value["snapshot_path"]).read_text())
            self.machine, self.vsock, self.boot_args = state["machine"], state["vsock"], state["boot_args"]
            if os.environ.get("SILENT_AFTER_LOAD"):
                self.put_vsock(self.vsock)  # Its socket is there, as it would be.
                self.state = "Resumed"
                return
            with open(value["mem_backend"]["backend_path"], "rb") as memory:
                for name, size in state["files"].items():
                    setattr(self, name, open(os.memfd_create(name), "w+b", buffering=0))
                    getattr(self, name).write(memory.read(size))
            self.start(self.vsock and self.with_first_connection_lost(os.path.abspath(self.vsock["uds_path"])))
        except (OSError, ValueError, KeyError, TypeError) as why:
            raise Fatal(f"Load snapshot error: Failed to restore from snapshot: {why!r}") from why
        if not value.get("resume_vm", False):
            self.patch_vm({"state": "Paused"})

    def with_first_connection_lost(self, public):
        """Where the backend is to think the host's sockets are: in a directory of ours. There the port's socket is first one on
        which the first connection is ended, and then a link to the real one, so that no byte has to go through us."""
        directory = tempfile.mkdtemp(prefix=".vsock-", dir=self.directory)
        self.litter.append(directory)
        private = os.path.join(directory, "v")
        os.symlink(private, public)  # An error if there is something, as Firecracker's bind is.
        self.litter.append(public)
        doorman = socket.create_server(f"{private}_{GUEST_PORT}", family=socket.AF_UNIX)

        def turn_away():
            connection, _ = doorman.accept()
            # The link is there before the guest learns that it must connect again.
            os.symlink(f"{public}_{GUEST_PORT}", f"{private}.link")
            os.rename(f"{private}.link", f"{private}_{GUEST_PORT}")
            doorman.close()
            # A guest that was kept has said its first word before.
            connection.recv(4096)
            # The backend tells the guest of an end, but not of a close with bytes unread: so those are read.
            connection.shutdown(socket.SHUT_WR)
            with connection:
                while connection.recv(4096):
                    pass

        threading.Thread(target=turn_away, daemon=True).start()
        return private

    def start(self, uds_path):
        megabytes, (words, dashes, rest) = self.machine["mem_size_mib"], self.boot_args.partition(" -- ")
        files = [file.fileno() for file in (self.kernel, self.initrd) if file]
        command = [os.environ.get("QEMU", "qemu-system-x86_64"), "-smp", str(self.machine["vcpu_count"]), "-m", f"{megabytes}M"]
        command += "-no-user-config -nodefaults -display none -monitor none -no-reboot -serial stdio -cpu qemu64".split()
        # Devices are found by ACPI, for kernels that take none from their command line. The backend shares the memory.
        command += "-accel tcg,tb-size=64 -M microvm,rtc=on,pit=on,pic=on,acpi=on,memory-backend=ram".split()
        command += ["-object", f"memory-backend-memfd,id=ram,size={megabytes}M,share=on"]
        command += ["-kernel", f"/proc/self/fd/{files[0]}", "-append", f"{words} {clock_words()}{dashes}{rest}"]
        if self.initrd:
            command += ["-initrd", f"/proc/self/fd/{files[1]}"]
        if self.vsock:
            files.append(self.start_backend(uds_path).detach())
            command += ["-chardev", f"socket,id=vsock,fd={files[-1]}", "-device", "vhost-user-vsock-device,chardev=vsock"]
        machine = self.spawn(command, files)
        threading.Thread(target=lambda: self.events.put(machine.wait()), daemon=True).start()
        self.state = "Resumed"

    def start_backend(self, uds_path):
        """Starts it and connects to it, so that QEMU can be given a connection and no socket file stays."""
        beside = os.path.join(os.path.dirname(os.path.realpath(__file__)), "tools/bin/vhost-device-vsock")
        program, cid = os.environ.get("VHOST_DEVICE_VSOCK", beside), str(self.vsock["guest_cid"])
        with tempfile.TemporaryDirectory(prefix=".vhost-", dir=self.directory) as directory:
            path = os.path.join(directory, "s")
            backend = self.spawn([program, "--guest-cid", cid, "--socket", path, "--uds-path", uds_path], [], sys.stderr)
            while backend.poll() is None:
                connection = socket.socket(socket.AF_UNIX)
                with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                    connection.connect(path)
                    return connection
                time.sleep(0.01)
        raise OSError("vhost-device-vsock ended")

    def spawn(self, command, files, output=None):
        nothing, die_with_us = subprocess.DEVNULL, lambda: LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        self.children.append(subprocess.Popen(command, stdin=nothing, stdout=output, pass_fds=files, preexec_fn=die_with_us))
        return self.children[-1]

    def clean_up(self):
        for child in self.children:
            child.kill()
            child.wait()
        for path in self.litter:
            with contextlib.suppress(OSError):
                os.unlink(path)
            shutil.rmtree(path, ignore_errors=True)


# --- The API.

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal() or int(length) > BODY_LIMIT:
            return self.send_error(400, f"Invalid or too large body ({length} bytes).")
        self.is_answered = threading.Event()
        self.server.events.put((self, self.rfile.read(int(length))))
        self.is_answered.wait()

    do_PUT = do_PATCH = do_GET

    def send_error(self, code, message=None, explain=None):
        self.close_connection = True
        self.answer(400, {"fault_message": message})

    def answer(self, status, value):
        """Like Firecracker's: a status line without words, and no length where there is no body."""
        text = f"HTTP/1.1 {status} \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n"
        if value is not None:
            text += f"Content-Type: application/json\r\nContent-Length: {len(json.dumps(value))}\r\n"
        with contextlib.suppress(OSError):  # Who asked has gone.
            self.wfile.write(f"{text}\r\n{'' if value is None else json.dumps(value)}".encode())


def main():
    if sys.argv[1:] == ["--version"]:
        print(f"Firecracker v{VERSION}\n")
        return 0
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--api-sock", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--level", choices=["Off", "Trace", "Debug", "Info", "Warning", "Error"])
    options = parser.parse_args()
    events = queue.SimpleQueue()
    # Waited for, so that files are removed: Python may miss a signal for its handler when it has just begun to wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=lambda: events.put(signal.sigwait({signal.SIGTERM})), daemon=True).start()
    machine = Machine(os.path.dirname(os.path.abspath(options.api_sock)), events)
    server = socketserver.ThreadingUnixStreamServer(options.api_sock, Handler)  # Fails if something is there.
    server.daemon_threads, server.events = True, events
    machine.litter.append(options.api_sock)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        while not isinstance(event := events.get(), int):  # Until there is the guest's end's status, or a signal's number.
            handler, body = event
            try:
                handler.answer(*machine.handle(f"{handler.command} {handler.path}", body))
            except Fault as why:
                handler.answer(400, {"fault_message": str(why)})
                if isinstance(why, Fatal):
                    return 1
            handler.is_answered.set()
        return 0 if event == 0 else 1
    finally:
        machine.clean_up()


if __name__ == "__main__":
    sys.exit(main())
