"""What this Python makes of changed files: whether it takes them, what differs, and which names are new in its own eyes."""

import ast
import collections
import json
import re
import sys

LOGS = {"log", "logger", "logging", "LOG", "LOGGER"}
SAYS = {"debug", "info", "warning", "warn", "error", "exception", "log", "critical"}
DOTTED = re.compile(r"[A-Za-z_]\w*([.:][A-Za-z_]\w*)+")


class Silent(ast.NodeTransformer):
    """Takes statements out that only say something."""

    def visit_Expr(self, node):
        call = node.value
        if not isinstance(call, ast.Call) or call.keywords:
            return node
        if not all(isinstance(arg, (ast.Constant, ast.Name)) for arg in call.args):
            return node
        what = call.func
        if isinstance(what, ast.Name) and what.id == "print":
            return None
        if isinstance(what, ast.Attribute) and what.attr in SAYS and isinstance(what.value, ast.Name) and what.value.id in LOGS:
            return None
        return node


def dump(tree):
    return ast.dump(tree, include_attributes=False)


def differs(old, new):
    """How far two texts are the same to Python."""
    if dump(old) == dump(new):
        return "comments"
    if dump(Silent().visit(old)) == dump(Silent().visit(new)):
        return "messages"
    return "code"


def text_of(node):
    """A text that is put together of constants."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
        return node.value.decode("latin-1")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        one, another = text_of(node.left), text_of(node.right)
        return None if one is None or another is None else one + another
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values]
        return None if None in parts else "".join(parts)
    return None


def dotted(node):
    """`a.b.c`, if it is that."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return [node.id, *reversed(names)]


def root(node):
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


class Names(ast.NodeVisitor):
    """Names, dotted names with their modules, and what is set on something else."""

    def __init__(self, tree):
        self.names = collections.Counter()
        self.paths = collections.Counter()
        self.texts = collections.Counter()
        self.patched = collections.Counter()
        self.passed = collections.Counter()
        self.sets = collections.Counter()
        self.imports = collections.Counter()
        self.modules = {}
        self.others = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.split(".")[0]
                    self.modules[alias.asname or whole] = whole
                    self.paths[alias.name] += 1
                    self.imports[alias.name] += 1
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    whole = f"{'.' * node.level}{node.module or ''}.{alias.name}"
                    self.modules[alias.asname or alias.name] = whole
                    self.paths[whole] += 1
                    self.imports[whole] += 1
        # What is called by another name is still what it was.
        for _ in range(4):
            for node in ast.walk(tree):
                self.follow(node)
        self.visit(tree)

    def follow(self, node):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            self.bind(targets, node.value)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self.bind([node.target], node.iter)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self.bind([item.optional_vars], item.context_expr)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                names = [part.name for part in ast.walk(case.pattern) if isinstance(part, (ast.MatchAs, ast.MatchStar)) and part.name]
                self.bind([ast.Name(name, ast.Store()) for name in names], node.subject)

    def bind(self, targets, value):
        whole = dotted(value) if value is not None else None
        held = value is not None and any(self.is_held(*part) for part in bare(value))
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part.id not in self.modules:
                    if whole and whole[0] in self.modules:
                        self.modules[part.id] = ".".join([self.modules[whole[0]], *whole[1:]])
                    elif held:
                        self.others.add(part.id)

    def is_held(self, part, called):
        """An imported thing; of what a call is given, modules alone."""
        whole = self.modules.get(part.id) if isinstance(part, ast.Name) else None
        return whole is not None and not (called and "." in whole)

    def visit_Name(self, node):
        self.names[node.id] += 1
        self.generic_visit(node)

    def visit_Attribute(self, node):
        self.names[node.attr] += 1
        parts = dotted(node)
        if parts and parts[0] in self.modules:
            self.paths[".".join([self.modules[parts[0]], *parts[1:]])] += 1
        if not isinstance(node.ctx, ast.Load):
            self.stored(node)
        self.generic_visit(node)

    def visit_Subscript(self, node):
        if not isinstance(node.ctx, ast.Load) and any(isinstance(part, ast.Attribute) for part in ast.walk(node.value)):
            self.stored(node)
        self.generic_visit(node)

    def stored(self, node):
        """An attribute that is set, by whatever statement."""
        first = root(node)
        text = ast.unparse(node)
        if first is None or first in self.modules or first in self.others:
            self.patched[text] += 1
        elif first not in ("self", "cls"):
            self.sets[text] += 1

    def visit_Call(self, node):
        for arg in [*node.args, *[keyword.value for keyword in node.keywords]]:
            if isinstance(arg, ast.Name) and "." not in self.modules.get(arg.id, "."):
                self.passed[arg.id] += 1
        self.generic_visit(node)

    def visit_alias(self, node):
        self.names.update(node.name.split("."))

    def visit_ImportFrom(self, node):
        self.names.update((node.module or "").split("."))
        self.generic_visit(node)

    def visit_FunctionDef(self, node):
        self.names[node.name] += 1
        self.annotated(getattr(node, "returns", None))
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_arg(self, node):
        self.names[node.arg] += 1
        self.annotated(node.annotation)
        self.generic_visit(node)

    def visit_AnnAssign(self, node):
        self.annotated(node.annotation)
        self.generic_visit(node)

    def annotated(self, node):
        """An annotation in quotes is code to whoever asks what it means."""
        texts = [text_of(part) for part in ast.walk(node)] if node is not None else []
        for text in filter(None, texts):
            try:
                self.visit(ast.parse(text, mode="eval"))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                pass

    def visit_keyword(self, node):
        if node.arg:
            self.names[node.arg] += 1
        self.generic_visit(node)

    def generic_visit(self, node):
        text = text_of(node)
        if text is not None and text.isidentifier():
            self.names[text] += 1
        if text is not None and DOTTED.fullmatch(text):
            self.texts[text] += 1
        super().generic_visit(node)


def bare(node, called=False):
    """Parts of a value that are it, not what is asked of it: a list's items, a call's arguments."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.BoolOp)):
        inside = getattr(node, "elts", None) or getattr(node, "values", [])
    elif isinstance(node, ast.Dict):
        inside = node.values
    elif isinstance(node, ast.Call):
        inside, called = node.args, True
    elif isinstance(node, ast.IfExp):
        inside = [node.body, node.orelse]
    elif isinstance(node, (ast.Subscript, ast.Starred, ast.NamedExpr, ast.Attribute)):
        inside = [node.value]
    else:
        return [(node, called)]
    return [part for item in inside for part in bare(item, called)]


def read(name, data):
    try:
        tree = ast.parse(data, name)
        compile(tree, name, "exec", dont_inherit=True)
        return ast.parse(data, name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        sys.exit(f"{name}: {error}")


def look(name, before, after):
    new = read(name, after)
    try:
        old = ast.parse(before, name)
    except (SyntaxError, ValueError):
        old = ast.parse("")
    was, now = Names(old), Names(new)
    kinds = ("imports", "names", "paths", "texts", "patched", "passed", "sets")
    seen = {kind: sorted(getattr(now, kind) - getattr(was, kind)) for kind in kinds}
    return {**seen, "differs": differs(old, new)}


def main():
    with open("/belljar/evolve/job.json", "rb") as file:
        job = json.load(file)
    report = {}
    for name, before in job["changed"].items():
        with open(f"{job['root']}/{name}", "rb") as file:
            report[name] = look(name, before.encode(), file.read())
    print(json.dumps(report))


main()
