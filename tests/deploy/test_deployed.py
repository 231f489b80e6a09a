"""`check --deployed FILE`: where a unit contradicts the Worker, each with its remedy; the shipped units have no finding."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.adapter import Capabilities
from steadyworker.cli import verbs
from steadyworker.config.resolve import load
from steadyworker.deploy import deployed
from steadyworker.deploy.expected import Expected
from steadyworker.deploy.numbers import numbers_of
from steadyworker.deploy.systemd import _quoted
from steadyworker.deploy.unit_file import read_unit, split
from steadyworker.errors import ConfigError, Finding
from steadyworker.spec import spec_of
from steadyworker.worker import Worker
from tests.examples.pages import Page

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy/systemd"
UNIT = (SHIPPED / "steadyworker@.service").read_text()
EMBEDDED = Capabilities(one_host=True)
RABBITMQ = Capabilities(forgets_consumers_within=180.0)


class PaymentExports(Worker[dict[str, str]]):
    queue = "payment-exports"
    time_limit = 3 * 3600

    def handle(self, job: object) -> None:
        """Nothing to do."""


def expected(broker: Capabilities = RABBITMQ, **settings: Any) -> Expected:
    specs = [spec_of(PaymentExports)]
    options = load(settings, {"HOME": "/home/joe"}, Path("/nowhere"))
    return Expected(specs, options, [broker], numbers_of(specs, options, [broker]))


def found(folder: Path, text: str, broker: Capabilities = RABBITMQ, **settings: Any) -> list[Finding]:
    (folder / "it@.service").write_text(text)
    return deployed.findings(folder / "it@.service", expected(broker, **settings))


def changed(old: str, new: str) -> str:
    """The shipped unit with one change."""
    text = re.sub(rf"^{old}$", lambda _: new, UNIT, flags=re.MULTILINE)
    assert text != UNIT
    return text


@pytest.mark.parametrize("name", ["steadyworker@.service", "steadyworker-spark@.service"])
@pytest.mark.parametrize("broker", [RABBITMQ, EMBEDDED], ids=["rabbitmq", "embedded"])
def test_the_shipped_units_contradict_nothing(tmp_path: Path, name: str, broker: Capabilities) -> None:
    assert found(tmp_path, (SHIPPED / name).read_text(), broker) == []


@pytest.mark.parametrize(
    ("old", "new", "level", "what", "remedy"),
    [
        ("Type=notify", "Type=forking", "error", "has Type=forking", "Type=notify"),
        ("TimeoutStopSec=30", "TimeoutStopSec=5", "warning", "before a busy worker process has asked", "=30"),
        ("KillMode=mixed", "", "warning", "SIGTERM to every program that a job", "KillMode=mixed"),
        ("KillMode=mixed", "KillMode=process", "error", "beside the next run (KillMode=process)", "KillMode=mixed"),
        ("KillMode=mixed", "KillMode=mixed\nKillSignal=SIGQUIT", "error", "without a graceful stop", "remove KillSignal"),
        ("KillMode=mixed", "KillMode=mixed\nSendSIGKILL=no", "warning", "SendSIGKILL=no", "remove"),
        ("WatchdogSec=180", "", "warning", "does not notice when threads of it@.service hang", "WatchdogSec=180"),
        ("WatchdogSec=180", "WatchdogSec=1min", "warning", "WatchdogSec=60 in it@.service is too short", "WatchdogSec=180"),
        ("WatchdogSec=180", "WatchdogSec=180 # enough", "error", "got '180 # enough'", "no comments at the end"),
        ("Restart=on-failure", "", "warning", "does not start it@.service again", "Restart=on-failure"),
        ("Restart=on-failure", "Restart=on-abort", "warning", "(Restart=on-abort)", "Restart=on-failure"),
        ("RestartPreventExitStatus=78", "", "error", "restarts again and again", "RestartPreventExitStatus=78"),
        ("SuccessExitStatus=143", "", "warning", "in the state failed", "SuccessExitStatus=143"),
        ("OOMPolicy=continue", "", "warning", "(OOMPolicy=stop)", "OOMPolicy=continue"),
        ("StateDirectory=.*", "", "error", "no StateDirectory", "StateDirectoryMode=0700"),
        ("StateDirectoryMode=0700", "", "warning", "Every user of the machine", "StateDirectoryMode=0700"),
        ("StateDirectory=.*", "StateDirectory=steadyworker/%i", "error", "a ledger of its own", "postgresql://"),
        ("PrivateTmp=yes", "PrivateNetwork=yes", "error", "has no network", "remove PrivateNetwork"),
        ("PrivateTmp=yes", "PrivateNetwork=maybe", "error", "Expected yes or no", "systemd ignores"),
        ("PrivateTmp=yes", "ProcSubset=pid", "error", "hides the id of this boot", "remove ProcSubset"),
        ("PrivateTmp=yes", "IPAddressDeny=any", "error", "may reach no address", "IPAddressAllow"),
        ("RestrictAddressFamilies=.*", "RestrictAddressFamilies=AF_UNIX", "error", "no connection", "AF_INET6"),
        ("RestrictAddressFamilies=.*", "RestrictAddressFamilies=~AF_INET AF_INET6", "error", "no connection", "AF_INET"),
        ("RestrictAddressFamilies=.*", "RestrictAddressFamilies=none", "error", "no connection", "AF_INET6"),
        (
            "Environment=PYTHONFAULTHANDLER=1",
            "Environment=STEADYWORKER_BROKER=amqp://shop:hunter2@rabbitmq",
            "warning",
            "Environment in it@.service has a password",
            "LoadCredential",
        ),
        (
            "Environment=PYTHONFAULTHANDLER=1",
            "Environment=STEADYWORKER_STOP_WITHIN=2h",
            "warning",
            "sets --stop-within to 2h, but this check has 28.0",
            "--stop-within 2h",
        ),
        (
            "Environment=PYTHONFAULTHANDLER=1",
            "Environment=STEADYWORKER_STOP_WITHIN=soon",
            "error",
            "Expected at least 1 second",
            "exit code 78",
        ),
        ("(ExecStart=.*)exports:PaymentExports", "ExecStart=/x run exports:Refunds", "error", "runs exports:Refunds", "name"),
        ("(ExecStart=.*)", "ExecStart=/x run a:PaymentExports --idle-exit 5", "warning", "--idle-exit to 5", "--idle-exit"),
    ],
)  # fmt: skip
def test_a_contradiction_is_found_with_its_remedy(
    tmp_path: Path, old: str, new: str, level: str, what: str, remedy: str
) -> None:
    (finding,) = found(tmp_path, changed(old, new))
    assert finding.level == level
    assert what in finding.what
    assert remedy in finding.remedy
    assert "hunter2" not in str(finding)


def test_a_short_stop_is_an_error_only_where_systemd_does_not_listen(tmp_path: Path) -> None:
    """With a watchdog, systemd listens to any type of service (tests/deploy/test_under_systemd.py)."""
    assert found(tmp_path, UNIT.replace("Type=notify", "Type=exec"), stop_within=60) == []
    assert found(tmp_path, UNIT, stop_within="6h") == []
    deaf = UNIT.replace("Type=notify\nNotifyAccess=main", "Type=exec").replace("WatchdogSec=180", "")
    error = found(tmp_path, deaf, stop_within=60)[0]
    assert error.level == "error"
    assert "kills it@.service 30 s after the start of a stop, but stop_within is 60 s" in error.what
    assert "Type=notify" in error.remedy
    assert "TimeoutStopSec=62" in error.remedy
    for long in ("infinity", "0", "1min 2s"):
        levels = [each.level for each in found(tmp_path, deaf.replace("Sec=30", f"Sec={long}"), stop_within=60)]
        assert levels == ["warning"], long


def test_the_default_of_systemd_counts_where_a_unit_has_no_line(tmp_path: Path) -> None:
    bare = "[Service]\nExecStart=/x run exports:PaymentExports\n"
    assert [(each.level, each.remedy) for each in found(tmp_path, bare, stop_within=60)] == [
        ("warning", "set KillMode=mixed, so that jobs may finish."),
        ("warning", "set WatchdogSec=180."),
        ("warning", "set Restart=on-failure."),
        ("warning", "set SuccessExitStatus=143."),
        ("warning", "set OOMPolicy=continue."),
    ]
    (error,) = [each for each in found(tmp_path, bare, stop_within=120) if each.level == "error"]
    assert "90 s after the start of a stop" in error.what


def test_on_one_host_a_unit_needs_no_network_and_may_have_a_folder_for_each_instance(tmp_path: Path) -> None:
    text = UNIT.replace("PrivateTmp=yes", "PrivateNetwork=yes").replace(
        "StateDirectory=steadyworker", "StateDirectory=a/%i"
    )
    assert found(tmp_path, text, EMBEDDED) == []
    postgres = found(tmp_path, text, EMBEDDED, ledger="postgresql://shop@ledger/shop")
    assert [each.what.partition(" (")[0] for each in postgres] == ["it@.service has no network"]


@pytest.mark.parametrize("command", ["/srv/shop/worker.py", "/x exec --queue q -- tool run exports:Refunds"])
def test_a_command_that_names_no_worker_contradicts_nothing(tmp_path: Path, command: str) -> None:
    assert found(tmp_path, changed("ExecStart=.*", f"ExecStart={command}")) == []


def test_a_dynamic_user_needs_a_state_directory(tmp_path: Path) -> None:
    bare = "\n".join(
        line for line in UNIT.splitlines() if not line.startswith(("ProtectSystem", "StateDirectory", "User"))
    )
    assert found(tmp_path, bare) == []
    (error,) = found(tmp_path, bare.replace("[Service]", "[Service]\nDynamicUser=yes"))
    assert (error.level, "no StateDirectory" in error.what) == ("error", True)


def test_drop_ins_outrank_the_unit_as_in_systemctl_cat(tmp_path: Path) -> None:
    text = f"# /etc/systemd/system/it@.service\n{UNIT}\n# /etc/systemd/system/it@.service.d/a.conf\n[Service]\nOOMPolicy=kill\n"
    (finding,) = found(tmp_path, text)
    assert "(OOMPolicy=kill)" in finding.what


# --- Which file it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "[Unit]\nDescription=x\n", "# [Service]\n"])
def test_a_file_of_no_known_kind_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"Expected a unit of systemd with a section \[Service\]"):
        found(tmp_path, text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "x", tmp_path / "missing"):
        with pytest.raises(ConfigError, match="Correct the path"):
            deployed.findings(path, expected())


def test_check_shows_the_findings_among_its_own_and_ends_with_78_for_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exports.py").write_text(Page("README.md").files()["exports.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "exports", raising=False)
    (tmp_path / "bad.service").write_text(changed("RestartPreventExitStatus=78", ""))

    def check(*arguments: str) -> tuple[int, list[dict[str, str]]]:
        said = CliRunner().invoke(verbs, ["check", "exports:PaymentExports", "--json", *arguments])
        return said.exit_code, json.loads(said.stdout)["findings"]

    plain = check()
    assert check("--deployed", str(SHIPPED / "steadyworker@.service")) == plain
    code, findings = check(
        "--deployed", str(SHIPPED / "steadyworker@.service"), "--deployed", str(tmp_path / "bad.service")
    )
    assert code == 78
    assert [finding["what"] for finding in findings if finding["level"] == "error"] == [
        "After a wrong setting or a refused login (exit code 78), bad.service restarts again and again."
    ]


# --- How a unit is read -----------------------------------------------------------------------------------------------


def test_a_unit_is_read_as_systemd_reads_it() -> None:
    unit = read_unit(
        "it",
        "[Unit]\nType=not this\n[Service]\n"
        "  Type = notify  \nType=exec\n"
        "ExecStart=/x run \\\n# a comment between\n  a:B\n"
        "; another\nEnvironment=A=1 \"B=two words\" 'C=3'\nEnvironment=D=50%%\n"
        "SuccessExitStatus=1\nSuccessExitStatus=\nSuccessExitStatus=2 3\n"
        "WatchdogSec=5\nWatchdogSec=\nno assignment\nKillMode=mixed \\\n",
    )
    assert unit.text("Type") == "exec"
    assert unit.words("ExecStart") == ["/x", "run", "a:B"]
    assert unit.environment() == {"A": "1", "B": "two words", "C": "3", "D": "50%"}
    assert unit.words("SuccessExitStatus") == ["2", "3"]
    assert unit.seconds("WatchdogSec", 7.0) == 7.0, "an empty value is the default again"
    assert unit.text("KillMode") == "mixed"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1min 30s", 90), ("2h", 7200), ("500ms", 0.5), ("1d", 86400), ("infinity", None), ("1.5h", 5400)],
)
def test_times_are_those_of_systemd(text: str, seconds: float | None) -> None:
    assert read_unit("it", f"[Service]\nWatchdogSec={text}\n").seconds("WatchdogSec", 1.0) == seconds


@given(st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1))
def test_an_argument_is_read_as_it_was_written(text: str) -> None:
    written = _quoted(text)
    assert "$" not in written.replace("$$", "")
    assert [word.replace("$$", "$").replace("%%", "%") for word in split(f"/x {written} y")] == ["/x", text, "y"]


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    unit = read_unit("it", f"[Service]\n{text}")
    assert isinstance(unit.words("ExecStart"), list)
    assert isinstance(unit.environment(), dict)
