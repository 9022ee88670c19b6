"""The name servers of a test's world: every question is put down, also those that have no answer."""

import itertools
import socket
import struct

PUBLIC, OTHER = "93.184.216.34", "93.184.216.35"
PUBLIC_6, OTHER_6 = "2606:2800:220:1::1", "2606:2800:220:1::2"
A, AAAA = 1, 28

TABLE = {
    "six.example.com": [PUBLIC_6],
    "other.example.com": [OTHER, OTHER_6],
    "loop.example.com": ["127.0.0.1"],
    "meta.example.com": ["169.254.169.254"],
    "private.example.com": ["10.9.8.7"],
    "mapped.example.com": ["::ffff:127.0.0.1"],
    "api.openai.com": [PUBLIC],
    "api.anthropic.com": [PUBLIC],
    "generativelanguage.googleapis.com": [PUBLIC],
}
# A host that is public when it is looked at, and private when it is asked again.
TURNS = itertools.cycle([PUBLIC, "10.9.8.7"])


def addresses(name):
    if name == "rebind.example.com":
        return [next(TURNS)]
    if name in TABLE:
        return TABLE[name]
    if name == "example.com" or name.endswith(".example.com"):
        return [PUBLIC, PUBLIC_6]
    return None


def answer(query, journal, at):
    identity, flags, questions, _, _, _ = struct.unpack("!6H", query[:12])
    labels, place = [], 12
    while query[place]:
        labels.append(query[place + 1 : place + 1 + query[place]])
        place += 1 + query[place]
    name = b".".join(labels).decode("latin-1").lower()
    (kind,) = struct.unpack("!H", query[place + 1 : place + 3])
    journal.note(kind="dns", name=name, type=kind, at=at)
    # Only one kind of question turns a rebinding name, so that its turns can be counted.
    if name == "rebind.example.com" and kind != A:
        found = []
    else:
        found = addresses(name)
    records = []
    for address in found or []:
        family, wanted = (socket.AF_INET6, AAAA) if ":" in address else (socket.AF_INET, A)
        if kind == wanted:
            records.append(struct.pack("!HHHIH", 0xC00C, wanted, 1, 0, 16 if wanted == AAAA else 4)
                           + socket.inet_pton(family, address))
    code = 3 if found is None else 0
    head = struct.pack("!6H", identity, 0x8180 | (flags & 0x0100) | code, 1, len(records), 0, 0)
    return head + query[12 : place + 5] + b"".join(records)


def serve_udp(receiver, journal, at):
    while True:
        query, sender = receiver.recvfrom(4096)
        try:
            receiver.sendto(answer(query, journal, at), sender)
        except (IndexError, struct.error, OSError):
            pass


def serve_tcp(connection, journal):
    with connection, connection.makefile("rb") as stream:
        while len(head := stream.read(2)) == 2:
            told = answer(stream.read(struct.unpack("!H", head)[0]), journal, connection.getsockname()[0])
            connection.sendall(struct.pack("!H", len(told)) + told)


def serve(journal, in_thread, listen):
    """Listens on the world's own address and on one that stands for a public name server."""
    for address in ["127.0.0.1", "8.8.8.8"]:
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((address, 53))
        in_thread(serve_udp, receiver, journal, address)
    listener = listen(53)

    def accept():
        while True:
            connection, _ = listener.accept()
            in_thread(serve_tcp, connection, journal)

    in_thread(accept)
