"""Hosts that installers and git fetch from: one package each, one repository."""

import base64
import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile
from urllib.parse import urlsplit

HOSTS = {"pypi.example.com", "registry.example.com", "git.example.com"}
WHEEL = "belljar_demo-1.0-py3-none-any.whl"
TARBALL = "belljar-demo-1.0.0.tgz"


def serves(name):
    return name in HOSTS


def answer(web, name, body, place):
    path = urlsplit(web.path).path
    if name == "git.example.com":
        git(web, path, body, place)
    elif name == "pypi.example.com":
        pypi(web, path)
    else:
        npm(web, path)


def pypi(web, path):
    if path == "/simple/belljar-demo/":
        digest = hashlib.sha256(wheel()).hexdigest()
        page = f'<!DOCTYPE html><html><body><a href="/files/{WHEEL}#sha256={digest}">{WHEEL}</a></body></html>'
        web.give(200, page.encode(), {"Content-Type": "text/html"})
    elif path == f"/files/{WHEEL}":
        web.give(200, wheel(), {"Content-Type": "application/octet-stream"})
    else:
        web.give(404, b"")


def wheel():
    about = "belljar_demo-1.0.dist-info"
    files = {
        "belljar_demo.py": "ANSWER = 42\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: belljar-demo\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: world\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in files) + f"{about}/RECORD,,\n"
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for file, text in (files | {f"{about}/RECORD": record}).items():
            archive.writestr(zipfile.ZipInfo(file), text)
    return whole.getvalue()


def npm(web, path):
    if path == "/belljar-demo":
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball()).digest()).decode()
        dist = {"tarball": f"https://registry.example.com/{TARBALL}", "integrity": integrity}
        version = {"name": "belljar-demo", "version": "1.0.0", "dist": dist}
        about = {"name": "belljar-demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        web.give(200, json.dumps(about).encode(), {"Content-Type": "application/json"})
    elif path == f"/{TARBALL}":
        web.give(200, tarball(), {"Content-Type": "application/octet-stream"})
    else:
        web.give(404, b"{}", {"Content-Type": "application/json"})


def tarball():
    files = {
        "package/package.json": '{"name": "belljar-demo", "version": "1.0.0", "main": "index.js"}',
        "package/index.js": "module.exports = 42;\n",
    }
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(file)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    # The time in a gzip header would give each answer another digest.
    data = bytearray(whole.getvalue())
    data[4:8] = bytes(4)
    return bytes(data)


def git(web, path, body, place):
    """What git's own server side answers."""
    root = os.path.join(place, "git")
    url = urlsplit(web.path)
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": root,
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_CONFIG_GLOBAL": os.path.join(place, "gitconfig"),
        "REQUEST_METHOD": web.command,
        "PATH_INFO": path,
        "QUERY_STRING": url.query,
        "CONTENT_TYPE": web.headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": web.headers.get("Content-Encoding", ""),
        "GIT_PROTOCOL": web.headers.get("Git-Protocol", ""),
    }
    done = subprocess.run(["git", "http-backend"], env=environment, input=body, stdout=subprocess.PIPE, check=True)
    head, _, rest = done.stdout.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
    status = int(headers.pop("Status", "200").split()[0])
    web.give(status, rest, headers)


def make_repository(place):
    """One commit in a bare repository."""
    source, root = os.path.join(place, "source"), os.path.join(place, "git")
    os.makedirs(source)
    os.makedirs(root)
    config = os.path.join(place, "gitconfig")
    with open(config, "w") as file:
        file.write("[user]\nname = world\nemail = world@example.com\n[safe]\ndirectory = *\n[init]\ndefaultBranch = main\n")
    with open(os.path.join(source, "readme.txt"), "w") as file:
        file.write("from the world\n")
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": config, "HOME": place}
    for words in (
        ["git", "init", "--quiet"],
        ["git", "add", "."],
        ["git", "commit", "--quiet", "--message", "first"],
        ["git", "clone", "--quiet", "--bare", source, os.path.join(root, "demo.git")],
    ):
        subprocess.run(words, cwd=source, env=environment, check=True)
