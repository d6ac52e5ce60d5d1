"""The doors of the house as rules over syntax trees: what may be imported, read, caught and how long things may be.

A rule is a pure function from a module to findings; the tables beside it name the exceptions, each with its reason.
It sees syntax only: a name that is bound to another name, or a module that is imported by a computed name, passes.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("hub", "connectors", "scheduler", "cli")
FILE_LINES = 400
FUNCTION_LINES = 60

CLIENT_SIDE = [
    *("hub.client", "hub.subscription", "hub.protocol", "hub.domain", "hub.settings"),
    *("hub.errors", "hub.ids", "hub.clock", "hub.__version__"),
]
"""What connectors, scheduler and cli may know of the hub."""

DOORS: Mapping[str, tuple[str, ...]] = {
    "aiosqlite": ("hub/store/",),
    "alembic": ("hub/store/",),
    "sqlalchemy": ("hub/store/",),
    "sqlite3": ("hub/store/", "connectors/spool.py", "cli/doctor.py"),
    "git": ("hub/checkpoint/repository.py",),
    "gitdb": ("hub/checkpoint/repository.py",),
    "litellm": ("hub/agent/worker.py",),
    "websockets": ("hub/daemon/server.py", "hub/client.py"),
    "typer": ("cli/",),
    "click": ("cli/",),
    "rich": ("cli/",),
    "slack_bolt": ("connectors/slack.py",),
    "slack_sdk": ("connectors/slack.py",),
    "telegram": ("connectors/telegram.py",),
    "apscheduler": ("scheduler/service.py",),
    "platformdirs": ("hub/settings.py",),
    "pythonjsonlogger": ("hub/daemon/",),
    "yaml": ("hub/agent/scripted.py", "scheduler/specs.py"),
    "psutil": ("hub/", "cli/"),
    "msgspec": ("",),
}
"""Who may import what is not ours: files, or folders with a slash at the end."""

IMPURE = frozenset(
    {"asyncio", "os", "pathlib", "subprocess", "socket", "time", "threading", "multiprocessing", "selectors", "signal"}
    | {"shutil", "tempfile", "glob", "io", "random", "secrets", "logging", "urllib", "http", "ssl"}
)
"""Standard modules that hub.domain does without."""

LATE: Mapping[tuple[str, str], str] = {
    ("hub/checkpoint/repository.py", "git"): "GitPython is imported at the first capture, not at every start",
    ("hub/daemon/models.py", "hub.agent.scripted"): "only a run that plays a scenario needs YAML",
    ("hub/daemon/worktrees.py", "hub.checkpoint.units"): "a hub is ready before the engine is loaded",
    ("hub/store/migrations/__init__.py", "importlib.import_module"): "a current database loads no migration",
    ("hub/agent/worker.py", "litellm"): "costs seconds, and its settings must stand in the environment before it",
    ("hub/__main__.py", "hub.daemon.app"): "a wrong setting is told before the daemon's rooms are loaded",
    ("cli/main.py", "importlib.import_module"): "a command's module is loaded when the command is named",
}
"""Imports that are late on purpose: (file, what is imported), with the reason."""

ENVIRONMENT: Mapping[str, str] = {
    "hub/settings.py": "the one reader",
    "hub/checkpoint/stores/user_settings.py": "where git looks for the user's settings; none of ours is read",
    "hub/agent/worker.py": "a process of its own: its keys come in its environment, litellm's switches go there",
}

BROAD: Mapping[str, tuple[int, str]] = {
    "hub/store/database.py": (2, "the writer outlives a failed work; whoever asked for it is told"),
    "hub/agent/loop.py": (1, "a defect in one tool becomes a result that the model reads, and a log entry"),
    "hub/daemon/server.py": (1, "a defect in one call is logged and told to its caller; the connection goes on"),
    "hub/daemon/dispatcher.py": (1, "a prompt that cannot be started must not keep the others from it"),
    "hub/daemon/driver.py": (1, "the edge of a run's task: the run fails, the hub goes on"),
}
"""How many broad handlers a file may have, with the reason. A handler that ends in a bare `raise` is none."""

GIT_RUNNERS = ("hub/checkpoint/repository.py", "cli/demo.py")

_STARTERS = frozenset(
    {"run", "Popen", "call", "check_call", "check_output", "create_subprocess_exec", "create_subprocess_shell"}
    | {"execute", "execv", "execvp", "execvpe", "spawnvp", "posix_spawn", "posix_spawnp"}
)


@dataclass(frozen=True)
class Module:
    """A source file: its path from the root with forward slashes, its text, its tree."""

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def of(cls, path: str, text: str) -> "Module":
        return cls(path, text, ast.parse(text, path))


@dataclass(frozen=True)
class Finding:
    """One breach: where, and what stands there."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Rule:
    """A rule, with the reason that its failure tells."""

    name: str
    why: str
    check: Callable[[Module], Iterator[Finding]]


