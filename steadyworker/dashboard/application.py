"""The ASGI application: the addresses, and the way from a request to a page."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from anyio import CapacityLimiter, move_on_after, to_thread
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from steadyworker.adapter import Adapter
from steadyworker.backends.opening import open_adapter_for, open_ledger
from steadyworker.clock import Clock, SystemClock
from steadyworker.config.resolve import Options, load
from steadyworker.dashboard.access import Access, PageGuard, checked_access
from steadyworker.dashboard.addresses import job_of, job_path
from steadyworker.dashboard.asking import BrokerAsker
from steadyworker.dashboard.chosen import STATES_TO_CHOOSE
from steadyworker.dashboard.csrf import is_led_by_other
from steadyworker.dashboard.failures import LONGEST_TEXT, WHEN, Sought, failures_page
from steadyworker.dashboard.forms import ACTING, LONGEST_REASON, AskedAction, Forms
from steadyworker.dashboard.job import job_page, jobs_of_key
from steadyworker.dashboard.notices import helpful
from steadyworker.dashboard.paging import ListPart, page_of, part_of, turned
from steadyworker.dashboard.queues import broker_text, queues_page
from steadyworker.dashboard.reader import Reader, ReadOnce, ReadPage
from steadyworker.dashboard.running import AskedLists, running_page
from steadyworker.dashboard.warned import warnings_page
from steadyworker.dashboard.workers import workers_page
from steadyworker.errors import ConfigError, LedgerUnavailable
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.facts import Action
from steadyworker.pages import environment as pages
from steadyworker.text.plain_text import plain_text

if TYPE_CHECKING:
    from steadyworker.dashboard.doing import Doing

THREADS = 4
"""The number of pages that are read and drawn at the same time; others wait."""

PROMPT = 5.0
"""Seconds in which an action usually ends; after them, its page shows that it goes on."""

MOST_ACTIONS = 100
"""The number of actions in a part of their log."""

_MOST_PARTS = 100
"""The number of the last part of the log that the page shows."""

_LONGEST_NAME = 300
_LARGEST_FORM = 16 << 10
_FORM = "application/x-www-form-urlencoded"
_ASSETS = {"css": "text/css", "js": "text/javascript"}
_TITLES = {
    "running": "Running",
    "failures": "Failures",
    "queues": "Queues",
    "workers": "Workers",
    "warnings": "Warnings",
    "job": "A job",
    "actions": "Log of actions",
    "found": "Jobs of one key",
    "chosen": "Chosen jobs",
    "doing": "An action on many jobs",
}
"""The titles of pages; no title has a name that a sender or a handler chose, because browsers keep titles."""

_READ_ONLY = "Nothing was done. `steadyworker dashboard --allow-actions` offers actions."

_log = logging.getLogger(__name__)


def app(
    *,
    ledger: str | None = None,
    namespace: str | None = None,
    hosts: Iterable[str] = (),
    token: str | None = None,
    user_header: str | None = None,
    peers: Iterable[str] = (),
    behind_login: bool = False,
    allow_actions: bool = False,
    broker: str | None = None,
    workers: Iterable[Any] = (),
) -> Starlette:
    """
    Return the page as an ASGI application, to mount below any path of an application of yours.

    Without other settings, it allows only requests from this machine.

    Args:
        ledger: The URL of the ledger; by default, the setting `ledger` of the environment or of `steadyworker.toml`.
        namespace: Only jobs of this broker.
        hosts: The host names of your application, such as `ops.example.com`.
        token: The token that each request must have, unless one of `peers` names its user.
        user_header: The header in which your proxy names the user; it needs `peers`.
        peers: The addresses of these proxies, such as `10.0.0.0/24`.
        behind_login: Your application has authenticated each request, so there is no `token`; the page checks only host and origin.
        allow_actions: Offer actions: who may see the page may cancel and retry jobs, pause queues, and quiet worker processes.
            They need `token`, `user_header` or `behind_login`, because a proxy on this machine can let everyone in.
            The forms serve only in the process that drew them, so serve the page from one process.
        broker: The URL of the broker, for its numbers and for actions that send a message; by default, the setting `broker`.
            If neither names a broker, the page shows only the numbers that worker processes have recorded.
        workers: The classes of Workers that have a `dead_letter_queue` or a `key_header` of their own: the ledger does not have these names.
            Without its Worker, an action on a dead job seeks the letter in the default dead-letter queue of its queue.

    Raises:
        ConfigError: A value is invalid, the URL names no ledger, or there are actions without a token, a proxy or a login.
    """
    given = (("ledger", ledger), ("namespace", namespace), ("broker", broker))
    options = load({name: value for name, value in given if value is not None}, os.environ, Path.cwd(), None)
    named: Mapping[str, Any] = {}
    if workers := tuple(workers):
        from steadyworker.dashboard.doing import named_queues

        named = named_queues(workers, options)
    access = checked_access(hosts, token, user_header, peers, behind_login=behind_login, acting=allow_actions)
    opened = open_ledger(options)
    clock = SystemClock()
    acting = options if allow_actions else None
    asks = bool(named) or options.origins["broker"] != "default"
    asker = BrokerAsker(options, opened, clock, opens(named, options)) if asks else None
    return application(opened, access, options.namespace, clock, acting=acting, asker=asker, named=named)


def opens(named: Mapping[str, Any], options: Options) -> Callable[[str], Adapter]:
    """Return what opens the adapter of a queue: as its Worker if that is known, otherwise by the queue's name."""
    return lambda queue: open_adapter_for(named[queue].opened_as if queue in named else queue, options, create=False)


