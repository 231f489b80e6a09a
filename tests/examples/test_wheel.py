"""The wheel in environments of its own: on each Python that it is for, alone and with each extra."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT

# What only works with the extra: imported when it is there.
NEEDS = {
    "rabbitmq": "steadyworker_rabbitmq.adapter",
    "stomp": "steadyworker_stomp.adapter",
    "rocketmq-grpc": "steadyworker_rocketmq.grpc.adapter",
    "postgres": "steadyworker.ledger.postgres.ledger",
    "metrics": "prometheus_client",
    "otel": "opentelemetry.trace",
    "dashboard": "uvicorn",
    "top": "textual",
    "exports": "pyarrow",
    "xlsx": "xlsxwriter",
    "duckdb": "duckdb",
    "trace": "pamqp",
    "pcap": "pcapy",
    "spark": "pyspark",
    "spark-connect": "pyspark.sql.connect.session",
}

APP = """
from pathlib import Path
from steadyworker import Worker

class Hello(Worker[str]):
    queue = "hello"
    time_limit = 60

    def handle(self, job):
        Path(job.key).write_text(f"hello {job.payload}")
"""


def interpreter(version: str) -> str:
    """Return a Python of this version; skip the test if there is none."""
    folders = [
        *os.environ.get("PATH", "").split(os.pathsep),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin")),
    ]
    for folder in folders:
        found = shutil.which(f"python{version}", path=folder)
        if (
            found
            and subprocess.run([found, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode
            == 0
        ):
            return found
    pytest.skip(f"no Python {version} here")


def run(*command: object, folder: Path, **environment: str) -> str:
    """Run a command in an empty environment, and return what it prints."""
    kept = {
        name: os.environ[name]
        for name in os.environ
        if name in ("PATH", "HOME") or name.startswith(("PIP_", "SSL_", "REQUESTS_"))
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, "STEADYWORKER_STATE_DIR": str(folder / "state"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_runs_on_every_python_alone_and_with_each_extra(version: str, tmp_path: Path) -> None:
    """From the package index that pip uses here; the extras come one after the other into the same environment."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) == set(NEEDS)
    run(interpreter(version), "-m", "venv", "env", folder=tmp_path)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, folder=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    (tmp_path / "app.py").write_text(APP)
    program = tmp_path / "env/bin/steadyworker"

    def job(key: str) -> None:
        assert run(program, "send", "app:Hello", '"you"', "--key", key, folder=tmp_path) == f"{key}\n"
        run(program, "run", "app:Hello", "--max-jobs", "1", folder=tmp_path)
        assert (tmp_path / key).read_text() == "hello you"

    python = tmp_path / "env/bin/python"
    run(python, "-m", "pip", "install", "--quiet", wheel, folder=tmp_path)
    job("alone")
    for extra, module in NEEDS.items():
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]", folder=tmp_path)
        run(python, "-c", f"import {module}", folder=tmp_path)
        job(extra)
    assert "[Service]" in run(
        program, "deploy", "systemd", "app:Hello", folder=tmp_path
    )  # its template is in the wheel
