"""What is installed is what was pinned: exact versions with hashes, no index, no code at Python's start."""

import re
import sysconfig
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
NAMES = ("runtime", "build", "test", "dev")
MALICIOUS_LITELLM = {"1.82.7", "1.82.8"}
MAY_RUN_AT_START = {"setuptools", "turnback"}
"""Distributions with a .pth file: setuptools' own in a new environment, and our editable install."""

PIN = re.compile(r"^(?P<name>[a-z0-9._-]+)==(?P<version>[^\s;]+)(?: ; [^\\]+)?(?P<more> \\)?$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


def pins(text: str) -> dict[str, str]:
    """Return name and version of each pin. Raises ValueError for a line that is neither pin, hash nor comment."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        pin = PIN.match(line)
        if pin and pin["more"]:
            found[pin["name"]] = pin["version"]
        elif not (HASH.match(line) or line.lstrip().startswith("#") or not line):
            raise ValueError(f"neither a pin with hashes nor a comment: {line!r}")
    return found


def start_up_files(installed: Iterable[Distribution]) -> list[str]:
    """Return `distribution: file` for each .pth file that no distribution may bring."""
    return [
        f"{distribution.name}: {file}"
        for distribution in installed
        if distribution.name.lower() not in MAY_RUN_AT_START
        for file in distribution.files or ()
        if file.suffix == ".pth"
    ]


def read_pins() -> dict[str, dict[str, str]]:
    return {name: pins((REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_a_pin_with_hashes(name: str) -> None:
    assert read_pins()[name]


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://example.org/simple",
        "--find-links /somewhere",
        "litellm==1.84.0",
        "litellm>=1.84 \\",
        "litellm @ https://example.org/litellm.whl \\",
        "-e .",
        "-r other.txt",
    ],
)
def test_any_other_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="neither a pin"):
        pins(f"six==1.17.0 \\\n    --hash=sha256:{'0' * 64}\n{line}\n")


def test_files_agree_where_they_meet() -> None:
    merged: dict[str, str] = {}
    for name, found in read_pins().items():
        differing = {pin for pin in found if merged.get(pin, found[pin]) != found[pin]}
        assert not differing, f"{name}.txt pins another version of {differing}"
        merged |= found


def test_litellm_is_none_of_the_malicious_releases() -> None:
    version = read_pins()["runtime"]["litellm"]
    assert version not in MALICIOUS_LITELLM
    assert tuple(int(part) for part in version.split(".")[:2]) >= (1, 84)


def test_every_declared_dependency_is_pinned() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {re.split(r"[^A-Za-z0-9._-]", line)[0].lower() for line in declared}
    assert names <= set(read_pins()["runtime"])
    wanted = (REQUIREMENTS / "runtime.in").read_text(encoding="utf-8").splitlines()
    assert names == {re.split(r"[^A-Za-z0-9._-]", line)[0].lower() for line in wanted if line and line[0] != "#"}


def test_nothing_but_setuptools_and_we_run_code_when_python_starts() -> None:
    found = start_up_files(distributions())
    assert not found, f"a .pth file runs at every start of Python, which is how litellm 1.82.8 attacked: {found}"


def test_a_new_start_up_file_is_found(tmp_path: Path) -> None:
    information = tmp_path / "innocent-1.0.dist-info"
    information.mkdir()
    (tmp_path / "innocent_init.pth").write_text("import innocent\n")
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: innocent\nVersion: 1.0\n")
    (information / "RECORD").write_text("innocent_init.pth,,\n")
    assert start_up_files(distributions(path=[str(tmp_path)])) == ["innocent: innocent_init.pth"]


def test_no_start_up_file_lies_about_that_no_distribution_owns() -> None:
    folder = Path(sysconfig.get_path("purelib"))
    owned = {Path(str(file)).name for distribution in distributions() for file in distribution.files or ()}
    assert {path.name for path in folder.glob("*.pth")} - owned == set()
