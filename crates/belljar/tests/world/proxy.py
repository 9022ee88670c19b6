"""A proxy that forwards whatever it is asked for, as gullibly as some do: a name ends at its NUL, and userinfo is dropped."""

import socket
import struct
import threading


def serve(journal, in_thread, listen):
    listener = listen(3128)

    def accept():
        while True:
            connection, _ = listener.accept()
            in_thread(forward, connection, journal)

    in_thread(accept)


def forward(client, journal):
    try:
        (host, port), first = greet(client, journal)
        server = socket.create_connection((host.split("\0")[0].split("@")[-1], port))
        server.sendall(first)
        threading.Thread(target=pump, args=(server, client), daemon=True).start()
        pump(client, server)
    except (OSError, ValueError, IndexError):
        client.close()


def greet(client, journal):
    first = client.recv(4096)
    journal.note(kind="proxy", asked=first.decode("latin-1"))
    if first[:1] == b"\x05":
        client.sendall(b"\x05\x00")
        request = client.recv(512)
        length = request[4]
        name = request[5 : 5 + length].decode("latin-1")
        (port,) = struct.unpack("!H", request[5 + length : 7 + length])
        client.sendall(b"\x05\x00\x00\x01" + bytes(6))
        return (name, port), b""
    target = first.split(b" ")[1].decode("latin-1")
    if first.startswith(b"CONNECT"):
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        host, port = target.rsplit(":", 1)
        return (host, int(port)), b""
    host = target.split("/")[2]
    return (host, 80), first


def pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        for stream in (source, sink):
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
