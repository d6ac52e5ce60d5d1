"""Which programs, with which words, only read. A table of what is known to be harmless; what is not in it is not.

Invariant: no program here, with the words that its row admits, writes a file, changes a repository, sends anything or
starts a program that the words name.
Not promised: that a user's own configuration (a pager, a file-system monitor of git) starts nothing, or that git does
not refresh the file times in its index.
"""

import re
from collections.abc import Callable, Mapping, Sequence

Words = Sequence[str]
Row = Callable[[Words], bool]

# Programs without any option that writes or runs something.
HARMLESS = frozenset(
    {"ls", "cat", "head", "tail", "wc", "pwd", "echo", "stat", "du", "df", "which", "basename", "dirname", "realpath"}
    | {"readlink", "cut", "nl", "cmp", "diff", "uname", "whoami", "id", "true", "false", "grep", "egrep", "fgrep"}
)
FIND_TESTS = frozenset(
    (
        *("-name", "-iname", "-path", "-ipath", "-wholename", "-iwholename", "-regex", "-iregex"),
        *("-regextype", "-lname", "-ilname", "-type", "-xtype", "-size", "-empty", "-maxdepth", "-mindepth"),
        *("-depth", "-mtime", "-mmin", "-atime", "-amin", "-ctime", "-cmin", "-newer", "-anewer", "-cnewer"),
        *("-perm", "-user", "-group", "-uid", "-gid", "-nouser", "-nogroup", "-readable", "-writable"),
        *("-executable", "-links", "-inum", "-samefile", "-prune", "-print", "-print0", "-ls", "-quit"),
        *("-true", "-false", "-not", "-a", "-and", "-o", "-or", "-xdev", "-mount", "-daystart", "-noleaf"),
        *("-H", "-L", "-P"),
    )
)
GIT_READERS = frozenset(
    (
        *("status", "log", "diff", "show", "shortlog", "blame", "ls-files", "ls-tree", "rev-parse"),
        *("rev-list", "describe", "name-rev", "merge-base", "whatchanged", "count-objects", "show-ref"),
        *("for-each-ref", "check-ignore"),
    )
)
# Long options can be shortened, so a beginning of one of these counts as the option.
GIT_WRITING = ("--output", "--ext-diff", "--open-files-in-pager", "--textconv", "--exec")
RIPGREP_STARTING = ("--pre", "--pre-glob", "--hostname-bin", "--search-zip")
BRANCH_LISTING = frozenset(
    (
        *("--list", "--all", "-a", "--remotes", "-r", "--verbose", "-v", "-vv", "--show-current"),
        *("--no-color", "--color"),
    )
)
NEGATIVE_NUMBER = re.compile(r"-[0-9]+[a-zA-Z]?")
TAG_LISTING = frozenset(["--list", "-l", "-n"])


def reads_only(program: str, words: Words) -> bool:
    """Say whether the program with these words is known only to read."""
    if program in HARMLESS:
        return True
    row = ROWS.get(program)
    return row is not None and row(words)


def _find(words: Words) -> bool:
    return all(word in FIND_TESTS for word in words if word.startswith("-") and not _is_number(word))


def _ripgrep(words: Words) -> bool:
    """ripgrep can start a program for each file, to preprocess or to unpack it."""
    starting = any(_shortens(word, option) for word in words for option in RIPGREP_STARTING)
    return not starting and not any(_has_letter(word, "z") for word in words)


def _file(words: Words) -> bool:
    """`file -C` writes a compiled magic file; -z starts programs that unpack."""
    compiling = any(_shortens(word, option) for word in words for option in ("--compile", "--uncompress"))
    return not compiling and not any(_has_letter(word, letter) for word in words for letter in "CzZ")


def _git(words: Words) -> bool:
    rest = list(words)
    while rest and rest[0] in ("--no-pager", "-P", "--no-optional-locks"):
        rest = rest[1:]
    if not rest or any(_shortens(word, option) for word in rest for option in GIT_WRITING):
        return False
    subcommand, arguments = rest[0], rest[1:]
    if subcommand in GIT_READERS:
        return True
    row = GIT_ROWS.get(subcommand)
    return row is not None and row(arguments)


def _git_grep(words: Words) -> bool:
    return not any(_has_letter(word, "O") for word in words)


def _git_branch(words: Words) -> bool:
    return _lists(words, BRANCH_LISTING)


def _git_tag(words: Words) -> bool:
    return _lists(words, TAG_LISTING)


def _lists(words: Words, listing: frozenset[str]) -> bool:
    """Names may stand only beside an explicit --list: without it they are created."""
    options = [word for word in words if word.startswith("-")]
    return set(options) <= listing and (len(options) == len(words) or "--list" in options)


def _git_remote(words: Words) -> bool:
    return tuple(words) in ((), ("-v",), ("--verbose",)) or (len(words) == 2 and words[0] == "get-url")


def _git_stash(words: Words) -> bool:
    return words[:1] in (["list"], ["show"])


def _first_is(word: str) -> Row:
    return lambda words: list(words) == [word]


def _git_config(words: Words) -> bool:
    """Reading forms take exactly one name, or none to list."""
    if list(words) in (["--list"], ["-l"]):
        return True
    return len(words) == 2 and words[0] in ("--get", "--get-all") and not words[1].startswith("-")


def _shortens(word: str, option: str) -> bool:
    name = word.partition("=")[0]
    return len(name) > 2 and option.startswith(name)


def _has_letter(word: str, letter: str) -> bool:
    """Say whether the word could be a cluster of one-letter options with this one."""
    return word.startswith("-") and not word.startswith("--") and letter in word


def _is_number(word: str) -> bool:
    """Say whether the word is a negative number, with a unit or without, as `find -size -10k` has it."""
    return NEGATIVE_NUMBER.fullmatch(word) is not None


ROWS: Mapping[str, Row] = {"find": _find, "rg": _ripgrep, "file": _file, "git": _git}
GIT_ROWS: Mapping[str, Row] = {
    "grep": _git_grep,
    "branch": _git_branch,
    "tag": _git_tag,
    "remote": _git_remote,
    "stash": _git_stash,
    "config": _git_config,
    "worktree": _first_is("list"),
    "submodule": _first_is("status"),
    "reflog": _first_is("show"),
}
