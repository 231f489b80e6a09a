"""The images, built and started; the locks and the compose file, judged."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from runpy import run_path
from typing import Any, TypeVar

import pytest
import yaml  # type: ignore[import-untyped]

from steadyworker.lifecycle import EXIT_TAKES
from steadyworker.units import parse_seconds
from tests.brokers.install import MissingError
from tests.brokers.rabbitmq import Vhost
from tests.conftest import Eventually
from tests.deploy.containers import CONTAINER, ROOT, Engine
from tests.deploy.judges.environment import missing
from tests.deploy.test_kubernetes import judged, worker_of
from tests.examples.pages import Page
from tests.support.probes import free_address, probe

pytestmark = pytest.mark.processes

SLIM, SPARK, APP = "localhost/sw-test:slim", "localhost/sw-test:spark", "localhost/sw-test:app"
Test = TypeVar("Test", bound=Callable[..., None])
STATE = ("--tmpfs", "/var/lib/steadyworker:rw,mode=0700,U", "--tmpfs", "/tmp", "--tmpfs", "/app/out:rw,U")


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text(encoding="utf-8"))
    return found


# --- Locks ----------------------------------------------------------------------------------------------------------


def test_the_locks_of_the_images_are_lines_of_requirements_lock() -> None:
    locks = run_path(str(CONTAINER / "lock.py"))["locks"]()
    assert {path.name: path.read_text(encoding="utf-8") for path in CONTAINER.glob("*.lock")} == locks, "make lock"
    whole = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    for name, text in locks.items():
        lines = text.splitlines()[1:]
        assert set(lines) <= {*whole, *(line.removesuffix(" \\") for line in whole)}, name
        assert all("--hash=sha256:" in block for block in text.split("==")[1:]), name
    assert "\npika==" in locks["slim.lock"]
    assert "\npytest==" not in locks["slim.lock"]
    assert "\npyspark==" in locks["spark.lock"]


# --- Compose --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_compose_file_keeps_to_its_schema(tmp_path: Path) -> None:
    text = (CONTAINER / "compose.yaml").read_text(encoding="utf-8")
    assert judged(tmp_path, text) == []
    (found,) = judged(tmp_path, text.replace("stop_grace_period", "stop_grace"))
    assert "'stop_grace' does not match" in found
    (found,) = judged(tmp_path, text.replace("cap_drop: [ALL]", "cap_drop: ALL"))
    assert "'ALL' is not of type 'array'" in found


def test_the_compose_file_gives_a_worker_the_time_of_its_stop() -> None:
    worker = compose()["services"]["worker"]
    stop = float(worker["environment"]["STEADYWORKER_STOP_WITHIN"])
    assert parse_seconds(worker["stop_grace_period"]) == stop + EXIT_TAKES
    assert worker["deploy"]["replicas"] == 2
    assert (worker["user"], worker["read_only"], worker["cap_drop"]) == ("10001:10001", True, ["ALL"])


def test_every_secret_of_the_compose_file_is_a_file_that_the_script_writes(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    script = [str(CONTAINER / "secrets.sh"), str(folder)]
    subprocess.run(script, check=True)
    written = {path.name: path.read_text() for path in folder.iterdir()}
    asked = {Path(each["file"]).name for each in compose()["secrets"].values()}
    assert written.keys() == asked
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    password = written["postgres-password"].strip()
    assert len(password) == 32
    assert f":{password}@postgres:5432/jobs" in written["ledger-url"]
    assert written["rabbitmq.conf"].split()[-1] in written["broker-url"]
    assert password not in written["broker-url"]
    again = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (again.returncode, "exists" in again.stderr) == (1, True)
    whole = (CONTAINER / "compose.yaml").read_text()
    assert not any(word in whole for word in (password, "guest"))


# --- Images ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return Engine()
    except MissingError as error:
        missing(error)


@pytest.fixture(scope="module")
def slim(engine: Engine) -> str:
    """The image with SteadyWorker."""
    engine.build("slim", SLIM)
    return SLIM


@pytest.fixture(scope="module")
def app(engine: Engine, slim: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image with the first page's Worker."""
    folder = tmp_path_factory.mktemp("app")
    (folder / "exports.py").write_text(Page("README.md").files()["exports.py"], encoding="utf-8")
    engine.build(slim, APP, app=folder)
    return APP


def slow(test: Test) -> Test:
    """Mark a test that builds images: minutes the first time, seconds later."""
    for mark in (pytest.mark.slow, pytest.mark.timeout(1200)):
        test = mark(test)
    return test


def faults(engine: Engine, image: str) -> list[str]:
    """What an image has that it must not have, and what it lacks."""
    script = "for each in gcc cc make ld pip pip3; do command -v $each; done; python3 -c 'import pip' && echo pip; touch /x && echo /x"
    found = engine.run(image, "-c", script, options=["--entrypoint", "sh"]).stdout.split()
    (config,) = json.loads(engine.podman("image", "inspect", image))
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", config["User"]):
        found.append(f"the user {config['User']!r}")
    if config["Config"]["Entrypoint"] != ["/usr/bin/tini", "--", "steadyworker"]:
        found.append(f"the entry point {config['Config']['Entrypoint']}")
    return found


