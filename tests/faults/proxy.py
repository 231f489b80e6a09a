"""
A TCP proxy that breaks connections on purpose: cut, close, stall, drop, hold, slow down, delay, slice, scramble, refuse.

    with Proxy(vhost.url) as proxy:
        client = connect(proxy.url)         # the same URL, through the proxy
        proxy.wait_connections(1)
        proxy.stall()                       # nothing arrives any more, and nobody is told
        proxy.resume()
        proxy.links[0].cut()                # this connection; `proxy.cut()` cuts all

A fault set on the proxy holds for the connections that are open and for those to come; one set on a link, for that one.
Directions are seen from the client: `up` flows to the server, `down` to the client.
Every method returns when its effect is there.

One thread and one `selectors` loop do all of it: where each direction has a thread, closing a socket that another
thread reads delays the reset until that read returns.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

from tests.brokers.process import free_ports
from tests.faults.link import BOTH, CHUNK, Direction, Fault, Faults, Link

WITHIN = 60.0
"""Seconds that a wait lasts at most."""


class Proxy(Faults):
    """
    A proxy in front of one server; `upstream` is a URL or `HOST:PORT`, and `url` the same through the proxy.

    `host` is the loopback address that it listens on, of IPv4 or IPv6.
    """

    def __init__(self, upstream: str, host: str = "127.0.0.1") -> None:
        parts = _parts(upstream)
        self._host = host
        self._server = (parts.hostname, parts.port)
        (self.port,) = free_ports(1)
        self.url = self.through(upstream)
        self.connections = 0
        """How many were accepted, ever."""
        self.links: tuple[Link, ...] = ()
        """The open ones, oldest first."""
        self._gone: dict[Direction, int] = {"up": 0, "down": 0}
        self._scrambled = 0
        self._faults: dict[Direction, Fault] = {"up": Fault(), "down": Fault()}
        self._after: dict[Direction, tuple[int, Callable[[Link], None]]] = {}
        self._mute = False
        self._ears: list[socket.socket] = []
        self._turned = threading.Condition()
        self._commands: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._stopping = False
        self._listener: socket.socket | None = self._listen()
        self._thread = threading.Thread(target=self._loop, name="fault-proxy", daemon=True)
        self._thread.start()

    def through(self, url: str) -> str:
        """Another URL of the same server, through the proxy."""
        parts = _parts(url)
        login, at, _ = parts.netloc.rpartition("@")
        host = f"[{self._host}]" if ":" in self._host else self._host
        return parts._replace(netloc=f"{login}{at}{host}:{self.port}").geturl().removeprefix("//")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close everything, and end the thread; harmless when it has ended."""
        if self._thread.is_alive():
            self._do(self._end)
            self._thread.join()

    # --- Faults -------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        self._do(lambda: self._each(Link.cut))

    def close(self) -> None:
        self._do(lambda: self._each(Link.close))

    def after(self, count: int, direction: Direction, action: Callable[[Link], None]) -> None:
        def arm() -> None:
            self._after[direction] = (count, action)
            self._each(lambda link: link.after(count, direction, action))

        self._do(arm)

    def change(self, directions: tuple[Direction, ...], **changes: Any) -> None:
        def set_faults() -> None:
            for direction in directions:
                self._faults[direction] = replace(self._faults[direction], **changes)
            self._each(lambda link: link.change(directions, **changes))

        self._do(set_faults)

    def refuse(self) -> None:
        """Stop listening: who connects is refused (ECONNREFUSED). Open connections stay."""

        def deaf() -> None:
            if self._listener:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None

        self._do(deaf)

    def accept(self) -> None:
        """Listen again, on the same port."""

        def listen() -> None:
            self._listener = self._listener or self._listen()

        self._do(listen)

    def silent(self) -> None:
        """Connections to come are accepted, and hear nothing ever: no server is behind them."""

        def mute() -> None:
            self._mute = True

        self._do(mute)

    def resume(self) -> None:
        """All as it was at the start; only a connection that was accepted in silence stays silent."""

        def heal() -> None:
            self._faults = dict.fromkeys(BOTH, Fault())
            self._after.clear()
            self._mute = False
            self._listener = self._listener or self._listen()
            self._each(Link.resume)

        self._do(heal)

    # --- What has happened ----------------------------------------------------------------------------------------------

    def passed(self, direction: Direction) -> int:
        """Bytes that went out in this direction, over all connections ever."""
        return self._gone[direction] + sum(link.passed(direction) for link in self.links)

    @property
    def scrambled(self) -> int:
        """How many parts arrived twice or in the wrong order, over all connections ever."""
        return self._scrambled + sum(pipe.scrambled for link in self.links for pipe in link.pipes.values())

    def wait_connections(self, count: int, within: float = WITHIN) -> None:
        """Return when so many connections have been accepted, ever."""
        self.wait(lambda: self.connections >= count, lambda: f"{count} connections, not {self.connections}", within)

    def wait_passed(self, count: int, direction: Direction, within: float = WITHIN) -> None:
        """Return when so many bytes went out in this direction."""
        self.wait(
            lambda: self.passed(direction) >= count,
            lambda: f"{count} bytes {direction}, not {self.passed(direction)}",
            within,
        )

    def wait_closed(self, within: float = WITHIN) -> None:
        """Return when no connection is open."""
        self.wait(lambda: not self.links, lambda: f"no open connection, not {len(self.links)}", within)

    def wait(self, happened: Callable[[], bool], expected: Callable[[], str], within: float) -> None:
        """Return when it has happened; it is asked in the loop's breaks. Raises TimeoutError with what was expected."""
        with self._turned:
            if not self._turned.wait_for(happened, within):
                raise TimeoutError(f"expected within {within:g} s: {expected()}")

    # --- The loop ---------------------------------------------------------------------------------------------------------

    def _do(self, action: Callable[[], None]) -> None:
        """Run it in the loop's thread, and return when it has run."""
        if threading.current_thread() is self._thread:
            action()
            return
        done: Future[None] = Future()
        self._commands.append((action, done))
        self._ring.send(b"\0")
        done.result(WITHIN)

    def _each(self, action: Callable[[Link], None]) -> None:
        for link in self.links:
            action(link)

    def _loop(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            due = [at for link in self.links for at in self._attend(link, now)]
            ready = self._selector.select(min(due) - now if due else None)
            now = time.monotonic()
            for key, events in ready:
                if key.fileobj is self._bell:
                    self._obey()
                elif key.fileobj is self._listener:
                    self._welcome()
                else:
                    link, end = key.data
                    self._pass(link, end, events, now)
            with self._turned:
                self._sweep()
                self._turned.notify_all()

    def _attend(self, link: Link, now: float) -> Iterator[float]:
        """Ask the selector for what the link can do now; yields when a slow or a long pipe may write again."""
        for end in link.sockets:
            out, back = link.out_of(end), link.into(end)
            events = selectors.EVENT_READ if out.reads else 0
            if back.writes and back.due > now:
                yield back.due
            elif back.writes:
                events |= selectors.EVENT_WRITE
            watched = self._selector.get_map().get(end)
            if not watched and events:
                self._selector.register(end, events, (link, end))
            elif watched and not events:
                self._selector.unregister(end)
            elif watched and watched.events != events:
                self._selector.modify(end, events, (link, end))

    def _pass(self, link: Link, end: socket.socket, events: int, now: float) -> None:
        try:
            if events & selectors.EVENT_READ and link.open and link.out_of(end).reads:
                link.out_of(end).read(now)
            if events & selectors.EVENT_WRITE and link.open and link.into(end).writes:
                link.into(end).write(now)
        except OSError:
            link.broken(end)
        link.act()

    def _sweep(self) -> None:
        """Forget the links that have ended, but not what passed through them."""
        for link in self.links:
            if link.open and link.finished:
                link.end()
            if not link.open:
                for direction in BOTH:
                    self._gone[direction] += link.passed(direction)
                    self._scrambled += link.pipes[direction].scrambled
        self.links = tuple(link for link in self.links if link.open)

    def _obey(self) -> None:
        self._bell.recv(CHUNK)
        while self._commands:
            action, done = self._commands.popleft()
            try:
                action()
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                done.set_exception(error)
            else:
                done.set_result(None)

    def _welcome(self) -> None:
        assert self._listener
        client, _ = self._listener.accept()
        if self._mute:
            server, ear = socket.socketpair()
            self._ears.append(ear)  # what is said to it waits here, unread
        else:
            server = socket.socket()
            server.setblocking(False)
            server.connect_ex(self._server)
        self.connections += 1
        link = Link(self.connections, client, server, self._faults, self._do, self._forget)
        self.links = (*self.links, link)
        for direction, (count, action) in self._after.items():
            link.after(count, direction, action)

    def _forget(self, end: socket.socket) -> None:
        with suppress(KeyError):  # what can do nothing now is not registered
            self._selector.unregister(end)

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self.port), family=family)
        self._selector.register(listener, selectors.EVENT_READ)
        return listener

    def _end(self) -> None:
        self._stopping = True
        self._each(Link.close)
        for end in [self._bell, self._ring, *self._ears, *([self._listener] if self._listener else [])]:
            end.close()
        self._selector.close()


def _parts(url: str) -> SplitResult:
    parts = urlsplit(url if "://" in url else f"//{url}")
    if not parts.hostname or not parts.port:
        raise ValueError(f"expected a URL with host and port, got {parts.netloc.rpartition('@')[2]!r}")
    return parts
