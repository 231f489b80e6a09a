"""The units that `steadyworker deploy systemd` prints: names, numbers, secrets, and the judgement of systemd's own tools."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from steadyworker.cli import verbs
from steadyworker.config.resolve import load
from steadyworker.deploy.numbers import Numbers
from steadyworker.deploy.systemd import units
from tests.examples.pages import Page

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy/systemd"
BROKER = ("--broker", "amqps://rabbitmq.example.org")
SPARK = "[Service]\nMemoryDenyWriteExecute=no\nSystemCallFilter=@resources\n"
"""What a reader of the page adds for Spark."""

EXPOSURE = 15
"""Ten times the exposure that `systemd-analyze security` may find: 1.5, where a bare unit has 9.5."""


@pytest.fixture(autouse=True)
def _exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page's Worker is importable."""
    (tmp_path / "exports.py").write_text(Page("README.md").files()["exports.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "exports", raising=False)
    monkeypatch.chdir(tmp_path)


def deploy(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(verbs, ["deploy", "systemd", "exports:PaymentExports", *arguments], env=env)


def printed(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> dict[str, str]:
    """The files by their names."""
    folder.mkdir(exist_ok=True)
    done = deploy("--output", str(folder), *arguments, env=env)
    assert done.exit_code == 0, done.output
    return {path.name: path.read_text() for path in folder.iterdir()}


def unit(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> list[str]:
    """The lines of the unit for worker processes."""
    return printed(folder, *arguments, env=env)["steadyworker@.service"].splitlines()


def seconds(lines: Sequence[str]) -> dict[str, str]:
    """The durations of a unit, each of which stands there once."""
    pairs = re.findall(r"^(\w+Sec)=(.*)$", "\n".join(lines), re.MULTILINE)
    found = dict(pairs)
    assert len(found) == len(pairs), pairs
    return found


def environment(lines: Sequence[str]) -> dict[str, str]:
    """SteadyWorker's variables in a unit."""
    given = [line.removeprefix("Environment=").removeprefix('"') for line in lines if line.startswith("Environment=")]
    pairs = [each.removesuffix('"').partition("=") for each in given if each.startswith("STEADY")]
    return {name: text for name, _, text in pairs}


def test_the_folder_has_what_is_printed_for_the_first_pages_worker(tmp_path: Path) -> None:
    made = printed(tmp_path / "all", *BROKER, "--instances", "4")
    assert made == {path.name: path.read_text() for path in SHIPPED.iterdir()}


# --- The judgement of systemd's tools ---------------------------------------------------------------------------------


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


def test_systemd_has_no_complaint_about_the_units(analyze: str, tmp_path: Path) -> None:
    units = {path.name: path.read_text() for path in SHIPPED.iterdir()}
    assert complaints(analyze, tmp_path / "units", units) == ""


@pytest.mark.slow
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


@pytest.mark.parametrize("name", ["steadyworker@.service", "steadyworker-send.service"])
def test_units_expose_little(analyze: str, name: str) -> None:
    assert is_safe(analyze, SHIPPED / name)


def test_the_change_for_spark_exposes_little(analyze: str, tmp_path: Path) -> None:
    text = (SHIPPED / "steadyworker@.service").read_text()
    (tmp_path / "it@.service").write_text(f"{text}\n{SPARK}")
    assert is_safe(analyze, tmp_path / "it@.service")
    assert all(line in Page("deploy/README.md").section("systemd") for line in SPARK.splitlines()[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost", ["SystemCallFilter=@system-service", "CapabilityBoundingSet=", "PrivateUsers=yes", "User="]
)
def test_a_weakened_unit_exposes_too_much(analyze: str, tmp_path: Path, lost: str) -> None:
    lines = [*(SHIPPED / "steadyworker@.service").read_text().splitlines(), *SPARK.splitlines()]
    kept = [line for line in lines if not line.startswith(lost)]
    assert len(kept) < len(lines)
    if lost == "PrivateUsers=yes":  # it alone weighs little
        kept = [line for line in kept if not line.startswith(("PrivateTmp", "PrivateDevices"))]
    (tmp_path / "it@.service").write_text("\n".join(kept))
    assert not is_safe(analyze, tmp_path / "it@.service")


# --- Names and numbers ------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_worker_broker_and_settings(tmp_path: Path) -> None:
    always = {"StartLimitIntervalSec": "0", "TimeoutStartSec": "90", "RestartSec": "5"}
    assert seconds(unit(tmp_path / "a")) == {**always, "TimeoutStopSec": "30", "WatchdogSec": "90"}
    rabbitmq = unit(tmp_path / "b", "--broker", "amqp://localhost?heartbeat=120", "--stop-within", "2h")
    assert seconds(rabbitmq) == {**always, "TimeoutStopSec": "360", "WatchdogSec": "360"}
    assert environment(rabbitmq)["STEADYWORKER_STOP_WITHIN"] == "7200"


def test_the_reason_of_a_stop_names_what_happens_to_a_job(tmp_path: Path) -> None:
    text = printed(tmp_path / "a")["steadyworker@.service"]
    assert "at most 28 s (stop_within). Jobs may finish for 15 s; then they are interrupted" in text
    assert "# With stop_within = 10813 or more, every job can finish." in text


def test_the_name_is_that_of_units_user_and_folders(tmp_path: Path) -> None:
    files = printed(tmp_path / "a", "--name", "refunds", *BROKER)
    assert set(files) == {"refunds@.service", "refunds.target", "refunds-send.service", "refunds-send.timer"}
    text = files["refunds@.service"]
    assert "User=refunds\n" in text
    assert "LoadCredential=broker-url:/etc/refunds/broker-url\n" in text
    assert "ExecStart=/opt/refunds/venv/bin/steadyworker run exports:PaymentExports\n" in text
    assert not any(
        "steadyworker" in re.sub("bin/steadyworker|`steadyworker deploy", "", text) for text in files.values()
    )


def test_the_folder_can_be_elsewhere(tmp_path: Path) -> None:
    found = unit(tmp_path / "a", "--directory", "/srv/shop/")
    assert "ExecStart=/srv/shop/venv/bin/steadyworker run exports:PaymentExports" in found
    assert "Environment=PYTHONPATH=/srv/shop" in found


def test_a_target_starts_the_instances(tmp_path: Path) -> None:
    assert (
        "\nWants=steadyworker@1.service steadyworker@2.service\n"
        in printed(tmp_path / "a", "--instances", "2")["steadyworker.target"]
    )


def test_without_a_folder_all_files_are_printed() -> None:
    assert re.findall(r"^# (steadyworker\S+): `", deploy().stdout, re.MULTILINE) == [
        *("steadyworker-send.service", "steadyworker-send.timer", "steadyworker.target", "steadyworker@.service")
    ]


def test_every_reason_stands_above_its_line() -> None:
    """systemd would take it for a part of the value."""
    for path in SHIPPED.iterdir():
        for line in path.read_text().splitlines():
            assert line.startswith("#") or " #" not in line, f"{path.name}: {line}"


# --- Settings and secrets ---------------------------------------------------------------------------------------------


def test_the_unit_names_the_settings_file_and_has_the_stop_that_its_numbers_are_for(tmp_path: Path) -> None:
    (tmp_path / "steadyworker.toml").write_text('log_level = "warning"\nstop_within = 60\n')
    assert environment(unit(tmp_path / "a", env={"STEADYWORKER_MAX_RSS": "1 GiB"})) == {
        "STEADYWORKER_CONFIG": "/etc/steadyworker/steadyworker.toml",
        "STEADYWORKER_STOP_WITHIN": "60",
    }


@pytest.mark.parametrize(
    ("name", "url"),
    [("broker", "amqp://shop:hunter2@rabbitmq/shop"), ("ledger", "postgresql://shop:hunter2@ledger/shop")],
)
def test_a_url_is_never_in_a_unit(name: str, url: str) -> None:
    done = deploy(f"--{name}", url)
    assert done.exit_code == 0, done.output
    assert "hunter2" not in done.output
    assert done.output.count(f"\nLoadCredential={name}-url:/etc/steadyworker/{name}-url\n") == 2
    assert done.output.count(f"\nEnvironment=STEADYWORKER_{name.upper()}_FILE=%d/{name}-url\n") == 2


def test_a_url_of_the_settings_file_stays_there(tmp_path: Path) -> None:
    (tmp_path / "steadyworker.toml").write_text('broker = "amqp://shop:hunter2@rabbitmq"\n')
    text = printed(tmp_path / "a")["steadyworker@.service"]
    assert "LoadCredential" not in text
    assert "hunter2" not in text


def test_a_file_with_a_url_that_the_settings_file_names_is_given_to_the_unit(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("amqp://shop:hunter2@rabbitmq\n")
    (tmp_path / "steadyworker.toml").write_text(f'broker_file = "{tmp_path}/url"\n')
    text = printed(tmp_path / "a")["steadyworker@.service"]
    assert "\nLoadCredential=broker-url:/etc/steadyworker/broker-url\n" in text
    assert "hunter2" not in text


def test_a_settings_file_with_odd_characters_is_quoted(tmp_path: Path) -> None:
    odd = tmp_path / 'my "100%" set\\tings.toml'
    odd.write_text("stop_within = 60\n")
    lines = unit(tmp_path / "a", "--config", str(odd))
    assert r'Environment="STEADYWORKER_CONFIG=/etc/steadyworker/my \"100%%\" set\\tings.toml"' in lines
    done = deploy("--config", str(odd), "--output", str(tmp_path / "a"))
    (copied,) = (shlex.split(line) for line in done.stdout.splitlines() if "tings.toml" in line)
    assert copied[-2:] == [str(odd), "/etc/steadyworker/" + odd.name]


def test_systemd_reads_an_odd_name_as_it_is(analyze: str, tmp_path: Path) -> None:
    odd = tmp_path / "my 100% settings.toml"
    odd.touch()
    assert complaints(analyze, tmp_path / "units", printed(tmp_path / "a", "--config", str(odd), *BROKER)) == ""


@pytest.mark.parametrize("folder", ["/etc", "/run"])
def test_files_below_etc_and_run_are_used_where_they_are(tmp_path: Path, folder: str) -> None:
    given = load({"broker": "amqp://shop:hunter2@rabbitmq"}, {}, tmp_path)
    options = replace(given, config=Path(folder, "some/it.toml"), files={"broker": Path(folder, "some/url")})
    numbers = Numbers(stop_within=60, time_limit=60, broker_notices=0, lost_after=30)

    text = units(["exports:PaymentExports"], options, numbers, name="shop")["shop@.service"]

    assert f'Environment="STEADYWORKER_CONFIG={folder}/some/it.toml"\n' in text
    assert f"LoadCredential=broker-url:{folder}/some/url\n" in text


def test_a_url_of_a_file_needs_no_credential(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    done = deploy("--ledger", "sqlite:/srv/100%/ledger.db", "--output", str(tmp_path / "a"))
    assert "ledger-url" not in done.stdout
    text = (tmp_path / "a" / "steadyworker@.service").read_text()
    assert 'Environment="STEADYWORKER_LEDGER=sqlite:/srv/100%%/ledger.db"\n' in text
    assert "LoadCredential" not in text


@pytest.mark.parametrize("platform", ["systemd", "kubernetes"])
def test_settings_of_the_environment_that_are_not_printed_are_named_without_their_values(platform: str) -> None:
    given = {
        "STEADYWORKER_HEALTH": "8080",
        "STEADYWORKER_SPARK_MASTER": "sc://spark/;token=hunter2",
        "STEADYWORKER_STOP_WITHIN": "60",
        "STEADYWORKER_BROKER": "amqp://shop:hunter2@rabbitmq",
        "STEADYWORKER_LEDGER": "postgresql://shop:hunter2@ledger/shop",
    }
    done = CliRunner().invoke(verbs, ["deploy", platform, "exports:PaymentExports"], env=given)
    assert done.exit_code == 0, done.output
    assert done.stderr == (
        "warning: no printed file has STEADYWORKER_HEALTH, STEADYWORKER_SPARK_MASTER: "
        "set them in steadyworker.toml or in the printed files.\n"
    )
    assert "hunter2" not in done.output


def test_a_worker_that_is_named_by_its_file_is_named_by_its_module(tmp_path: Path) -> None:
    done = CliRunner().invoke(verbs, ["deploy", "systemd", "exports.py:PaymentExports"])
    assert done.exit_code == 0, done.output
    assert "steadyworker run exports:PaymentExports" in done.output
    assert "exports.py" not in done.output


def test_the_next_steps_name_what_the_units_need(tmp_path: Path) -> None:
    (tmp_path / "steadyworker.toml").write_text("stop_within = 60\n")
    (tmp_path / "units").mkdir()
    done = deploy("--output", str(tmp_path / "units"), "--name", "shop", *BROKER)
    assert done.output.partition("Next:\n")[2].splitlines() == [
        "  useradd --system --home-dir /var/lib/shop --shell /usr/sbin/nologin shop",
        f"  install -D --mode 0640 --group shop {tmp_path}/steadyworker.toml /etc/shop/steadyworker.toml",
        "  install -D --mode 0600 YOUR-FILE /etc/shop/broker-url    # one line: the URL of the broker",
        "  systemctl daemon-reload",
        "  systemctl enable --now shop.target",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--name", "Steady Worker"), "lower-case letters"),
        (("--name", "shop-"), "lower-case letters, digits and hyphens, first a letter and last no hyphen"),
        (("--directory", "shop"), "an absolute path"),
        (("--directory", "/srv/my shop"), "an absolute path of letters"),
    ],
)
def test_what_no_unit_can_have_is_refused(arguments: Sequence[str], expected: str) -> None:
    done = deploy(*arguments)
    assert done.exit_code == 64, done.output
    assert f"Expected {expected}" in done.output.replace("up to 31 ", "")


def test_the_page_on_timers_shows_units_that_systemd_accepts(analyze: str, tmp_path: Path) -> None:
    """The program of its service is on no machine of the tests; everything else has to be right."""
    page = Page("examples/cron/README.md").files()
    units = {name: page[name] for name in ("nightly.service", "nightly.timer")}
    assert complaints(analyze, tmp_path / "units", units) == ""


def test_the_command_of_the_page_on_timers_sends_a_job_whose_key_has_the_day(tmp_path: Path) -> None:
    service = Page("examples/cron/README.md").files()["nightly.service"]
    (line,) = [line for line in service.splitlines() if line.startswith("ExecStart=")]
    _, _, script = shlex.split(line.removeprefix("ExecStart="))
    (tmp_path / "nightly.json").write_text('{"merchant": "m"}')
    (tmp_path / "venv").symlink_to(Path(sys.prefix))
    command = ["sh", "-c", script.replace("$$", "$").replace("%%", "%")]
    environ = {**os.environ, "STEADYWORKER_STATE_DIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"nightly-\d{4}-\d\d-\d\d\n", done.stdout)
