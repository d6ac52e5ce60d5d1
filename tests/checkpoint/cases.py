"""States, and what an agent does to them. Each is restored exactly, and the restore is undone exactly."""

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.checkpoint.world import World

Make = Callable[[World], None]


@dataclass(frozen=True)
class Case:
    """A state, the agent's doings, and what a restore leaves on purpose: parts of the state that are not compared."""

    name: str
    make: Make
    agent: Make
    init: tuple[str, ...] = ()
    apart: frozenset[str] = field(default_factory=frozenset)


CASES: list[Case] = []
HEAD = frozenset({"head", "refs", "reflog"})


def case(
    name: str, agent: Make = World.agent, init: tuple[str, ...] = (), apart: frozenset[str] = frozenset()
) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        CASES.append(Case(name, make, agent, init, apart))
        return make

    return add


def conflict(w: World, how: str = "merge") -> None:
    """Two branches that change the same line; `how` stops on it."""
    w.put("f.txt", "one\ntwo\nthree\n")
    w.put("a.txt", "a\n")
    w.put("b.txt", "b\n")
    w.commit()
    w.git("checkout", "-q", "-b", "other")
    w.put("f.txt", "one\nOTHER\nthree\n")
    w.commit("other")
    w.git("checkout", "-q", "main")
    w.put("f.txt", "one\nMAIN\nthree\n")
    w.commit("main")
    w.git(*how.split(" "), "other", check=False)
    assert w.git("ls-files", "-u")
    w.put("untracked.txt", "mine\n")


case("C01 modified, deleted, untracked, new; C02 staged and edited again")(World.base)


@case("C03 staged content while the worktree equals HEAD", agent=lambda w: w.git("read-tree", "HEAD"))
def _(w: World) -> None:
    w.put("a.txt", "a\n")
    w.commit()
    w.put("a.txt", "staged\n")
    w.git("add", "a.txt")
    w.put("a.txt", "a\n")


@case("C04 staged rename and staged delete kept on disk")
def _(w: World) -> None:
    w.base()
    w.git("mv", "dir/d.txt", "renamed.txt")
    w.git("rm", "-q", "--cached", "dir/sub/e.txt")


@case("C05 clean tree, the agent only adds", agent=lambda w: w.put("new/deep/x", "new"))
def _(w: World) -> None:
    w.put("a.txt", "a")
    w.commit()


@case("C06 tracked dirty, nothing untracked")
def _(w: World) -> None:
    w.base()
    w.remove("u.txt")


@case("C07 unborn HEAD with a staged and an unstaged file")
def _(w: World) -> None:
    w.put("a.txt", "staged")
    w.git("add", "a.txt")
    w.put("u.txt", "not staged")


@case("C07 nothing at all, not even an index", apart=frozenset())
def _(w: World) -> None:
    return


@case("C08 detached HEAD")
def _(w: World) -> None:
    w.base()
    w.git("checkout", "-q", "--detach")


def _commits(w: World) -> None:
    w.agent()
    w.commit("by the agent")


@case("C09 the agent commits", agent=_commits, apart=HEAD)
def _(w: World) -> None:
    w.base()


def _switches(w: World) -> None:
    w.git("checkout", "-q", "-b", "agent")
    w.agent()


@case("C10 the agent switches to a new branch", agent=_switches, apart=HEAD)
def _(w: World) -> None:
    w.base()


@case("C11 merge with conflicts")
def _(w: World) -> None:
    conflict(w)


def _adds_conflicted(w: World) -> None:
    w.put("f.txt", "resolved by the agent\n")
    w.git("add", "f.txt")


@case("C12 merge with conflicts, the agent adds the file", agent=_adds_conflicted)
def _(w: World) -> None:
    conflict(w)
    w.put("f.txt", "half resolved by the user\n")


@case("C13 merge resolved, not committed")
def _(w: World) -> None:
    conflict(w)
    w.put("f.txt", "resolved\n")
    w.git("add", "f.txt")


@case("C14 rebase stopped on a conflict", agent=_adds_conflicted)
def _(w: World) -> None:
    conflict(w, "rebase")


@case("C15 cherry-pick stopped", agent=_adds_conflicted)
def _(w: World) -> None:
    conflict(w, "cherry-pick")


@case("C16 bisect running")
def _(w: World) -> None:
    w.base()
    for number in range(4):
        w.git("commit", "-q", "--allow-empty", "-m", str(number))
    w.git("stash", "-q")
    w.git("bisect", "start", "HEAD", "HEAD~4")
    w.git("stash", "pop", "-q", "--index")


def _adds_all(w: World) -> None:
    w.agent()
    w.git("add", "-A")


