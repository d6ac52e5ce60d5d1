"""What policy may know of a command line, checked against the shell itself where that is possible."""

import shlex
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hub.domain.commands import Analysis, analyse

DOUBTFUL = [
    *("", "   ", "a; b", "a && b", "a | b", "a &", "a > f", "a < f", "a 2>&1", "a >> f", "(a)", "{ a; }"),
    *("a $(b)", "a `b`", "a $B", 'a "$B"', 'a "`b`"', 'a "\\$B"', "a ${B}", "a $'b'", "a\nb", "a\\\nb", "a\rb", "a\0b"),
    *("a 'b", 'a "b', "a \\", "a *.py", "a b?", "a [bc]", "a {b,c}", "a ~/b", "a x:~/b", "a #b", "a <(b)", "a <<E"),
    *("if a", "while a", "! a", "A=1", "A=1 B=2", "A+=1 ls", "'A=1' ls", "A=1 'B=2' ls", "f() a", "A=(1) b"),
    *("env", "env -S 'a b'", "env -C / ls", "env A=1", "nice", "nice -x ls", "timeout ls", "timeout -z 5 ls"),
    *("timeout 5", "timeout 5 -k", "sudo -i", "sudo -s ls", "sudo", "sudo A=1 ls", "A=1 sudo ls", "sudo env A=1 ls"),
    *("nohup", "nohup -x ls", "time -o f ls", "time A=1 ls", "env a-b=1", "-x", "env -- -x", "nice A=1 ls", "'' a"),
    "a\u00a0b",
]


@pytest.mark.parametrize("line", DOUBTFUL)
def test_doubt_means_ask(line: str) -> None:
    found = analyse(line)
    assert found == Analysis(line, parsed=False, reason=found.reason)
    assert found.reason


@pytest.mark.parametrize(
    ("line", "argv", "target"),
    [
        ("make test", ("make", "test"), None),
        ("  make\ttest ", ("make", "test"), None),
        ("grep 'a|b' \"x y\" c\\ d", ("grep", "a|b", "x y", "c d"), None),
        ("git show HEAD~2 a#b", ("git", "show", "HEAD~2", "a#b"), None),
        ("find . ! -name x", ("find", ".", "!", "-name", "x"), None),
        ("nice -n 5 make", ("make",), None),
        ("nice -5 make", ("make",), None),
        ("nice --adjustment=5 make", ("make",), None),
        ("timeout 5 rm x", ("rm", "x"), None),
        ("timeout -k 3 -s KILL --foreground 1.5m rm x", ("rm", "x"), None),
        ("nohup time -p nice timeout 9s make -j4", ("make", "-j4"), None),
        ("/usr/bin/nice /bin/env make", ("make",), None),
        ("./env make", ("./env", "make"), None),
        ("A=1 make", ("make",), ("env", "A=1", "make")),
        ("A='x y' make", ("make",), ("env", "A=x y", "make")),
        ("env A=1 make", ("make",), ("env", "A=1", "make")),
        ("A=1 env B=2 nice make", ("make",), ("env", "A=1", "B=2", "make")),
        ("env -i A=1 make", ("make",), ("env", "-i", "A=1", "make")),
        ("env -u A -- make", ("make",), ("env", "-u", "A", "make")),
        ("env 'a-b=1' make", ("make",), ("env", "a-b=1", "make")),
        ("sudo make", ("make",), ("sudo", "make")),
        ("sudo -n -u root -- make", ("make",), ("sudo", "-u", "root", "make")),
        ("xargs rm", ("xargs", "rm"), None),
    ],
)
def test_wrappers_come_off_and_what_they_change_stays(
    line: str, argv: tuple[str, ...], target: tuple[str, ...] | None
) -> None:
    found = analyse(line)
    assert found.parsed
    assert found.argv == argv
    assert found.target == (target or argv)


