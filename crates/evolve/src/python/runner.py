"""Runs a project's tests and says how they went.

This process imports nothing of the project. The tests run in processes forked from it, whose word counts only together with their end;
then all that is left of them is killed. They run twice. Each time about half of them are made to fail: some, drawn anew, the first time,
and the rest the second. So nobody in there knows which run of a test counts. Who passes everything passes those that must fail too, and
is found out. The tests' sources come on standard input and are nowhere else: what lies where they were is empty, and of the texts
only code is left before anything of the project runs.
"""

import ast
import builtins
import ctypes
import hashlib
import importlib.machinery
import json
import os
import secrets
import select
import signal
import sys
import threading

import pytest
from _pytest import runner as phases
from _pytest.assertion import rewrite

MOST = 4 << 20
SAME = "__belljar_same__"


class Draw:
    """Which tests must fail this time."""

    def __init__(self, secret, turn):
        self.secret = secret
        self.turn = turn

    def __call__(self, name):
        return hashlib.sha256(self.secret + name.encode()).digest()[0] & 1 == self.turn


def name_of(nodeid):
    """`tests/test_a.py::TestA::test_x[1]` is test_x: a class may have it from another."""
    return nodeid.split("[")[0].split("::")[-1]


def other(value):
    """Something of the same kind that is not the same."""
    extra = secrets.randbelow(1 << 30) + 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return int.__add__(value, extra)
    if isinstance(value, float):
        return float.__add__(value, extra + 0.5)
    if isinstance(value, str):
        return str.__add__(value, f"{extra:x}")
    if isinstance(value, bytes):
        return bytes.__add__(value, f"{extra:x}".encode())
    if isinstance(value, list):
        return list.__add__(value, [extra])
    if isinstance(value, tuple):
        return tuple.__add__(value, (extra,))
    if isinstance(value, dict):
        return {**value, f"{extra:x}": extra}
    if isinstance(value, (set, frozenset)):
        return set(value) | {f"{extra:x}"}
    return object()


def same(one, another):
    """True for something that equals what it does not equal."""
    return bool(one == other(another)) or bool(other(one) == another)


class Never(ast.NodeTransformer):
    """Turns the first comparison of each test that must fail into one that does not hold."""

    def __init__(self, draw):
        self.draw = draw
        self.done = set()
        self.places = []
        self.name = None

    def visit_FunctionDef(self, node):
        outer, self.name = self.name, self.name or ".".join([*self.places, node.name])
        self.generic_visit(node)
        self.name = outer
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node):
        self.places.append(node.name)
        self.generic_visit(node)
        self.places.pop()
        return node

    def is_due(self):
        """Only tests themselves: what they call is shared with others."""
        last = self.name.split(".")[-1] if self.name else ""
        return last.startswith("test") and self.name not in self.done and self.draw(last)

    def spoiled(self, one, another):
        self.done.add(self.name)
        return ast.copy_location(ast.Call(ast.Name(SAME, ast.Load()), [one, another], []), one)

    def visit_Assert(self, node):
        test = node.test
        if self.is_due() and isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            node.test = self.spoiled(test.left, test.comparators[0])
        return node

    def visit_Call(self, node):
        self.generic_visit(node)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if called in ("assertEqual", "assertEquals") and len(node.args) >= 2 and self.is_due():
            node.func.attr = "assertTrue"
            node.args = [self.spoiled(node.args[0], node.args[1])]
        return node

    def apply(self, module):
        self.visit(module)
        ast.fix_missing_locations(module)


class Teller:
    """Tells the process outside what pytest finds."""

    def __init__(self, pipe, token):
        write = os.write

        def tell(what):
            data = (json.dumps([token, what]) + "\n").encode()
            while data:
                data = data[write(pipe, data) :]

        self.tell = tell

    def pytest_configure(self):
        # By neither of these does code see that it is tested.
        os.environ.pop("PYTEST_VERSION", None)
        phases._update_current_test_var = lambda item, when: None

    def pytest_collection_finish(self, session):
        self.tell({"collected": [item.nodeid for item in session.items]})

    def pytest_collectreport(self, report):
        if report.failed:
            self.tell({"broken": report.nodeid})

    def pytest_runtest_logreport(self, report):
        expected = hasattr(report, "wasxfail")
        self.tell({"id": report.nodeid, "when": report.when, "outcome": "skipped" if expected else report.outcome})