@case("C17 intent to add", agent=_adds_all)
def _(w: World) -> None:
    w.base()
    w.git("add", "-N", "u.txt")


def _rewrites_flagged(w: World) -> None:
    w.git("update-index", "--no-skip-worktree", "a.txt")
    w.agent()


@case("C18 skip-worktree and assume-unchanged on modified files", agent=_rewrites_flagged)
def _(w: World) -> None:
    w.base()
    w.git("update-index", "--skip-worktree", "a.txt")
    w.git("update-index", "--assume-unchanged", "dir/d.txt")
    w.put("dir/d.txt", "changed behind the flag\n")


def _sparse(w: World) -> None:
    for name in ("in/a.txt", "out/b.txt", "top.txt"):
        w.put(name, f"{name}\n")
    w.commit()
    w.git("sparse-checkout", "set", "--cone", "in")


def _in_sparse(w: World) -> None:
    w.put("in/a.txt", "agent\n")
    w.put("in/n.txt", "new\n")
    w.git("add", "in")
    w.put("out/u.txt", "agent\n")


@case("C19 sparse checkout, cone; C20 untracked file outside the cone", agent=_in_sparse)
def _(w: World) -> None:
    _sparse(w)
    w.put("out/u.txt", "mine, outside the cone\n")
    w.put("in/a.txt", "modified\n")


@case("C19 sparse checkout with a sparse index; C20 files outside the cone", agent=_in_sparse)
def _(w: World) -> None:
    for name in ("in/a.txt", "out/b.txt", "out/deep/c.txt", "top.txt"):
        w.put(name, f"{name}\n")
    w.commit()
    w.git("sparse-checkout", "set", "--cone", "--sparse-index", "in")
    w.put("out/u.txt", "mine, outside the cone\n")
    w.put("in/a.txt", "modified\n")


def _edits_ignored(w: World) -> None:
    w.put("build/kept.txt", "agent\n")
    w.remove("build/also.txt")


@case("C21 files tracked although ignored", agent=_edits_ignored)
def _(w: World) -> None:
    w.put(".gitignore", "build/\n")
    w.put("build/kept.txt", "tracked\n", 0o600)
    w.put("build/also.txt", "tracked too\n")
    w.put("build/other.txt", "ignored\n")
    w.git("add", "-f", "build/kept.txt", "build/also.txt")
    w.commit()
    w.put("build/kept.txt", "modified\n")


def _nested(w: World, name: str, *, commit: bool) -> None:
    inner = World(w.root / name)
    inner.put("inside.txt", "inside\n")
    if commit:
        inner.commit()


@case("C24 nested repository with a commit")
def _(w: World) -> None:
    w.base()
    _nested(w, "nested", commit=True)


@case("C25 nested repository without any commit; C28 beside the user's work")
def _(w: World) -> None:
    w.base()
    _nested(w, "empty", commit=False)


def _filter(w: World, clean: str, *, required: bool) -> None:
    w.put(".gitattributes", "*.dat filter=odd\n")
    w.put("x.dat", "public\n")
    w.put("y.dat", "public\n")
    w.commit()
    w.git("config", "filter.odd.clean", clean)
    w.git("config", "filter.odd.smudge", "cat")
    if required:
        w.git("config", "filter.odd.required", "true")
    w.put("x.dat", "secret\n")
    w.put("u.dat", "secret, untracked\n")


def _edits_dat(w: World) -> None:
    w.put("x.dat", "agent\n")
    w.remove("y.dat")
    w.put("u.dat", "agent\n")


@case("C29 lossy clean filter", agent=_edits_dat)
def _(w: World) -> None:
    _filter(w, "sed s/secret/XXX/", required=False)


@case("C30 required filter whose program is missing", agent=_edits_dat)
def _(w: World) -> None:
    _filter(w, "/nonexistent/program", required=True)


def _edits_text(w: World) -> None:
    for name in ("crlf.txt", "mixed.txt", "lf.txt"):
        w.put(name, "agent\n")
    w.put("n.txt", "agent\r\n")


def _endings(w: World) -> None:
    w.put("crlf.txt", "one\r\ntwo\r\n")
    w.put("mixed.txt", "one\r\ntwo\n")
    w.put("lf.txt", "one\ntwo\n")


@case("C31 autocrlf=input with CRLF and mixed files", agent=_edits_text)
def _(w: World) -> None:
    w.put("a.txt", "a\n")
    w.commit()
    w.git("config", "core.autocrlf", "input")
    _endings(w)
    w.git("add", "crlf.txt", "mixed.txt")


