"""
The printed units, run by systemd itself: as the first process of namespaces, on an overlay of this machine (`manager.py`).

That is systemd as PID 1, with the whole hardening of the units, on the cgroups that this machine has.
Where these are version 1, the kernel's memory limit works, but systemd does not notice a kill; `OOMPolicy` then has no effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from steadyworker.cli import verbs
from tests.deploy.manager import CODE, Manager, lacking
from tests.examples.pages import Page, difference
from tests.support.probes import free_address
from tests.support.stage import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TARGET = "machine_jobs:Jobs"
MODULE = Path(__file__).with_name("machine_jobs.py")
ONE = "steadyworker@1.service"
STATE = "/var/lib/steadyworker"


class Machine(Manager):
    """A machine with the Worker's module, its user, and the units that `steadyworker deploy` prints for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write(f"{CODE}/{MODULE.name}", MODULE.read_text())
        made = self.run("useradd", "--system", "--home-dir", STATE, "--shell", "/usr/sbin/nologin", "steadyworker")
        assert made.returncode == 0, made.stderr

    def deploy(self, *arguments: str) -> None:
        folder = Path(f"/proc/{self.pid}/root/etc/systemd/system")
        done = CliRunner().invoke(verbs, ["deploy", "systemd", TARGET, "--output", str(folder), *arguments])
        assert done.exit_code == 0, done.output
        self.systemctl("daemon-reload")

    def start(self) -> None:
        self.systemctl("start", ONE)
        self.logs("worker_started")

    def logs(self, text: str, times: int = 1) -> None:
        eventually(lambda: self.journal().count(text) >= times, f"{text} ×{times}", 60, self.journal)

    def send(self, payload: str, key: str) -> None:
        """Send a job as the unit's user, as an operator does."""
        command = (
            f"cd {STATE} && exec {CODE}/venv/bin/steadyworker send jobs '{payload}' --key {key} --state-dir {STATE}"
        )
        done = self.run("runuser", "-u", "steadyworker", "--", "sh", "-c", command)
        assert done.returncode == 0, done.stderr

    def notes(self, file: str) -> list[str]:
        path = self.path(f"{STATE}/{file}")
        return path.read_text().splitlines() if path.exists() else []

    def noted(self, file: str, line: str) -> None:
        eventually(lambda: line in self.notes(file), f"{line} in {file}", 60, self.journal)

    def reaches(self, name: str, *values: str, unit: str = ONE) -> None:
        eventually(lambda: self.show(unit, name) in values, f"{name} is one of {values}", 60, self.journal)


@pytest.fixture
def able() -> None:
    """This machine can run systemd in namespaces."""
    if missing := lacking():
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)