@slow
def test_the_image_has_neither_a_compiler_nor_pip_and_its_user_is_a_number(engine: Engine, slim: str, app: str) -> None:
    assert faults(engine, slim) == []
    assert faults(engine, app) == []


@slow
def test_planted_faults_of_an_image_are_found(engine: Engine, slim: str, tmp_path: Path) -> None:
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    lines = [f"FROM {slim}", "COPY gcc /usr/bin/gcc", "USER daemon", 'ENTRYPOINT ["steadyworker"]']
    (tmp_path / "Containerfile").write_text("\n".join(lines))
    engine.build_file(tmp_path, "localhost/sw-test:planted")
    assert faults(engine, "localhost/sw-test:planted") == [
        "/usr/bin/gcc",
        "the user 'daemon'",
        "the entry point ['steadyworker']",
    ]


@slow
def test_the_image_has_the_locked_versions_and_the_adapters(engine: Engine, slim: str) -> None:
    program = "from importlib.metadata import distributions as d; print(*sorted(f'{e.name}=={e.version}' for e in d()))"
    done = engine.run(slim, "-c", program, options=["--entrypoint", "/opt/steadyworker/bin/python"])
    locked = {line.split()[0] for line in (CONTAINER / "slim.lock").read_text().splitlines() if "==" in line}
    found = {each.lower().replace("_", "-").replace("stomp.py", "stomp-py") for each in done.stdout.split()}
    assert {each for each in found if not each.startswith("steadyworker==")} == locked
    assert "amqps" in engine.run(slim, "adapters").stdout


@slow
def test_a_job_runs_in_a_container_that_may_write_to_two_folders_only(engine: Engine, app: str) -> None:
    story = 'steadyworker send exports:PaymentExports \'{"merchant": "m"}\' --key k && steadyworker run exports:PaymentExports --max-jobs 1'
    done = engine.run(app, "-c", story, options=["--entrypoint", "sh", *STATE])
    assert done.returncode == 0, done.stderr
    (settled,) = [json.loads(line) for line in done.stderr.splitlines() if '"event":"job_settled"' in line]
    assert (settled["key"], settled["outcome"], settled["seconds"] > 1) == ("k", "done", True)


@pytest.fixture
def started(engine: Engine, app: str) -> Iterator[Any]:
    """Start containers that go on, and end them."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        name = f"sw-test-{len(processes)}"
        engine.podman("rm", "--force", "--ignore", name)
        command = engine.command(app, arguments, "--name", name, *options)
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        return processes[-1]

    yield start
    for number, process in enumerate(processes):
        engine.podman("rm", "--force", "--ignore", "--time", "0", f"sw-test-{number}")
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()


@slow
def test_a_container_is_probed_and_stops_by_sigterm_within_its_grace(
    engine: Engine, started: Any, eventually: Eventually
) -> None:
    health = free_address()
    process = started("run", "exports:PaymentExports", "--health", health, options=STATE)
    eventually(lambda: probe(health, "readyz")[0] == 200)
    assert "steadyworker_ready 1.0" in probe(health, "metrics")[1]
    assert engine.podman("exec", "sw-test-0", "cat", "/proc/1/comm").strip() == "tini"
    engine.podman("kill", "--signal", str(int(signal.SIGTERM)), "sw-test-0")
    assert process.wait(30) == 0
    assert process.stderr is not None
    assert b'"reasons":["SIGTERM"]' in process.stderr.read()


def as_printed(text: str, folder: Path, **settings: str) -> tuple[list[str], list[str]]:
    """The arguments of a manifest's container, and podman's options for its pod; a volume is as the kubelet makes it."""
    pod, container, variables = worker_of(text)
    mounts = {each["name"]: (each["mountPath"], each.get("readOnly", False)) for each in container["volumeMounts"]}
    options = ["--user", f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"]
    for volume in pod["volumes"]:
        place, path = mounts[volume["name"]], folder / volume["name"]
        path.mkdir(exist_ok=True)
        if "emptyDir" in volume:
            os.chown(path, 0, pod["securityContext"]["fsGroup"])
            path.chmod(0o2777)
        options += ["--volume", f"{path}:{place[0]}{':ro' if place[1] else ''}"]
    for name, value in (variables | settings).items():
        options += ["--env", f"{name}={value}"]
    return container["args"], options


@slow
@pytest.mark.rabbitmq
@pytest.mark.postgres
def test_the_pods_of_the_manifests_run_as_they_are_printed(
    engine: Engine, started: Any, eventually: Eventually, vhost: Vhost, database: str, desk: Path
) -> None:
    """The kubelet's volumes, the printed user, variables and arguments: one pod that stays, and one that ends after its message."""
    secrets, health = desk / "secrets", free_address()
    secrets.mkdir()
    for name, text in {"broker-url": vhost.url, "ledger-url": database}.items():
        (secrets / name).write_text(text)
        os.chown(secrets / name, 0, 10001)
        (secrets / name).chmod(0o440)
    desk.chmod(0o755)
    stays = (ROOT / "deploy/kubernetes/base/worker.yaml").read_text()
    arguments, options = as_printed(stays, desk, STEADYWORKER_HEALTH=health)
    process = started(*arguments, options=tuple(options))
    eventually(lambda: probe(health, "readyz")[0] == 200)
    send(desk, vhost.url, database, "first")
    done = 'steadyworker_jobs_settled_total{outcome="done",queue="payment-exports",settlement="ack"} 1.0'
    eventually(lambda: done in probe(health, "metrics")[1])
    assert (desk / "data-0/first/2.csv").exists()
    engine.podman("kill", "--signal", "TERM", "sw-test-0")
    assert process.wait(30) == 0

    ends = (ROOT / "deploy/kubernetes/overlays/scaled-job/scaled-job.yaml").read_text()
    arguments, options = as_printed(ends.replace('"60"', '"2"'), desk, STEADYWORKER_HEALTH=health)
    for key in ("second", "third"):
        send(desk, vhost.url, database, key)
    for left in (1, 0):
        assert engine.run(APP, *arguments, options=options).returncode == 0
        assert [(desk / f"data-0/{key}/2.csv").exists() for key in ("second", "third")].count(False) == left
    empty = engine.run(APP, *arguments, options=options)
    assert empty.returncode == 0
    assert '"reasons":["--idle-exit: idle for 2 s"]' in empty.stderr