@case("C32 eol=crlf attribute with LF files", agent=_edits_text)
def _(w: World) -> None:
    w.put(".gitattributes", "*.txt text eol=crlf\n*.id ident\n*.u16 working-tree-encoding=UTF-16\n")
    _endings(w)
    w.put("k.id", "$Id$\n")
    w.put("t.u16", "text".encode("utf-16"))
    w.commit()


def _breaks_links(w: World) -> None:
    for name in ("rel", "dangling", "abs", "dir", "out"):
        w.remove(name)
        w.put(name, "a file now\n")
    w.remove("plain")
    w.link("plain", "/etc/passwd")


@case("C33 symlinks", agent=_breaks_links)
def _(w: World) -> None:
    w.put("plain", "a file\n")
    w.put("d/x", "x")
    for name, target in {"rel": "d/x", "dangling": "nowhere", "abs": "/etc/hosts", "dir": "d", "out": "../x"}.items():
        w.link(name, target)
    w.git("add", "rel", "dir", "plain")


def _shifts(w: World) -> None:
    w.remove("file")
    w.put("file/inside", "a directory now\n")
    shutil.rmtree(w.path("folder"))
    w.put("folder", "a file now\n")
    w.remove("link")
    w.put("link/deep/x", "a directory now\n")
    shutil.rmtree(w.path("tree"))
    w.link("tree", "file")


@case("C35 file, directory and symlink take each other's place", agent=_shifts)
def _(w: World) -> None:
    w.put("file", "file\n")
    w.put("folder/x/y", "y\n")
    w.put("folder/z", "z\n")
    w.link("link", "folder")
    w.put("tree/t", "t\n")
    w.commit()
    w.put("folder/untracked", "u\n")


def _chmods(w: World) -> None:
    for name in ("p600", "p640", "p755", "p750", "d/x"):
        os.chmod(w.path(name), 0o644)
    os.chmod(w.path("d"), 0o755)
    w.put("p600", "agent\n")
    os.chmod(w.path("plain"), 0o777)


@case("C37 permissions of files and directories", agent=_chmods)
def _(w: World) -> None:
    w.put("plain", "p")
    for mode in (0o600, 0o640, 0o755, 0o750):
        w.put(f"p{mode:o}", "x\n", mode)
    w.put("d/x", "x", 0o400)
    os.chmod(w.path("d"), 0o700)
    w.git("add", "p600", "p755")


NAMES = [
    "公共.txt".encode(), "e\u0301.txt".encode(), "\u00e9.txt".encode(), b"Case", b"case", b"caf\xe9", b"\xff\xfe",
    b"new\nline", b'quo"te', b" lead", b"trail ", b"-dash", b"ta\tb", b"back\\slash", b"glob[1]*.txt", b":(top)x",
    b"dir \xe9/in side", b"!excl", b"#hash", b"~tilde", b"\x01\x7f",
]  # fmt: skip


def _edits_names(w: World) -> None:
    for number, name in enumerate(NAMES):
        if number % 2:
            w.remove(name)
        else:
            w.put(name, b"agent")
    w.put(b"agent\xe8\n", "new")
    w.git("add", "-A")


@case("C38 NFC, NFD, CJK, case; C39 names that are no UTF-8; C40 odd characters", agent=_edits_names)
def _(w: World) -> None:
    for name in NAMES:
        w.put(name, b"content of " + name)
    for name in NAMES[::3]:
        w.git("--literal-pathspecs", "add", "--", name)


LONG = "/".join(["d" * 98] * 31)


@case("C41 a path of 3,000 characters", agent=lambda w: w.put(LONG + "/f", "agent"))
def _(w: World) -> None:
    w.put(LONG + "/f", "deep\n")


def _fills_and_removes(w: World) -> None:
    os.rmdir(w.path("e/inner"))
    os.rmdir(w.path("e"))
    w.put("filled/x", "x")
    os.makedirs(w.path("fresh/empty"))
    os.chmod(w.path("odd"), 0o755)


@case("C42 empty directories", agent=_fills_and_removes)
def _(w: World) -> None:
    w.base()
    for name in ("e/inner", "filled", "odd"):
        os.makedirs(w.path(name))
    os.chmod(w.path("odd"), 0o711)


