"""The servers of a test's world: names, web hosts and models. Every request is put down as a line of JSON.

usage: upstream.py DIRECTORY    with server.pem and server.key in it; writes seen.jsonl there, prints `ready`
"""

import json
import os
import select
import socket
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import models
import names
import proxy
import shelves

PLACE = sys.argv[1]
WEB_PORTS = {80: "plain", 8080: "plain", 443: "tls", 8443: "tls"}


class Journal:
    """What arrived, in order."""

    def __init__(self, path):
        self.lock = threading.Lock()
        self.file = open(path, "a", buffering=1)

    def note(self, **entry):
        with self.lock:
            self.file.write(json.dumps(entry) + "\n")


JOURNAL = Journal(os.path.join(PLACE, "seen.jsonl"))


class Web(BaseHTTPRequestHandler):
    """HTTP/1.1, lenient: a server that reads what a strict one would refuse is what smuggling needs."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def log_message(self, *words):
        pass

    def read_body(self):
        if self.headers.get("Content-Length"):
            return self.rfile.read(int(self.headers["Content-Length"].split(",")[0]))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            whole = b""
            while True:
                size = int(self.rfile.readline().split(b";")[0], 16)
                whole += self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    return whole
        return b""

    def handle_any(self):
        body = self.read_body()
        JOURNAL.note(
            kind="http",
            version="1.1",
            method=self.command,
            path=self.path,
            host=self.headers.get("Host"),
            sni=getattr(self.connection, "world_name", None),
            at=self.connection.getsockname()[0],
            port=self.connection.getsockname()[1],
            headers={name.lower(): value for name, value in self.headers.items()},
            body=body.decode("utf-8", "replace"),
        )
        name = (self.headers.get("Host") or "").split(":")[0]
        if self.path == "/never":
            # An answer that never comes: until the client is gone.
            select.select([self.connection], [], [])
            JOURNAL.note(kind="gone")
        else:
            answer(self, name, body, self.connection.getsockname()[0])

    def give(self, status, body, headers=()):
        self.send_response(status)
        for header, value in dict(headers).items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def begin(self, headers):
        """An answer in parts."""
        self.send_response(200)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def part(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end(self):
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = handle_any


def answer(web, name, body, at):
    """What hosts answer, whatever the version."""
    url = urlsplit(web.path)
    if models.serves(name):
        models.answer(web, url.path, body, JOURNAL)
    elif shelves.serves(name):
        shelves.answer(web, name, body, PLACE)
    elif url.path == "/redirect":
        web.give(302, b"", {"Location": parse_qs(url.query)["to"][0]})
    else:
        told = {"host": web.headers.get("Host"), "path": web.path, "method": web.command, "at": at}
        web.give(200, json.dumps(told).encode(), {"Content-Type": "application/json"})


class Request2:
    """One request of HTTP/2, as those who answer know requests."""

    def __init__(self, connection, stream_id, headers):
        self.connection, self.stream_id = connection, stream_id
        self.command, self.path = headers[":method"], headers[":path"]
        self.headers = {name.title(): value for name, value in headers.items()} | {"Host": headers[":authority"]}

    def give(self, status, body, headers=()):
        head = [(":status", str(status)), ("content-length", str(len(body)))]
        head += [(name.lower(), value) for name, value in dict(headers).items()]
        self.connection.send_headers(self.stream_id, head)
        # All that is served here fits the window a client opens with.
        self.connection.send_data(self.stream_id, body, end_stream=True)

    def begin(self, headers):
        head = [(":status", "200")] + [(name.lower(), value) for name, value in headers.items()]
        self.connection.send_headers(self.stream_id, head)

    def part(self, data):
        self.connection.send_data(self.stream_id, data)

    def end(self):
        self.connection.end_stream(self.stream_id)


class Web2:
    """HTTP/2, as little of it as its clients need: every request is put down and answered."""

    def __init__(self, stream):
        import h2.connection
        import h2.config
        import h2.events

        self.events = h2.events
        self.stream = stream
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8", validate_inbound_headers=False)
        self.connection = h2.connection.H2Connection(config=config)
        self.requests = {}

    def serve(self):
        self.connection.initiate_connection()
        self.flush()
        while data := self.stream.recv(65536):
            for event in self.connection.receive_data(data):
                self.take(event)
            self.flush()

    def flush(self):
        self.stream.sendall(self.connection.data_to_send())

    def take(self, event):
        if isinstance(event, self.events.RequestReceived):
            self.requests[event.stream_id] = (dict(event.headers), b"")
        elif isinstance(event, self.events.DataReceived):
            headers, body = self.requests[event.stream_id]
            self.requests[event.stream_id] = (headers, body + event.data)
            self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, self.events.StreamEnded):
            headers, body = self.requests.pop(event.stream_id)
            self.answer(event.stream_id, headers, body)

    def answer(self, stream_id, headers, body):
        JOURNAL.note(
            kind="http",
            version="2",
            method=headers.get(":method"),
            path=headers.get(":path"),
            host=headers.get(":authority"),
            sni=getattr(self.stream, "world_name", None),
            at=self.stream.getsockname()[0],
            port=self.stream.getsockname()[1],
            headers=headers,
            body=body.decode("utf-8", "replace"),
        )
        name = headers[":authority"].split(":")[0]
        answer(Request2(self.connection, stream_id, headers), name, body, self.stream.getsockname()[0])


def tls_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(PLACE, "server.pem"), os.path.join(PLACE, "server.key"))
    context.set_alpn_protocols(["h2", "http/1.1"])

    def named(stream, name, _):
        stream.world_name = name

    context.sni_callback = named
    return context


def serve_web(connection, kind, context):
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Some attacks speak in the clear where TLS is meant, and some servers let them.
        if kind == "tls" and connection.recv(1, socket.MSG_PEEK) == b"\x16":
            connection = context.wrap_socket(connection, server_side=True)
            if connection.selected_alpn_protocol() == "h2":
                Web2(connection).serve()
                return
        Web(connection, connection.getpeername(), None)
    except (OSError, ssl.SSLError, ValueError):
        pass
    finally:
        connection.close()


def in_thread(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()


def listen(port):
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::", port))
    listener.listen(256)
    return listener


def accept(listener, serve):
    while True:
        connection, _ = listener.accept()
        at = connection.getsockname()
        JOURNAL.note(kind="tcp", at=at[0], port=at[1])
        in_thread(serve, connection)


def echo_datagrams(port):
    """Stands for QUIC: whoever gets an answer from it has sent a datagram out."""
    for address in ["93.184.216.34", "2606:2800:220:1::1"]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        receiver = socket.socket(family, socket.SOCK_DGRAM)
        receiver.bind((address, port))

        def echo(receiver=receiver, address=address):
            while True:
                data, sender = receiver.recvfrom(65536)
                JOURNAL.note(kind="udp", at=address, port=port, bytes=data.decode("latin-1"))
                receiver.sendto(data, sender)

        in_thread(echo)


def main():
    context = tls_context()
    names.serve(JOURNAL, in_thread, listen)
    for port, kind in WEB_PORTS.items():
        in_thread(accept, listen(port), lambda connection, kind=kind: serve_web(connection, kind, context))
    proxy.serve(JOURNAL, in_thread, listen)
    echo_datagrams(443)
    shelves.make_repository(PLACE)
    print("ready", flush=True)
    # Ends with the test that holds the other end.
    sys.stdin.read()


main()