def send(desk: Path, broker: str, ledger: str, key: str) -> None:
    """Send a job of three pages from outside."""
    command = [
        sys.executable,
        "-m",
        "steadyworker",
        "send",
        "exports:PaymentExports",
        '{"merchant": "m"}',
        "--key",
        key,
    ]
    environ = {"STEADYWORKER_BROKER": broker, "STEADYWORKER_LEDGER": ledger}
    subprocess.run(command, cwd=desk, env=environ, check=True)


@slow
@pytest.mark.rabbitmq
@pytest.mark.postgres
def test_two_containers_share_the_jobs_of_a_queue(
    started: Any, eventually: Eventually, vhost: Vhost, database: str, desk: Path
) -> None:
    """As in compose.yaml: URLs as files, the ledger in PostgreSQL, the jobs sent from outside."""
    for name, text in {"broker-url": vhost.url, "ledger-url": database}.items():
        (desk / name).write_text(text)
        (desk / name).chmod(0o644)
    desk.chmod(0o755)
    places = {"STEADYWORKER_BROKER_FILE": "broker-url", "STEADYWORKER_LEDGER_FILE": "ledger-url"}
    files = [part for name in places.values() for part in ("--volume", f"{desk / name}:/run/secrets/{name}:ro")]
    files += [part for name, file in places.items() for part in ("--env", f"{name}=/run/secrets/{file}")]
    environ = {name: str(desk / file) for name, file in places.items()}
    healths = [free_address(), free_address()]
    for health in healths:
        started("run", "exports:PaymentExports", "--health", health, options=(*STATE, *files))
    eventually(lambda: all(probe(health, "readyz")[0] == 200 for health in healths))
    jobs = [{"payload": {"merchant": f"m-{number}", "pages": 2}} for number in range(6)]
    (desk / "jobs.jsonl").write_text("".join(f"{json.dumps(job)}\n" for job in jobs))
    send = [sys.executable, "-m", "steadyworker", "send", "exports:PaymentExports", "--file", "jobs.jsonl"]
    subprocess.run(send, cwd=desk, env=environ, check=True)
    done = 'steadyworker_jobs_settled_total{outcome="done",queue="payment-exports",settlement="ack"} '

    def counts() -> list[float]:
        pages = [probe(health, "metrics")[1] for health in healths]
        return [float(page.partition(done)[2].split("\n")[0] or 0) for page in pages]

    eventually(lambda: sum(counts()) == 6)
    assert all(counts()), "each of them had some"


@slow
def test_the_image_with_spark_has_java_and_both_are_found(engine: Engine) -> None:
    engine.build("spark", SPARK)
    program = "from pyspark.sql import SparkSession as S; s = S.builder.master('local[1]').getOrCreate(); print(s.range(7).count())"
    done = engine.run(
        SPARK, "-c", program, options=["--entrypoint", "/opt/steadyworker/bin/python", "--memory", "2g", *STATE]
    )
    assert done.stdout.strip().endswith("7"), done.stderr
    user = engine.run(SPARK, "-c", "id -u; command -v gcc pip", options=["--entrypoint", "sh"])
    assert user.stdout == "10001\n"