@case("C43 fifo and socket in the tree")
def _(w: World) -> None:
    w.base()
    os.mkfifo(w.path("pipe"))
    here = os.getcwd()
    os.chdir(w.root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
    os.chdir(here)


@case("C46 an uncommitted .gitignore hides data", agent=lambda w: w.put("a.txt", "agent"))
def _(w: World) -> None:
    w.put("a.txt", "a\n")
    w.commit()
    w.put(".gitignore", "data/\n")
    w.put("data/precious", "x")
    w.put("u.txt", "u\n")


def _unignores(w: World) -> None:
    w.put(".gitignore", "")
    w.put("a.txt", "agent")


@case("C47 the agent un-ignores data", agent=_unignores)
def _(w: World) -> None:
    w.put("a.txt", "a\n")
    w.put(".gitignore", "data/\n")
    w.commit()
    w.put("data/precious", "x")


def _ignores(w: World) -> None:
    w.put(".gitignore", "u.txt\nlogs/\n")
    w.put("u.txt", "agent\n")
    w.remove("logs/l.txt")


@case("C48 the agent ignores files that were captured", agent=_ignores)
def _(w: World) -> None:
    w.base()
    w.put("logs/l.txt", "captured\n")


@case("C49 excludes of the repository and of the user")
def _(w: World) -> None:
    w.base()
    w.put(".git/info/exclude", "*.mine\n")
    w.put(".git/globalignore", "*.global\n")
    w.git("config", "core.excludesFile", os.fsdecode(w.path(".git/globalignore")))
    w.put("x.mine", "ignored")
    w.put("x.global", "ignored")


def _hooks(w: World) -> None:
    for name in ("post-checkout", "post-index-change", "pre-commit", "post-commit", "reference-transaction"):
        w.put(f".git/hooks/{name}", "#!/bin/sh\ntouch hook-ran-$$\nexit 1\n", 0o755)


@case("C51 hooks that fail and leave files", agent=lambda w: w.put("a.txt", "agent"))
def _(w: World) -> None:
    w.base()
    _hooks(w)


@case("C52 gpgsign with a broken gpg")
def _(w: World) -> None:
    w.base()
    w.git("config", "commit.gpgsign", "true")
    w.git("config", "gpg.program", "/nonexistent/gpg")


@case("C53 no identity")
def _(w: World) -> None:
    w.base()
    w.git("config", "user.useConfigOnly", "true")


@case("C56 the user's own stash")
def _(w: World) -> None:
    w.base()
    w.git("stash", "-q", "-u")
    w.base()


case("C58 SHA-256 repository", init=("--object-format=sha256",))(World.base)


@case("split index and index version 4")
def _(w: World) -> None:
    w.base()
    w.git("update-index", "--index-version", "4")
    w.git("update-index", "--split-index")
    w.git("add", "-N", "u.txt")


SETTINGS = {
    "core.untrackedCache": "true",
    "feature.manyFiles": "true",
    "core.splitIndex": "true",
    "core.fileMode": "false",
    "core.trustctime": "false",
    "core.checkStat": "minimal",
    "core.bigFileThreshold": "1",
    "core.abbrev": "4",
    "core.ignoreStat": "true",
    "core.symlinks": "false",
    "core.preloadIndex": "false",
    "core.looseCompression": "0",
    "status.showUntrackedFiles": "no",
    "status.relativePaths": "false",
    "diff.noprefix": "true",
    "diff.external": "/nonexistent",
    "diff.ignoreSubmodules": "all",
    "submodule.recurse": "true",
    "core.sharedRepository": "group",
    "core.logAllRefUpdates": "always",
    "core.safecrlf": "true",
    "core.whitespace": "cr-at-eol",
    "log.showSignature": "true",
    "color.ui": "always",
    "core.pager": "false",
    "core.protectNTFS": "true",
    "core.protectHFS": "true",
    "core.attributesFile": "/nonexistent",
}


@case("settings of the user that change how git works")
def _(w: World) -> None:
    w.base()
    w.link("link", "a.txt")
    for name, value in SETTINGS.items():
        w.git("config", name, value)
    w.put("run.sh", "#!/bin/sh\n", 0o755)


@case("objects that are replaced, and others that lie in another repository")
def _(w: World) -> None:
    World(w.root.parent / "lender").base()
    w.put(".git/objects/info/alternates", f"{w.root.parent}/lender/.git/objects\n")
    w.base()
    w.put("other", "other\n")
    new = w.git("hash-object", "-w", "other").decode().strip()
    w.git("replace", w.git("rev-parse", "HEAD:a.txt").decode().strip(), new)
    w.git("replace", w.git("hash-object", "-w", "u.txt").decode().strip(), new)


@case("everything in one: files that are only staged, hard links, large text")
def _(w: World) -> None:
    w.base()
    w.put("only-staged.txt", "content that only the index has\n")
    w.git("add", "only-staged.txt")
    w.remove("only-staged.txt")
    w.put("big.txt", b"line\n" * 300_000)
    os.link(w.path("big.txt"), w.path("linked.txt"))