READING = [
    *("ls -la", "cat a b", "head -n 5 a", "tail a", "wc -l a", "grep -rn x .", "pwd", "echo hi", "stat a", "file a"),
    *("du -sh", "df", "which python", "/bin/ls", "timeout 5 ls", "nice cat a", "rg -n -e x src", "diff a b"),
    *("find . -name '*.py' -type f", "find src -mtime -7 -size -10k -print", "find . ! -name x"),
    *("git status", "git --no-pager log --oneline -5", "git diff --stat HEAD", "git show HEAD", "git blame a"),
    *("git branch", "git branch --list 'x*'", "git branch -a -v", "git branch --show-current", "git tag -l"),
    *("git remote -v", "git remote get-url origin", "git stash list", "git worktree list", "git config --get a.b"),
    *("git grep -n x", "git ls-files", "git rev-parse HEAD", "git submodule status"),
]
WRITING = [
    *("rm a", "make", "tee a", "sort -o a b", "sed -i s/a/b/ c", "python -c 'x'", "./ls", "bin/cat a", "xargs ls"),
    *("sudo cat a", "A=1 ls", "env LD_PRELOAD=x ls", "env -i ls", "find . -delete", "find . -exec rm '{}' ';'"),
    *("find . -execdir ls", "find . -ok rm", "find . -fprint a", "find . -fls a", "rg --pre=x a", "rg --pre x a"),
    *("rg -z a", "rg -nz a", "rg --search-zip a", "rg --hostname-bin x a", "file -C -m a", "file --comp -m a"),
    *("file -bz a", "git", "git commit", "git push", "git checkout a", "git -c core.pager=x log", "git -C /x status"),
    *("git diff --output=a", "git diff --outp a", "git log --ext-diff", "git grep -Ovi x", "git grep --open x"),
    *("git branch x", "git branch -D x", "git branch -l x", "git branch -m a b", "git branch -v x", "git tag x"),
    *("git tag -d x", "git remote add a b", "git remote prune x", "git stash", "git stash pop", "git config a.b c"),
    *("git config --get a.b --unset", "git worktree add x", "git --paginate log", "git reflog expire", "date -s x"),
    *("git submodule update", "tree -o a", "less a", "curl x", "env", "nohup", "sudo ls"),
]


@pytest.mark.parametrize("line", READING)
def test_these_only_read(line: str) -> None:
    assert analyse(line).read_only


@pytest.mark.parametrize("line", [*WRITING, *DOUBTFUL])
def test_these_are_not_known_only_to_read(line: str) -> None:
    assert not analyse(line).read_only


PIECES = st.sampled_from(
    [*"ab '\"\\ \t$`*?[]{}~#!;&|<>()=-/.,:%^@+\n", "é", "A=", "env ", "nice ", "echo ", "'x y'", '"x y"']
)
LINES = st.lists(PIECES, max_size=12).map("".join)


@given(LINES)
@example("a ''b\"c\"'d'")
@example('a "x\\\\y"')
@settings(max_examples=60, deadline=None)
def test_a_parsed_line_has_the_words_that_a_shell_gives(line: str) -> None:
    """The shell is the judge: printf is put before the words and shows what it was given."""
    found = analyse(f"printf {line}")
    if not found.parsed:
        return
    shown = subprocess.run(
        ["bash", "-c", f"f() {{ command printf '%s\\0' \"$@\"; }}; f {line}"], capture_output=True, check=True
    )
    words = shown.stdout.decode().split("\0")[:-1]
    assert words == list(found.argv[1:]) or (not found.argv[1:] and words == [""])


@given(st.lists(st.text(alphabet="ab '\"$*;|~#!\\é", max_size=5), min_size=1, max_size=4))
def test_quoted_words_come_back_as_they_are(words: list[str]) -> None:
    found = analyse(shlex.join(["prog", *words]))
    assert found.argv == ("prog", *words)
    assert found.target == found.argv


@given(LINES)
def test_only_what_is_parsed_has_a_target(line: str) -> None:
    found = analyse(line)
    assert found.parsed == bool(found.target) == bool(found.argv) == (not found.reason)
    assert found.parsed or not found.read_only
