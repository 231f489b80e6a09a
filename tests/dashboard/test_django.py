"""The page in a Django project, which the example shows: only its staff may read the page, and an action has the user's name."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from tests.brokers.process import free_ports
from tests.conftest import Eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
USERS = """
import web_django_page
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

call_command("migrate", verbosity=0)
for name, is_staff in (("ann", True), ("bob", False)):
    client = Client()
    client.force_login(User.objects.create_user(name, is_staff=is_staff))
    print(client.cookies["sessionid"].value)
"""


@pytest.mark.processes
def test_the_staff_of_a_django_project_reads_the_page(tmp_path: Path, eventually: Eventually) -> None:
    url = f"sqlite:{tmp_path}/ledger.db"
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=SystemClock(), times=Times())) as ledger:
        ledger.bind("shop", "exports", "shop")
    environ = {**os.environ, "DJANGO_DB": str(tmp_path / "django.db"), "STEADYWORKER_LEDGER": url}
    done = subprocess.run(
        [sys.executable, "-c", USERS], cwd=EXAMPLES, env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    ann, bob = done.stdout.split()
    (port,) = free_ports(1)

    def get(path: str, session: str = "") -> tuple[int, str, HTTPResponse]:
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("GET", path, headers={"Cookie": f"sessionid={session}"})
            answered = connection.getresponse()
            return answered.status, answered.read().decode(), answered

    def serves() -> bool:
        try:
            return get("/")[:2] == (200, "Django")
        except ConnectionError:
            return False

    command = [sys.executable, "-m", "uvicorn", "web_django_page:application", "--port", str(port)]
    with subprocess.Popen(command, cwd=EXAMPLES, env=environ) as server:
        try:
            eventually(serves)
            for session in ("", "forged", bob):
                status, _, answered = get("/jobs/queues", session)
                assert (status, answered.getheader("location")) == (307, "/login/")
            status, text, answered = get("/jobs/queues", ann)
            assert (status, "exports" in text, 'href="/jobs/workers"' in text) == (200, True, True)
            assert "You are ann" in text
            assert answered.getheader("x-frame-options") == "DENY"
            assert get("/", ann)[:2] == (200, "Django")
        finally:
            server.terminate()