def application(
    ledger: Ledger,
    access: Access,
    namespace: str | None = None,
    clock: Clock | None = None,
    *,
    acting: Options | None = None,
    asker: BrokerAsker | None = None,
    named: Mapping[str, Any] = MappingProxyType({}),
) -> Starlette:
    """
    Return the application on this open ledger; its end closes the ledger.

    With the settings `acting`, it offers actions; `named` has each queue whose Worker is known, a `JobQueue`, by its name.
    With an `asker`, it shows the broker's own numbers.
    """
    doing = None
    if acting is not None:
        from steadyworker.dashboard.doing import Doing

        doing = Doing(acting, ledger, clock or SystemClock(), named)
    reader = Reader(ledger if asker is None else asker.over(ledger), clock or SystemClock())
    page = _Pages(reader, namespace, doing, asker)

    @asynccontextmanager
    async def life(_app: Starlette) -> AsyncIterator[None]:
        yield
        if doing is not None:
            await to_thread.run_sync(doing.close)
        if asker is not None:
            await to_thread.run_sync(asker.close)
        ledger.close()

    routes = [
        Route("/", page.endpoint(page.running), name="running"),
        Route("/failures", page.endpoint(page.failures), name="failures"),
        Route("/queues", page.endpoint(page.queues), name="queues"),
        Route("/workers", page.endpoint(page.workers), name="workers"),
        Route("/job/{rest:path}", page.endpoint(page.job), name="job"),
        Route("/warnings", page.endpoint(page.warnings), name="warnings"),
        Route("/actions", page.endpoint(page.actions), name="actions"),
        Route("/find", page.endpoint(page.find), name="find"),
        Route("/choose", page.endpoint(page.choose), name="choose"),
        Route("/chosen/{name}", page.endpoint(page.chosen), name="chosen"),
        Route("/doing/{name}", page.endpoint(page.doing), name="doing"),
        Route("/act", page.act, name="act", methods=["POST"]),
        Route("/assets/{name}", page.asset, name="asset"),
    ]
    handlers: dict[Any, Any] = {HTTPException: page.refused}
    page_app = Starlette(
        routes=routes, exception_handlers=handlers, lifespan=life, middleware=[Middleware(PageGuard, access=access)]
    )
    page_app.router.redirect_slashes = (
        False  # behind a proxy with TLS, the address of the redirect would be without TLS
    )
    return page_app


