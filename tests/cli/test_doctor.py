"""`hubctl doctor`: what it finds, and that it changes nothing."""

import hashlib
import sqlite3
import stat
from pathlib import Path

import pytest

from cli import doctor
from hub.protocol.discovery import record_path
from hub.protocol.views import MirrorView
from tests.cli.conftest import Call
from tests.cli.fakehub import FakeHub


def finding(home: Path, id: str) -> doctor.Finding:
    return next(found for found in doctor.examine(home) if found.id == id)


def everything(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Return mode, time and content of every file."""
    return {
        str(path): (path.stat().st_mode, path.stat().st_mtime_ns, _digest(path)) for path in sorted(folder.rglob("*"))
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@pytest.fixture
def used(home: Path) -> Path:
    """A home with a database."""
    home.mkdir(mode=0o700, exist_ok=True)
    connection = sqlite3.connect(home / "hub.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    return home


def test_it_ends_with_0_on_a_fresh_machine_and_makes_nothing(call: Call, home: Path) -> None:
    said = call("doctor", "--json")
    assert said.code == 0
    assert {found["id"] for found in said.json} == {check.id for check in doctor.CHECKS}
    assert all(set(found) == {"id", "severity", "message", "fix"} for found in said.json)
    assert not home.exists()


def test_it_is_read_only(hub: FakeHub, call: Call, used: Path) -> None:
    before = everything(used)
    assert call("doctor").code == 0
    assert everything(used) == before


def test_a_hub_that_answers_is_well(hub: FakeHub, home: Path) -> None:
    assert finding(home, "hub").severity == "ok"


def test_a_record_that_others_may_read_is_an_error(hub: FakeHub, call: Call, home: Path) -> None:
    record_path(home).chmod(0o644)
    said = call("doctor", "--json")
    assert said.code == 1
    assert next(found for found in said.json if found["id"] == "hub")["fix"].startswith("chmod 600")


def test_a_record_whose_port_is_silent_is_an_error(home: Path) -> None:
    with FakeHub(home):
        pass
    assert finding(home, "hub").severity == "error"


def test_a_record_of_a_process_that_is_gone_is_a_warning(hub: FakeHub, home: Path) -> None:
    path = record_path(home)
    path.write_bytes(path.read_bytes().replace(b'"pid":', b'"pid":99999999,"was":'))
    path.chmod(0o600)
    assert finding(home, "hub").severity == "warning"


def test_a_home_that_others_may_look_into_is_a_warning(used: Path) -> None:
    used.chmod(0o755)
    assert (finding(used, "home").severity, finding(used, "home").fix) == ("warning", f"chmod 700 {used}")
    used.chmod(0o700)
    assert finding(used, "home").severity == "ok"


def test_a_home_that_is_a_file_is_an_error(home: Path) -> None:
    home.write_text("")
    assert finding(home, "home").severity == "error"


def test_a_wrong_setting_is_told_with_its_line(used: Path) -> None:
    (used / "config.toml").write_text("[model]\nname = 3\n")
    found = finding(used, "config")
    assert found.severity == "error"
    assert "config.toml:2" in found.message


def test_the_database_is_looked_at(used: Path) -> None:
    assert "version is 1" in finding(used, "database").message
    (used / "hub.db").write_bytes(b"this is no database" * 100)
    assert finding(used, "database").severity == "error"


def test_without_git_it_is_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert finding(home, "git").severity == "error"
    assert finding(home, "ripgrep").severity == "warning"


@pytest.mark.parametrize(("text", "version"), [("git version 2.39.5\n", (2, 39, 5)), ("git version 2.4.rc1", (2, 4))])
def test_git_version(text: str, version: tuple[int, ...]) -> None:
    assert doctor.git_version(text) == version
    assert doctor.git_version("") == ()


@pytest.mark.parametrize(
    ("version", "severity"), [((3, 7, 0), "warning"), ((3, 51, 2), "warning"), ((3, 51, 3), "ok"), ((3, 6, 23), "ok")]
)
def test_sqlite_versions(home: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], severity: str) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    assert finding(home, "sqlite").severity == severity


def test_a_configured_model_is_well(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNBACK_MODEL", raising=False)
    assert finding(used, "model").severity == "warning"
    (used / "config.toml").write_text('[model]\nname = "openai/x"\n')
    assert finding(used, "model").severity == "ok"


def test_a_file_that_cannot_be_looked_at_is_a_finding(home: Path) -> None:
    def broken(home: Path) -> doctor.Finding:
        raise PermissionError(13, "Permission denied", str(home))

    assert doctor._looked(doctor.Check("x", broken), home).severity == "error"


def test_the_mode_of_a_record_is_that_of_its_owner(hub: FakeHub, home: Path) -> None:
    assert stat.S_IMODE(record_path(home).stat().st_mode) == 0o600


def test_a_hub_of_another_version_is_a_warning(hub: FakeHub, home: Path) -> None:
    path = record_path(home)
    path.write_bytes(path.read_bytes().replace(b'"version":"', b'"version":"9'))
    assert (finding(home, "hub").severity, finding(home, "hub").fix) == ("warning", "hubctl restart")


def test_another_hub_at_the_recorded_port_is_an_error(hub: FakeHub, home: Path) -> None:
    path = record_path(home)
    path.write_bytes(path.read_bytes().replace(b"boot_1", b"boot_2"))
    assert finding(home, "hub").severity == "error"


def test_a_remote_that_gets_every_ref_is_a_warning_with_its_remedy(hub: FakeHub, home: Path) -> None:
    mirror = MirrorView(repository="/r", remote="backup", why="remote.backup.mirror is true", remedy=["git config x"])
    hub.answers["workspace.mirrors"] = [mirror]
    found = finding(home, "remotes")
    assert (found.severity, found.fix) == ("warning", "git config x")
    assert "backup" in found.message
    hub.answers["workspace.mirrors"] = []
    assert finding(home, "remotes").severity == "ok"


def test_remotes_are_not_looked_at_without_a_hub(home: Path) -> None:
    assert finding(home, "remotes").severity == "ok"
    assert not home.exists()