class Spoiler:
    """Makes those tests fail that no comparison makes fail."""

    def __init__(self, never):
        self.never = never

    @pytest.hookimpl(hookwrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        yield
        is_spoiled = pyfuncitem.function.__qualname__ in self.never.done
        if self.never.draw(name_of(pyfuncitem.nodeid)) and not is_spoiled:
            raise AssertionError("this test must fail")


def watch(root, files):
    """Notes which lines of these files run."""
    seen = {name: set() for name in files}
    places = {os.path.join(root, name): seen[name] for name in files}

    def lines(frame, event, _):
        if event == "line":
            places[frame.f_code.co_filename].add(frame.f_lineno)
        return lines

    def calls(frame, event, _):
        return lines if frame.f_code.co_filename in places else None

    threading.settrace(calls)
    sys.settrace(calls)
    return seen


def import_paths(job):
    """The project's modules come after Python's own and before other people's."""
    paths = [os.path.normpath(os.path.join(job["root"], path)) for path in job["paths"]]
    at = next((n for n, path in enumerate(sys.path) if "site-packages" in path or "dist-packages" in path), len(sys.path))
    sys.path[at:at] = paths


def compiled(path, text, never):
    """The code of a hidden source: as pytest takes it, if it is a test's or a conftest, else as Python does."""
    try:
        tree = ast.parse(text, filename=path)
        if never is not None:
            never.apply(tree)
        if never is not None or os.path.basename(path) == "conftest.py":
            rewrite.rewrite_asserts(tree, b"", path)
        return compile(tree, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        # Without the line it is about.
        return SyntaxError(f"{os.path.basename(path)}: {error.args[0] if error.args else ''}")


def serve(job, never):
    """Makes code of each hidden source, and gives that out to whoever imports it. Nobody has the texts any more."""
    root, sources, served = job["root"], job.pop("sources"), {}
    for name in sorted(sources):
        text = sources.pop(name)
        path = os.path.join(root, name)
        served[os.path.realpath(path)] = compiled(path, text.encode("latin-1"), never if name in job["files"] else None)
    usual = importlib.machinery.SourceFileLoader.get_code
    usual_rewrite = rewrite._rewrite_test

    def given(path):
        code = served.get(os.path.realpath(path))
        if isinstance(code, SyntaxError):
            raise code
        return code

    def get_code(self, name):
        return given(self.get_filename(name)) or usual(self, name)

    def rewritten(fn, config):
        code = given(fn)
        return usual_rewrite(fn, config) if code is None else (os.stat(fn), code)

    importlib.machinery.SourceFileLoader.get_code = get_code
    rewrite._rewrite_test = rewritten


def child(job, pipe, token, draw):
    import_paths(job)
    os.chdir(job["root"])
    never = Never(draw)
    serve(job, never)
    sys.dont_write_bytecode = True
    teller = Teller(pipe, token)
    setattr(builtins, SAME, same)
    seen = watch(job["root"], job["changed"]) if job["changed"] else {}
    words = ["-q", "--tb=short", "-p", "no:cacheprovider", "--import-mode=append", "--rootdir", job["root"], "-o", "addopts=", *job["files"]]
    code = int(pytest.main(words, plugins=[teller, Spoiler(never)]))
    sys.settrace(None)
    teller.tell({"seen": {name: sorted(lines) for name, lines in seen.items()}})
    teller.tell({"end": code})
    return code


def fork(job, draw):
    inner, outer = os.pipe()
    log = os.memfd_create("log")
    # What was printed is read here alone.
    printed = os.open(f"/proc/self/fd/{log}", os.O_WRONLY)
    token = os.urandom(16).hex()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.close(inner)
            os.setsid()
            nothing = os.open("/dev/null", os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(log)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            os.close(printed)
            code = child(job, outer, token, draw)
        finally:
            os._exit(code)
    os.close(outer)
    os.close(printed)
    data = bytearray()
    status = None
    while True:
        ready, _, _ = select.select([inner], [], [], 0.02)
        if ready:
            part = os.read(inner, 1 << 16)
            data += part[: MOST - len(data)]
            if not part and status is not None:
                break
            if not part:
                _, status = os.waitpid(pid, 0)
        if status is None:
            done, code = os.waitpid(pid, os.WNOHANG)
            status = code if done else None
        if status is not None:
            sweep()
            if not ready:
                break
    sweep()
    os.close(inner)
    os.lseek(log, max(0, os.lseek(log, 0, os.SEEK_END) - 4000), os.SEEK_SET)
    tail = os.read(log, 4000).decode(errors="replace")
    os.close(log)
    return os.waitstatus_to_exitcode(status), messages(data, token), tail


def sweep():
    """Ends everything in this box but pid 1 and this process."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def messages(data, token):
    found = []
    for line in bytes(data).splitlines():
        try:
            given, what = json.loads(line)
        except ValueError:
            return None
        if given != token:
            return None
        found.append(what)
    return found


def judge(code, found):
    """What a process said, if it said all of it."""
    told = {"complete": False, "exit": code, "collected": [], "outcomes": {}, "seen": {}}
    if found is None:
        return told
    broken = False
    for what in found:
        if "collected" in what:
            told["collected"] = what["collected"]
        elif "broken" in what:
            broken = True
        elif "id" in what:
            worst = told["outcomes"].get(what["id"], "passed")
            order = ["passed", "skipped", "failed"]
            told["outcomes"][what["id"]] = max(worst, what["outcome"], key=order.index)
            told.setdefault("called", set())
            if what["when"] == "teardown":
                told["called"].add(what["id"])
        elif "seen" in what:
            told["seen"] = what["seen"]
    ended = [what["end"] for what in found if "end" in what]
    all_told = set(told["collected"]) == set(told["outcomes"]) == told.pop("called", set())
    last = bool(found) and "end" in found[-1]
    told["complete"] = ended == [code] and last and all_told and not broken and code in (0, 1, 5)
    return told


def executable(root, name):
    with open(os.path.join(root, name), "rb") as file:
        waiting = [compile(file.read(), name, "exec", dont_inherit=True)]
    lines = set()
    while waiting:
        code = waiting.pop()
        lines.update(line for _, _, line in code.co_lines() if line)
        waiting.extend(const for const in code.co_consts if isinstance(const, type(code)))
    return lines


def main():
    # Nobody else in the box reads this process's memory or takes its output.
    if ctypes.CDLL(None, use_errno=True).prctl(4, 0, 0, 0, 0) != 0:
        sys.exit("this process can't be shut off from others")
    with open("/belljar/evolve/job.json", "rb") as file:
        job = json.load(file)
    job["sources"] = json.loads(sys.stdin.buffer.read())
    report = {"complete": True, "exit": 0, "outcomes": {}, "must_fail": {}, "log": "", "lines": {}}
    covered = {name: set() for name in job["changed"]}
    secret = os.urandom(32)
    for turn in (0, 1):
        draw = Draw(secret, turn)
        code, found, tail = fork(job, draw)
        told = judge(code, found)
        if not told["complete"]:
            report.update(complete=False, exit=code)
        report["log"] += tail
        for nodeid, outcome in told["outcomes"].items():
            report["must_fail" if draw(name_of(nodeid)) else "outcomes"][nodeid] = outcome
        for name, lines in told["seen"].items():
            covered[name].update(lines)
    for name, lines in job["changed"].items():
        runs = executable(job["root"], name)
        wanted = sorted(set(lines) & runs)
        report["lines"][name] = {"wanted": wanted, "covered": sorted(set(wanted) & covered[name])}
    sys.stdout.write(json.dumps(report))
    sys.stdout.flush()


main()