Drawn = tuple[str, ReadPage[Any] | None]
"""The name of a template, and its content."""


class _Pages:
    """The pages of one ledger; each is read and drawn in a thread."""

    def __init__(self, reader: Reader, namespace: str | None, doing: Doing | None, asker: BrokerAsker | None) -> None:
        self._reader = reader
        self._asker = asker
        self._namespace = namespace
        self._doing = doing
        self._templates = pages.environment(Path(__file__).with_name("templates"))
        self._limiter: CapacityLimiter | None = None
        self._acting: CapacityLimiter | None = None
        self._assets: dict[str, tuple[bytes, str]] = {}
        names = {}
        for ending, kind in _ASSETS.items():
            content = (pages.HERE / f"page.{ending}").read_bytes()
            names[ending] = f"page.{hashlib.sha256(content).hexdigest()[:12]}.{ending}"
            self._assets[names[ending]] = (content, kind)
        self._templates.globals |= {
            "assets": names,
            "broker_text": broker_text,
            "helpful": helpful,
            "job_path": job_path,
            "longest_reason": LONGEST_REASON,
            "longest_text": LONGEST_TEXT,
            "times": WHEN,
        }

    def running(self, request: Request) -> Drawn:
        parts = (page_of(request.query_params, name) for name in ("needs", "page", "waiting"))
        asked = AskedLists(*self._chosen(request), *parts)
        return "running.html", self._reader.page(asked, lambda once, now: running_page(once, now, asked))

    def failures(self, request: Request) -> Drawn:
        sought = self._sought(request)
        part = page_of(request.query_params)
        page = self._reader.page((sought, part), lambda once, now: failures_page(once, now, sought, part))
        return "failures.html", page

    def queues(self, request: Request) -> Drawn:
        page = page_of(request.query_params)
        read = self._reader.page(("queues", page), lambda once, now: queues_page(once, now, self._namespace, page))
        return "queues.html", read

    def workers(self, request: Request) -> Drawn:
        page = page_of(request.query_params)
        read = self._reader.page(("workers", page), lambda once, now: workers_page(once, now, self._namespace, page))
        return "workers.html", read

    def warnings(self, _: Request) -> Drawn:
        return "warnings.html", self._reader.page(
            "warnings", lambda once, now: warnings_page(once, now, self._namespace)
        )

    def actions(self, request: Request) -> Drawn:
        part = min(page_of(request.query_params), _MOST_PARTS)

        def read(once: ReadOnce, _now: float) -> ListPart[Action]:
            most = part * MOST_ACTIONS + 1  # one more shows that there is a next part
            return part_of(once.as_ledger.facts.actions(None, self._namespace, limit=most), part, MOST_ACTIONS)

        return "actions.html", self._reader.page(("actions", part), read)

    def job(self, request: Request) -> Drawn:
        id = job_of(request.path_params["rest"])
        if id is None or self._namespace not in (None, id.namespace):
            raise HTTPException(HTTPStatus.NOT_FOUND)
        page = self._reader.page(("job", id), lambda once, now: job_page(once, now, id))
        if page.content is None:
            raise HTTPException(
                HTTPStatus.NOT_FOUND,
                "The ledger has no job of this key: no worker process has received it, or its time there is over.",
            )
        return "job.html", page

    def _chosen(self, request: Request) -> tuple[str | None, str | None]:
        """Return the namespace and the queue that an address names; None for all."""
        queue = request.query_params.get("queue", "")[:_LONGEST_NAME] or None
        namespace = request.query_params.get("broker", "")[:_LONGEST_NAME] or self._namespace
        return (namespace if self._namespace is None else self._namespace), queue

    def _sought(self, request: Request) -> Sought:
        """Return what an address seeks, without the parts that only a choice has."""
        when, (text,) = request.query_params.get("when", ""), _texts(request, "text")
        return Sought(*self._chosen(request), when if when in WHEN else "", text)

    async def asset(self, request: Request) -> Response:
        content, kind = self._assets.get(request.path_params["name"], (None, ""))
        if content is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        # The name changes with the content, and the content has nothing of the ledger.
        return Response(content, media_type=kind, headers={"cache-control": "private, max-age=31536000, immutable"})

    async def act(self, request: Request) -> Response:
        """Do what a form asks for, and lead to the page of what it acts on, which shows the result."""
        if self._doing is None:
            return self._failed(
                request,
                HTTPStatus.FORBIDDEN,
                "This page is read only",
                _READ_ONLY,
            )
        if self._acting is None:
            self._acting = CapacityLimiter(ACTING)
        wanted = await _wanted(request)
        if wanted is None or (wanted.namespace is not None and self._namespace not in (None, wanted.namespace)):
            text = "Nothing was done: no form of this page sends this."
            return self._failed(request, HTTPStatus.BAD_REQUEST, "This is no form of this page", text)
        visitor = request.scope["state"]["visitor"]
        name, where = secrets.token_urlsafe(9), ""
        with move_on_after(PROMPT):
            where = await to_thread.run_sync(
                self._doing.act, wanted, visitor, name, limiter=self._acting, abandon_on_cancel=True
            )
        where = where or self._doing.give_up(wanted, name)
        self._reader.read_again()
        return RedirectResponse(f"{_root(request)}{where}", HTTPStatus.SEE_OTHER)

    def choose(self, request: Request) -> Response:
        """Choose the jobs that fit the filter of the address, and lead to their page; this changes nothing in the ledger."""
        if self._doing is None:
            raise HTTPException(HTTPStatus.FORBIDDEN, _READ_ONLY)
        if is_led_by_other(request.headers):  # it could replace the choices of people
            raise HTTPException(HTTPStatus.FORBIDDEN, "Another site leads here. Choose the jobs on this page.")
        state = request.query_params.get("state", "")
        kind, cause = _texts(request, "kind", "cause")
        state = state if state in STATES_TO_CHOOSE else ""
        choice = self._doing.choose(replace(self._sought(request), state=state, kind=kind, cause=cause))
        return RedirectResponse(f"{_root(request)}/chosen/{choice.name}", HTTPStatus.SEE_OTHER)

    def find(self, request: Request) -> Response:
        """Lead to the page of the job with the key of the address; with several, list them."""
        (key,) = _texts(request, "key")
        page = self._reader.page(("find", key), lambda once, _: jobs_of_key(once, self._namespace, key))
        if len(page.content) == 1:
            (id,) = page.content
            where = f"{_root(request)}{job_path(id.namespace, id.queue, id.key)}"
            return RedirectResponse(where, HTTPStatus.SEE_OTHER)
        if page.content:
            return self._html(request, HTTPStatus.OK, "found.html", page)
        text = "No job that a worker process has received has this key; Failures and Act on many jobs seek a part of a key."
        return self._failed(request, HTTPStatus.NOT_FOUND, "No job has this key", text)

    def chosen(self, request: Request) -> Response:
        choice = self._doing.choice(request.path_params["name"]) if self._doing is not None else None
        if choice is None:
            raise HTTPException(
                HTTPStatus.NOT_FOUND,
                "This choice is not kept any more: choose the jobs again, from the failures or the running jobs.",
            )
        return self._html(request, HTTPStatus.OK, "chosen.html", None, choice=choice, states=STATES_TO_CHOOSE)

    def doing(self, request: Request) -> Response:
        work = self._doing.bulk.work(request.path_params["name"]) if self._doing is not None else None
        if work is None:
            raise HTTPException(
                HTTPStatus.NOT_FOUND,
                "This process remembers no such action: the log of actions has what was done.",
            )
        return self._html(request, HTTPStatus.OK, "doing.html", None, work=work)

    def endpoint(self, draw: Callable[[Request], Drawn | Response]) -> Callable[[Request], Any]:
        """Return the endpoint that draws a page in a thread; a failure is a page, too."""

        async def endpoint(request: Request) -> Response:
            if any("\0" in text for text in request.query_params.values()):  # PostgreSQL has no such text
                raise HTTPException(HTTPStatus.BAD_REQUEST, "Expected an address without a NUL, got one with it.")
            if self._limiter is None:
                self._limiter = CapacityLimiter(THREADS)
            return await to_thread.run_sync(self._respond, draw, request, limiter=self._limiter)

        return endpoint

    def _respond(self, draw: Callable[[Request], Drawn | Response], request: Request) -> Response:
        try:
            drawn = draw(request)
            return drawn if isinstance(drawn, Response) else self._html(request, HTTPStatus.OK, *drawn)
        except (LedgerUnavailable, ConfigError) as error:
            return self._failed(
                request, HTTPStatus.SERVICE_UNAVAILABLE, "The ledger cannot be read", plain_text(str(error))
            )
        except HTTPException:
            raise
        except Exception:  # noqa: BLE001 - one page fails, and the others go on
            _log.error("%s", plain_text(traceback.format_exc(limit=-6)))  # a long text is cut at its end
            return self._failed(
                request,
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "This page could not be drawn",
                "This is an error in SteadyWorker; the log of `steadyworker dashboard` has its traceback.",
            )

    async def refused(self, request: Request, error: Exception) -> Response:
        """Return the page of an address that does not exist, or of a method that it does not have."""
        assert isinstance(error, HTTPException)
        texts = {
            HTTPStatus.NOT_FOUND: ("Nothing has this address", "The links above lead to every page."),
            HTTPStatus.METHOD_NOT_ALLOWED: ("This address has no such method", "Nothing was changed."),
        }
        status = HTTPStatus(error.status_code)
        headline, text = texts.get(status, (status.phrase, ""))
        if error.detail and error.detail != status.phrase:
            text = error.detail
        response = self._failed(request, status, headline, text)
        response.headers.update(error.headers or {})
        return response

    def _failed(self, request: Request, status: HTTPStatus, headline: str, text: str) -> Response:
        return self._html(request, status, "failed.html", None, headline=headline, text=text)

    def _html(
        self, request: Request, status: HTTPStatus, template: str, page: ReadPage[Any] | None, **values: Any
    ) -> Response:
        name = template.removesuffix(".html")
        now, user, doing = self._reader.now(), request.scope["state"]["visitor"].name, self._doing
        did = request.query_params.get("did", "")
        html = self._templates.get_template(template).render(
            root=_root(request),
            nonce=request.scope["state"]["nonce"],
            user=user,
            forms=None if doing is None else Forms(doing.seals, user, doing.waits),
            works=doing.bulk.under_way() if doing is not None else (),
            result=doing.seals.result(did) if doing is not None and did else None,
            ledger=self._reader.url,
            broker=None if self._asker is None else self._asker.state(),
            place=name,
            turned=partial(turned, request.query_params),
            title=_TITLES.get(name, "Not shown"),
            now=now,
            page=page,
            content=None if page is None else page.content,
            **values,
        )
        return Response(html, status, media_type="text/html")


def _texts(request: Request, *names: str) -> list[str]:
    return [request.query_params.get(name, "").strip()[:LONGEST_TEXT] for name in names]


def _root(request: Request) -> str:
    return quote(request.scope.get("root_path", ""), safe="/-_.~")


async def _wanted(request: Request) -> AskedAction | None:
    """Return the action that a form asks for; None if the body is too large, or no form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return None
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST_FORM:
                return None
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=10, errors="strict")
        return AskedAction(*(fields.get(name, [""])[0] for name in ("act", "reason", "delay", "number")))
    except (ValueError, ClientDisconnect):  # also UnicodeError
        return None
