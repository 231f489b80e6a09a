"""The units that `steadyworker deploy systemd` prints: names, numbers, secrets, and the judgement of systemd's own tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from steadyworker.cli import verbs
from steadyworker.config.resolve import load
from steadyworker.deploy.systemd import Layout, secret_files, span
from steadyworker.deploy.unit_file import UnitFile, read_unit
from steadyworker.errors import ConfigError
from tests.examples.pages import Page

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy/systemd"
BROKER = ("--broker", "amqps://rabbitmq.example.org")
DAILY = ("--send-daily", "02:30", "--payload", '{"merchant": "harbour-books"}')
SPARK = "steadyworker-spark"
EXPOSURE = 15
"""Ten times the exposure that `systemd-analyze security` may find: 1.5, where a bare unit has 9.5."""


@pytest.fixture(autouse=True)
def _exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page's Worker is importable."""
    (tmp_path / "exports.py").write_text(Page("README.md").files()["exports.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "exports", raising=False)
    monkeypatch.chdir(tmp_path)


def said(*arguments: str, target: str = "exports:PaymentExports", env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(verbs, ["deploy", "systemd", target, *arguments], env=env)


def printed(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> dict[str, str]:
    """The files by their names."""
    folder.mkdir(exist_ok=True)
    done = said("--output", str(folder), *arguments, env=env)
    assert done.exit_code == 0, done.output
    return {path.name: path.read_text() for path in folder.iterdir()}


def unit(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> UnitFile:
    return read_unit("it", printed(folder, *arguments, env=env)["steadyworker@.service"])


# --- What is shipped --------------------------------------------------------------------------------------------------


def shipped(folder: Path) -> dict[str, str]:
    spark = printed(folder / "spark", *BROKER, "--name", SPARK, "--spark")
    return printed(folder / "all", *BROKER, *DAILY, "--instances", "4") | {
        f"{SPARK}@.service": spark[f"{SPARK}@.service"]
    }


def test_the_folder_has_what_is_printed_for_the_first_pages_worker(tmp_path: Path) -> None:
    assert shipped(tmp_path) == {path.name: path.read_text() for path in SHIPPED.iterdir()}


# --- What systemd's tools say -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        missing = "systemd-analyze was not found: apt-get install systemd"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    return found


def complaints(analyze: str, folder: Path, units: dict[str, str]) -> str:
    """What `systemd-analyze verify` prints of units, and its exit code if it is not 0: it is 0 for an unknown directive."""
    folder.mkdir()
    for name, text in units.items():
        program = re.sub(r"/opt/\S+?/venv/bin/steadyworker", sys.executable, text)  # it has to be there
        (folder / name).write_text(program)
    done = subprocess.run(
        [analyze, "verify", *map(str, sorted(folder.iterdir()))], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr + (f"exit code {done.returncode}" if done.returncode else "")


def is_safe(analyze: str, path: Path) -> bool:
    """Whether its exposure is low enough."""
    done = subprocess.run(
        [analyze, "security", "--offline=yes", f"--threshold={EXPOSURE}", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "exposure level" in done.stdout, done.stderr
    return done.returncode == 0


def test_systemd_has_nothing_to_say_about_the_units(analyze: str, tmp_path: Path) -> None:
    units = {path.name: path.read_text() for path in SHIPPED.iterdir()}
    assert complaints(analyze, tmp_path / "units", units) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("WatchdogSec=", "WatchdogSek=", "Unknown key"),
        ("TimeoutStopSec=30", "TimeoutStopSec=30 # enough", "Failed to parse"),
        ("KillMode=mixed", "KillMode=mixt", "mixt"),
        ("ExecStart=/opt/steadyworker/venv/bin/steadyworker", "ExecStart=/no/such/program", "not executable"),
        ("[Service]", "[Servise]", "Servise"),
    ],
)
def test_systemd_finds_a_fault_in_a_unit(analyze: str, tmp_path: Path, right: str, wrong: str, complaint: str) -> None:
    text = (SHIPPED / "steadyworker@.service").read_text()
    assert right in text
    assert complaint in complaints(analyze, tmp_path / "units", {"it@.service": text.replace(right, wrong)})


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.service")), ids=lambda path: path.name)
def test_units_expose_little(analyze: str, path: Path) -> None:
    assert is_safe(analyze, path)


@pytest.mark.parametrize(
    "lost", ["SystemCallFilter=@system-service", "CapabilityBoundingSet=", "PrivateUsers=yes", "User="]
)
def test_a_weakened_unit_exposes_too_much(analyze: str, tmp_path: Path, lost: str) -> None:
    lines = (SHIPPED / "steadyworker-spark@.service").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(lost)]
    assert len(kept) < len(lines)
    if lost == "PrivateUsers=yes":  # it alone weighs little
        kept = [line for line in kept if not line.startswith(("PrivateTmp", "PrivateDevices"))]
    (tmp_path / "it@.service").write_text("\n".join(kept))
    assert not is_safe(analyze, tmp_path / "it@.service")


# --- Names and numbers ------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_worker_broker_and_settings(tmp_path: Path) -> None:
    embedded = unit(tmp_path / "a")
    assert [embedded.text(name) for name in ("TimeoutStopSec", "WatchdogSec", "TimeoutStartSec")] == ["30", "90", "90"]
    rabbitmq = unit(tmp_path / "b", "--broker", "amqp://localhost?heartbeat=120", "--stop-within", "2h")
    assert [rabbitmq.text(name) for name in ("TimeoutStopSec", "WatchdogSec")] == ["360", "360"]


def test_the_reason_of_a_stop_names_what_happens_to_a_job(tmp_path: Path) -> None:
    short = printed(tmp_path / "a")["steadyworker@.service"]
    assert "at most 28 s (stop_within): jobs may finish for 15 s, then they are interrupted" in short
    assert "# With stop_within = 10813, every job could finish: its time limit is 3 h." in short
    long = printed(tmp_path / "b", "--stop-within", "10813")["steadyworker@.service"]
    assert "every job can finish, because the longest time limit is 3 h." in long


def test_the_name_is_that_of_units_user_and_folders(tmp_path: Path) -> None:
    files = printed(tmp_path / "a", "--name", "refunds", *BROKER)
    assert set(files) == {"refunds@.service", "refunds.target"}
    text = files["refunds@.service"]
    assert "User=refunds\n" in text
    assert "LoadCredential=broker-url:/etc/refunds/broker-url\n" in text
    assert "ExecStart=/opt/refunds/venv/bin/steadyworker run exports:PaymentExports\n" in text
    assert "steadyworker" not in re.sub("bin/steadyworker|`steadyworker deploy", "", text)


def test_folder_and_program_can_be_elsewhere(tmp_path: Path) -> None:
    found = unit(tmp_path / "a", "--directory", "/srv/shop", "--program", "/usr/bin/steadyworker")
    assert found.words("ExecStart") == ["/usr/bin/steadyworker", "run", "exports:PaymentExports"]
    assert found.environment()["PYTHONPATH"] == "/srv/shop"


def test_a_target_starts_the_instances(tmp_path: Path) -> None:
    assert (
        "\nWants=steadyworker@1.service steadyworker@2.service\n"
        in printed(tmp_path / "a", "--instances", "2")["steadyworker.target"]
    )


def test_without_a_folder_all_files_are_printed() -> None:
    text = said(*DAILY).stdout
    assert re.findall(r"^# (steadyworker\S+): `", text, re.MULTILINE) == [
        "steadyworker@.service",
        "steadyworker.target",
        "steadyworker-send.service",
        "steadyworker-send.timer",
    ]


def test_every_reason_stands_above_its_line() -> None:
    """systemd would take it for a part of the value."""
    for path in SHIPPED.iterdir():
        for line in path.read_text().splitlines():
            assert line.startswith("#") or " #" not in line, f"{path.name}: {line}"


@pytest.mark.parametrize(
    ("seconds", "text"), [(28, "28 s"), (90, "90 s"), (180, "3 min"), (10800, "3 h"), (10813, "3 h 13 s"), (0, "0 s")]
)
def test_durations_are_exact(seconds: float, text: str) -> None:
    assert span(seconds) == text


# --- Settings and secrets ---------------------------------------------------------------------------------------------


def test_settings_of_command_line_and_environment_are_in_the_unit_and_those_of_a_file_are_not(tmp_path: Path) -> None:
    (tmp_path / "steadyworker.toml").write_text('log_level = "warning"\nidle_exit = 60\n')
    found = unit(
        tmp_path / "a", "--health", "8080", "--delays", "1s,0.5m", env={"STEADYWORKER_MAX_RSS": "1 GiB"}
    ).environment()
    ours = {name: text for name, text in found.items() if name.startswith("STEADYWORKER_")}
    assert ours == {
        "STEADYWORKER_CONFIG": "/etc/steadyworker/steadyworker.toml",
        "STEADYWORKER_HEALTH": "127.0.0.1:8080",
        "STEADYWORKER_DELAYS": "1,30",
        "STEADYWORKER_MAX_RSS": str(1 << 30),
    }
    again = load({}, {**ours, "HOME": "/", "STEADYWORKER_CONFIG": str(tmp_path / "steadyworker.toml")}, tmp_path)
    assert again.delays == (1.0, 30.0)


def test_a_value_with_blanks_quotes_and_percent_signs_arrives(tmp_path: Path) -> None:
    text = printed(tmp_path / "a", "--spark-conf", 'spark.app.name=50% of "all" \\ of them')["steadyworker@.service"]
    assert 'Environment="STEADYWORKER_SPARK_CONF=spark.app.name=50%% of \\"all\\" \\\\ of them"' in text
    assert read_unit("it", text).environment()["STEADYWORKER_SPARK_CONF"] == 'spark.app.name=50% of "all" \\ of them'


@pytest.mark.parametrize(
    "given",
    [
        ("--broker", "amqp://shop:hunter2@rabbitmq/shop"),
        ("--ledger", "postgresql://shop:hunter2@ledger/shop"),
    ],
    ids=["broker", "ledger"],
)
def test_a_url_is_never_in_a_unit(tmp_path: Path, given: Sequence[str]) -> None:
    name = given[0].removeprefix("--")
    done = said(*given, *DAILY)
    assert done.exit_code == 0, done.output
    assert "hunter2" not in done.output
    assert done.output.count(f"\nLoadCredential={name}-url:/etc/steadyworker/{name}-url\n") == 2
    assert done.output.count(f"\nEnvironment=STEADYWORKER_{name.upper()}_FILE=%d/{name}-url\n") == 2


def test_a_url_of_a_file_comes_from_that_file_if_it_is_on_the_machine(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("amqp://shop:hunter2@rabbitmq")
    elsewhere = load({"broker_file": str(tmp_path / "url")}, {"HOME": "/"}, tmp_path)
    assert secret_files(elsewhere, Layout()) == {"broker-url": Path("/etc/steadyworker/broker-url")}
    assert "install -D --mode 0600 " in said("--broker-file", str(tmp_path / "url"), "--output", str(tmp_path)).output


def test_a_url_of_the_settings_file_stays_there(tmp_path: Path) -> None:
    (tmp_path / "steadyworker.toml").write_text('broker = "amqp://shop:hunter2@rabbitmq"\n')
    text = printed(tmp_path / "a")["steadyworker@.service"]
    assert "LoadCredential" not in text
    assert "hunter2" not in text


def test_a_url_of_this_host_is_a_setting(tmp_path: Path) -> None:
    found = unit(tmp_path / "a", "--ledger", "sqlite:/var/lib/steadyworker/other.db")
    assert found.environment()["STEADYWORKER_LEDGER"] == "sqlite:/var/lib/steadyworker/other.db"


def test_the_next_steps_name_what_the_units_need(tmp_path: Path) -> None:
    (tmp_path / "steadyworker.toml").write_text("stop_within = 60\n")
    (tmp_path / "units").mkdir()
    done = said("--output", str(tmp_path / "units"), "--name", "shop", *BROKER, *DAILY)
    assert done.output.partition("Next:\n")[2].splitlines() == [
        "  useradd --system --home-dir /var/lib/shop --shell /usr/sbin/nologin shop",
        f"  install -D --mode 0640 --group shop {tmp_path}/steadyworker.toml /etc/shop/steadyworker.toml",
        "  install -D --mode 0600 YOUR-FILE /etc/shop/broker-url    # one line: the URL of the broker",
        "  systemctl daemon-reload",
        "  systemctl enable --now shop.target shop-send.timer",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--spark-conf", "spark.hadoop.fs.s3a.secret.key=x"), "without a secret"),
        (("--name", "Steady Worker"), "lower-case letters"),
        (("--directory", "shop"), "absolute path"),
        (("--directory", "/srv/my shop"), "Expected a path of letters"),
        (("--send-daily", "02:30"), "--send-daily and --payload together"),
        (("--payload", "{}"), "--send-daily and --payload together"),
        (("--send-daily", "2:30", "--payload", "{}"), "Expected a time like 02:30"),
        (("--send-daily", "02:30", "--payload", "{"), "Expected JSON for --payload"),
        (("--send-daily", "02:30", "--payload", '{"a":\n1}'), "Expected one line"),
    ],
)
def test_what_no_unit_can_have_is_refused_with_its_remedy(arguments: Sequence[str], expected: str) -> None:
    done = said(*arguments)
    assert done.exit_code == 78, done.output
    assert expected in done.output


def test_a_layout_needs_a_program_that_systemd_can_find() -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        Layout(program=Path("steadyworker"))
