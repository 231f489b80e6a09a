"""The operator's drill from the page alone: it names each trouble of real worker processes, and its buttons end what a person can end."""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from steadyworker.backends.opening import open_ledger
from steadyworker.config.resolve import load
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.application import application
from steadyworker.ledger.base import State
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.dashboard.kit import served
from tests.faults.proxy import Proxy
from tests.fleet.screens import waits
from tests.fleet.test_drill_screens import NEEDS as NEEDS_OF_JOBS
from tests.fleet.test_drill_screens import SECRET, TROUBLES, Night, go_wrong, has_needs, has_troubles, stage
from tests.support.stage import eventually

__all__ = ["stage"]

TOKEN = "a-token-of-many-characters"
NOTICE = re.compile(
    r'<li class="notice (\w+)">.*?<span class="kind">([^<]*)</span>.*?<a class="what[^>]*href="([^"]*)">([^<]*)</a>',
    re.DOTALL,
)


class Operator:
    """A person with a browser, and nothing else."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._login = {"Authorization": f"Basic {b64encode(f'ann:{TOKEN}'.encode()).decode()}"}

    def get(self, path: str = "/") -> str:
        return self._request("GET", path)[1]

    def notices(self) -> dict[str, tuple[str, str]]:
        """For each host or job on the first page: what is wrong, and the address."""
        return {
            html.unescape(what).partition(":")[0]: (kind, path) for _, kind, path, what in NOTICE.findall(self.get())
        }

    def press(self, path: str, button: str, **fields: str) -> str:
        """Press the button, and return the text of the result."""
        (act,) = re.findall(f'name="act" value="({button} [^"]*)"', self.get(path))
        location, _ = self._request("POST", "/act", {"act": html.unescape(act), **fields})
        found = re.findall('<p id="did"[^>]*>(.*?)</p>', self.get(location), re.DOTALL)
        return html.unescape(re.sub("<[^>]+>", "", "".join(found)))

    def _request(self, method: str, path: str, form: dict[str, str] | None = None) -> tuple[str, str]:
        headers = self._login | (
            {} if form is None else {"Content-Type": "application/x-www-form-urlencoded", "Origin": self._url}
        )
        with closing(HTTPConnection(urlsplit(self._url).netloc, timeout=60)) as connection:
            connection.request(method, path, None if form is None else urlencode(form), headers)
            answered = connection.getresponse()
            text = answered.read().decode()
            assert answered.status in (200, 303), text
            return answered.getheader("location", ""), text


def kinds(person: Operator) -> dict[str, str]:
    return {what: kind for what, (kind, _) in person.notices().items()}


def words(page: str) -> str:
    """Return what a reader sees, on one line."""
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", page)).split())


def assert_texts(page: str, *patterns: str) -> None:
    assert [pattern for pattern in patterns if not re.search(pattern, page)] == [], page


@contextmanager
def operator(stage: Night) -> Iterator[Operator]:
    options = load({}, stage.environment(), Path.cwd())
    access = checked_access(token=TOKEN, acting=True)
    with served(application(open_ledger(options), access, acting=options)) as url:
        yield Operator(url)


@pytest.mark.timeout(300)
def test_the_page_alone_names_each_trouble_and_ends_what_a_person_can_end(
    stage: Night, rabbitmq_place: RabbitmqPlace
) -> None:
    with Proxy(rabbitmq_place.address()) as proxy, operator(stage) as ann:
        go_wrong(stage, proxy, rabbitmq_place.url(through=proxy))
        has_needs(stage, NEEDS_OF_JOBS)
        has_troubles(stage, TROUBLES)
        waits(stage, "exports", ready=40, dead=2)
        eventually(lambda: "; 40 messages are ready" in words(ann.get()), "the number of messages", report=ann.get)
        needs = ann.notices()
        assert kinds(ann) == {
            "poison": "crashing",
            "stuck": "may hang",
            "failed": "dead",
            "host-4": "gone",
            "host-3": "crash loop",
            "host-2": "detached",
        }
        pages = {path: words(ann.get(path)) for path in ("/", "/failures", "/queues", "/workers", "/warnings")}
        assert SECRET not in "".join(pages.values())
        assert_texts(
            pages["/"],
            r"6 things need a person 7 jobs run; 9 worker processes live; 40 messages are ready, the oldest for",
            r"dead failed in exports Failed for good .*? ago: gave up after \d+ failures?: ConnectionError: cannot reach amqp://app:\*\*\*@broker/\.",
            r"gone host-4:\d+ Died .*? ago; another takes over its 1 job: read its log, and start it again",
            r"crashing poison in imports 2 losses since its last checkpoint",
            r"may hang stuck in exports No progress for .*? at 1 of 100, pages; before that, a step took ",
            r"detached host-2:\d+ No connection to the broker of invoices: its jobs go on; check broker and network",
        )
        assert_texts(pages["/failures"], r"1 dead job, 1 cause", r"ConnectionError")
        assert_texts(pages["/queues"], r"paused by .*? ago: the bank is closed")
        assert_texts(pages["/workers"], r"connected, lost for|lost for .*?StreamLostError")

        assert "cancel" in ann.press(needs["stuck"][1], "cancel", reason="it hangs")
        stage.reaches("exports", State.DEAD, "stuck")
        assert "cancel" in ann.press(needs["poison"][1], "cancel", reason="it kills")
        stage.reaches("imports", State.DEAD, "poison")
        assert "failed" in ann.press(needs["failed"][1], "replay")
        ann.press("/queues", "resume")
        eventually(lambda: "paused" not in ann.get("/queues"), "an end of the pause")
        rest = {"host-4": "gone", "host-3": "crash loop", "host-2": "detached"}
        eventually(lambda: kinds(ann) == rest, "only what needs an operator of hosts", report=lambda: str(kinds(ann)))
        log = words(ann.get("/actions"))
        assert log.count("ann from this machine") == 4
        assert_texts(log, "it hangs", "it kills")
        stage.open("gate")
        stage.begun("failed", 2)  # its turn comes after the 40 jobs before it
        assert [stage.lines("starts").count(key) for key in ("stuck", "failed", "well", "detached")] == [1, 2, 1, 1]