def modules(root: Path) -> list[Module]:
    """Return every source file of the packages below `root`, in order of path."""
    files = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return [Module.of(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in files]


def imported(node: ast.AST) -> list[str]:
    """Return the dotted names that a statement imports; `from a import b` gives `a.b`, relative ones keep dots."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        return [f"{base}.{alias.name}" for alias in node.names]
    return []


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for such an expression, an empty text for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def _imports(module: Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module.tree):
        for name in imported(node):
            yield node.lineno, name  # type: ignore[attr-defined]  # only statements import


def _within(name: str, roots: list[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def client_side(module: Module) -> Iterator[Finding]:
    if module.path.startswith("hub/"):
        return
    for line, name in _imports(module):
        if _within(name, ["hub"]) and not _within(name, CLIENT_SIDE):
            yield Finding(module.path, line, f"imports {name}")


def doors(module: Module) -> Iterator[Finding]:
    for line, name in _imports(module):
        top = name.split(".")[0]
        if top in PACKAGES or (top in sys.stdlib_module_names and top not in DOORS):
            continue
        if top not in DOORS:
            yield Finding(module.path, line, f"imports {name}, which has no row in DOORS (relative imports neither)")
        elif not module.path.startswith(DOORS[top]):
            yield Finding(module.path, line, f"imports {name}; its door is {' or '.join(DOORS[top])}")


def pure_domain(module: Module) -> Iterator[Finding]:
    if not module.path.startswith("hub/domain/"):
        return
    for line, name in _imports(module):
        if name.split(".")[0] in IMPURE:
            yield Finding(module.path, line, f"imports {name}")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            yield Finding(module.path, node.lineno, f"reads a clock: {ast.unparse(node)}")
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield Finding(module.path, node.lineno, "waits")


def late_uses(module: Module) -> Iterator[tuple[int, str]]:
    """Yield each import inside a function and each import by computed name: line, what is imported."""
    for function in ast.walk(module.tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                for name in imported(node):
                    yield node.lineno, name  # type: ignore[attr-defined]  # only statements import
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and dotted(node.func) in (
            "importlib.import_module",
            "import_module",
            "__import__",
        ):
            yield node.lineno, dotted(node.func)


def late_row(path: str, name: str) -> tuple[str, str] | None:
    """Return the row of LATE that allows the import, None when none does."""
    return next((row for row in LATE if row[0] == path and _within(name, [row[1]])), None)


def late_imports(module: Module) -> Iterator[Finding]:
    for line, name in sorted(set(late_uses(module))):
        if late_row(module.path, name) is None:
            yield Finding(module.path, line, f"imports {name} late")


def environment_uses(module: Module) -> Iterator[tuple[int, str]]:
    """Yield each place that touches the process environment: line, expression."""
    names = ("os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv")
    for line, name in _imports(module):
        if name in names:
            yield line, name
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and dotted(node) in names:
            yield node.lineno, dotted(node)


def environment(module: Module) -> Iterator[Finding]:
    if module.path not in ENVIRONMENT:
        for line, name in environment_uses(module):
            yield Finding(module.path, line, f"touches {name}")


def broad_handlers(module: Module) -> list[int]:
    """Return the lines of handlers that catch everything and do not end in a bare `raise`."""
    return [node.lineno for node in ast.walk(module.tree) if _is_broad(node)]


def _is_broad(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        last = node.body[-1]
        passes_on = isinstance(last, ast.Raise) and last.exc is None
        return not passes_on and (node.type is None or _names_everything(node.type))
    if isinstance(node, ast.Call) and dotted(node.func) in ("suppress", "contextlib.suppress"):
        return any(_names_everything(argument) for argument in node.args)
    return False


def _names_everything(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(dotted(part) in ("Exception", "BaseException") for part in parts)


def broad_except(module: Module) -> Iterator[Finding]:
    lines = broad_handlers(module)
    allowed = BROAD.get(module.path, (0, ""))[0]
    if len(lines) > allowed:
        for line in lines:
            yield Finding(module.path, line, f"catches everything ({len(lines)} in this file, {allowed} in BROAD)")


def sizes(module: Module) -> Iterator[Finding]:
    count = len(module.text.splitlines())
    if count > FILE_LINES:
        yield Finding(module.path, count, f"has {count} lines, {FILE_LINES} are the limit")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES:
                yield Finding(module.path, node.lineno, f"{node.name} has {length} lines, {FUNCTION_LINES} the limit")


def one_git(module: Module) -> Iterator[Finding]:
    if module.path in GIT_RUNNERS:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and _runs_git(node):
            yield Finding(module.path, node.lineno, f"runs git: {ast.unparse(node)[:60]}")


def _runs_git(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
    if name not in _STARTERS or not call.args:
        return False
    first = call.args[0]
    if isinstance(first, ast.List | ast.Tuple) and first.elts:
        first = first.elts[0]
    return isinstance(first, ast.Constant) and str(first.value).split(" ")[0] in ("git", "b'git'", "/usr/bin/git")


def documented(module: Module) -> Iterator[Finding]:
    if module.tree.body and not ast.get_docstring(module.tree):
        yield Finding(module.path, 1, "has no module docstring")


RULES = (
    Rule(
        "client_side",
        "Connectors, scheduler and cli are clients like any other: what they could reach past the protocol would not "
        "be checked for rights, and could not be done by a client on another machine.",
        client_side,
    ),
    Rule(
        "doors",
        "Each outside system has one importer, so that it can be replaced, faked and found, and so that nobody pays "
        "for its import who does not use it. A new dependency needs a row in DOORS and a decision record.",
        doors,
    ),
    Rule(
        "pure_domain",
        "hub.domain decides and does nothing: it takes facts, the time included, and returns values, so that every "
        "decision can be tested without a clock, a disk or a loop.",
        pure_domain,
    ),
    Rule(
        "late_imports",
        "An import inside a function hides a dependency from readers and from the import contracts. The ones that "
        "save start-up time on purpose stand in LATE.",
        late_imports,
    ),
    Rule(
        "environment",
        "hub.settings is the only reader of the environment: a setting that is read elsewhere is neither documented "
        "nor validated, and secrets leak into children by it.",
        environment,
    ),
    Rule(
        "broad_except",
        "A handler that catches everything hides defects. It belongs at the edge of a supervised task and nowhere "
        "else; the files that have such an edge stand in BROAD.",
        broad_except,
    ),
    Rule(
        "sizes",
        "Long files and functions are where rooms grow together. Split by purpose, not by length.",
        sizes,
    ),
    Rule(
        "one_git",
        "hub/checkpoint/repository.py is the only module that runs git: only there are GIT_* dropped, conversions "
        "off and the worktree's lock inherited by the child.",
        one_git,
    ),
    Rule(
        "documented",
        "A module's docstring states its purpose, its invariant and what it does not promise.",
        documented,
    ),
)