@pytest.fixture
def machine(able: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.syspath_prepend(str(MODULE.parent))
    made = Machine(tmp_path)
    yield made
    made.close()


def test_a_unit_starts_while_its_broker_is_down_and_reads_a_rotated_url_at_its_next_start(machine: Machine) -> None:
    """The URLs come from a file that only root can read; neither they nor their passwords are in a unit or in the journal."""
    secret = machine.path("/etc/steadyworker/broker-url")
    first, second = free_address(), free_address()
    machine.write("/etc/steadyworker/broker-url", f"amqp://shop:first-secret@{first}/\n")
    secret.chmod(0o600)
    machine.deploy("--broker", "amqp://rabbitmq.example")
    machine.drop_in("steadyworker@.service", Environment="STEADYWORKER_LEDGER_REACH=host")
    machine.systemctl("start", ONE)
    assert machine.show(ONE, "ActiveState") == "active"
    machine.logs(f"{first.rpartition(':')[2]}")
    assert machine.show(ONE, "NRestarts") == "0"

    secret.write_text(f"amqp://shop:second-secret@{second}/\n")
    machine.systemctl("restart", ONE)
    assert machine.show(ONE, "ActiveState") == "active"
    machine.logs(f"{second.rpartition(':')[2]}")
    shown = machine.systemctl("show", ONE) + machine.systemctl("cat", ONE) + machine.journal()
    assert "secret" not in shown.replace("LoadCredential", "")


@pytest.mark.parametrize(
    ("settings", "state", "ends"),
    [
        ({}, "inactive", ["long"]),
        ({"Type": "exec", "NotifyAccess": "none"}, "inactive", ["long"]),  # a watchdog makes systemd listen again
        ({"Type": "exec", "NotifyAccess": "none", "WatchdogSec": "0"}, "failed", []),
    ],
    ids=["notify", "watchdog", "deaf"],
)
def test_a_drain_can_exceed_timeoutstopsec_because_the_process_asks_for_more_time(
    machine: Machine, settings: dict[str, str], state: str, ends: list[str]
) -> None:
    """A systemd that does not listen kills the job."""
    machine.deploy("--stop-within", "40")
    machine.drop_in("steadyworker@.service", TimeoutStopSec="3", **settings)
    machine.start()
    machine.send('{"seconds": 10}', "long")
    machine.noted("starts", "long")
    machine.systemctl("stop", ONE)
    assert machine.show(ONE, "ActiveState") == state
    assert machine.notes("ends") == ends


def test_a_watchdog_ends_a_process_whose_io_thread_is_frozen_but_none_that_is_busy(machine: Machine) -> None:
    machine.deploy()
    machine.drop_in("steadyworker@.service", WatchdogSec="4", Environment="CAN_FREEZE=1")
    machine.start()
    machine.send('{"seconds": 12}', "busy")
    machine.noted("ends", "busy")
    assert machine.show(ONE, "NRestarts") == "0"

    machine.path(f"{STATE}/freeze").touch()
    machine.reaches("NRestarts", "1")
    machine.logs("worker_started", 2)
    journal = machine.journal()
    assert '"event":"part_stuck"' in journal
    assert "I/O thread of jobs" in journal
    assert "Watchdog timeout" in journal
    assert "Fatal Python error: Aborted" in journal, "the stacks of its threads"
    assert "_turn_or_freeze" in journal
    machine.send("{}", "next")
    machine.noted("ends", "next")


def test_a_job_that_runs_out_of_memory_ends_alone(machine: Machine) -> None:
    machine.deploy()
    machine.drop_in("steadyworker@.service", MemoryMax="200M")
    machine.start()
    main = machine.show(ONE, "MainPID")
    machine.send('{"megabytes": 400}', "hungry")
    machine.noted("ends", "hungry")
    assert machine.notes("starts") == ["hungry", "hungry"], "the second run follows the kill of the first"
    assert machine.notes("survived") == []
    assert machine.show(ONE, "MainPID") == main
    assert machine.show(ONE, "NRestarts") == "0"
    assert machine.show(ONE, "ActiveState") == "active"


@pytest.mark.parametrize(("prevented", "restarts"), [("78", False), ("", True)])
def test_a_wrong_setting_does_not_make_a_unit_restart_again_and_again(
    machine: Machine, prevented: str, restarts: bool
) -> None:
    machine.deploy()
    machine.drop_in(
        "steadyworker@.service",
        Environment="STEADYWORKER_STOP_WITIN=9",
        RestartSec="100ms",
        RestartPreventExitStatus=prevented,
    )
    machine.run("systemctl", "start", ONE)
    if restarts:  # without the line, the drill would see it
        eventually(lambda: int(machine.show(ONE, "NRestarts")) >= 2, "it restarts", 30, machine.journal)
        return
    machine.reaches("ActiveState", "failed")
    assert machine.show(ONE, "ExecMainStatus") == "78"
    assert machine.show(ONE, "NRestarts") == "0"
    assert machine.journal().count("did you mean STEADYWORKER_STOP_WITHIN?") == 1


@pytest.mark.parametrize(("mode", "signals"), [("mixed", ["started"]), ("control-group", ["started", "TERM"])])
def test_a_program_of_a_job_may_finish_while_the_unit_stops(machine: Machine, mode: str, signals: list[str]) -> None:
    machine.deploy("--stop-within", "40")
    machine.drop_in("steadyworker@.service", KillMode=mode)
    machine.start()
    machine.send('{"program": 6}', "program")
    machine.noted("signals", "started")
    machine.systemctl("stop", ONE)
    assert machine.notes("ends") == ["program"]
    assert machine.notes("signals") == signals


@pytest.mark.parametrize(("success", "state"), [("143", "inactive"), ("", "failed")])
def test_a_stop_that_has_to_kill_a_job_leaves_no_failed_unit(machine: Machine, success: str, state: str) -> None:
    machine.deploy("--stop-within", "4")
    machine.drop_in("steadyworker@.service", SuccessExitStatus=success)
    machine.start()
    machine.send('{"deaf": 60}', "deaf")
    machine.noted("deaf", "deaf")
    machine.systemctl("stop", ONE)
    assert '"exit_code":143' in machine.journal()
    assert machine.show(ONE, "ActiveState") == state
    assert machine.notes("ends") == []


def test_a_target_runs_several_processes_and_a_timer_sends_one_job_a_day(machine: Machine) -> None:
    """The payload arrives as it is in its file, although units, shells and JSON give its characters a meaning."""
    text = "50% of $HOME's \\\\ `x`"
    machine.deploy("--instances", "2")
    machine.write("/etc/steadyworker/daily.json", f'{{"text": "{text}"}}\n')
    machine.path("/etc/steadyworker/daily.json").chmod(0o600)
    machine.systemctl("enable", "--now", "steadyworker.target", "steadyworker-send.timer")
    machine.logs("worker_started", 2)
    assert "02:30:00" in machine.systemctl("show", "--property=TimersCalendar", "steadyworker-send.timer")
    for _ in range(2):
        machine.systemctl("start", "steadyworker-send.service")
    eventually(lambda: machine.notes("ends"), "it runs", 60, machine.journal)
    (line,) = machine.notes("ends")
    key, _, arrived = line.partition(" ")
    assert key.startswith("steadyworker-20")
    assert arrived == text.replace("\\\\", "\\")

    machine.systemctl("stop", "steadyworker.target")
    for number in (1, 2):
        machine.reaches("ActiveState", "inactive", unit=f"steadyworker@{number}.service")


def test_a_unit_that_hides_the_id_of_the_boot_does_not_start(machine: Machine) -> None:
    """So no printed unit has this line, which would lower its exposure."""
    machine.deploy()
    machine.drop_in("steadyworker@.service", ProcSubset="pid", Restart="no")
    machine.run("systemctl", "start", ONE)
    machine.reaches("ActiveState", "failed")


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_spark_export_runs_in_the_unit_with_the_change_for_spark_and_not_without_it(machine: Machine) -> None:
    """Java compiles at run time, for which it needs memory that it may both write and execute."""
    machine.deploy()
    machine.drop_in("steadyworker@.service", MemoryDenyWriteExecute="no", SystemCallFilter="@resources")
    machine.start()
    machine.send('{"spark": "SELECT id FROM range(3)"}', "export")
    eventually(lambda: machine.notes("ends"), "the export ends", 400, machine.journal)
    assert machine.path(f"{STATE}/export.csv").read_text().split() == ["id", "0", "1", "2"]

    machine.systemctl("stop", ONE)
    machine.drop_in("steadyworker@.service")
    machine.start()
    machine.send('{"spark": "SELECT id FROM range(4)"}', "other")
    eventually(lambda: "other" in machine.notes("failures"), "it fails", 400, machine.journal)


# --- The page ---------------------------------------------------------------------------------------------------------

NOT_TYPED = {
    "python3 -m venv ": "the machine has a command of this name already, and an environment takes a minute",
    "/opt/steadyworker/venv/bin/pip ": "test_install.py types this line for the first page",
}
"""Commands of the page that are not typed here, by their beginning, and why."""
MARK = "\x1e"


def test_the_page_leads_to_two_supervised_worker_processes(able: None, tmp_path: Path) -> None:
    page = Page("deploy/README.md")
    commands = page.commands(lambda heading: heading == "systemd")
    typed = [command for command in commands if not command.text.startswith(tuple(NOT_TYPED))]
    assert len(commands) - len(typed) == len(NOT_TYPED)
    machine = Manager(tmp_path)
    try:
        machine.write("/root/exports.py", Page("README.md").files()["exports.py"])
        script = "cd /root\n" + "".join(f"{command.text}\nprintf '{MARK}%s{MARK}' $?\n" for command in typed)
        done = machine.run("bash", "-c", f"exec 2>&1\n{script}", env={"HOME": "/root"})
        outputs = done.stdout.split(MARK)
        wrong = [
            f"$ {command.text}\nended with {code}:\n{difference(command.shown, output) or output}"
            for command, output, code in zip(typed, outputs[::2], outputs[1::2], strict=False)
            if code != "0" or difference(command.shown, output)
        ]
        assert not wrong, "\n\n".join(wrong)
        assert len(outputs) == 2 * len(typed) + 1, outputs
        eventually(lambda: machine.show(ONE, "ActiveState") == "active", "it runs", 20, machine.journal)
    finally:
        machine.close()
