"""The loop of adapters whose client library reads from sockets in its own threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PlainLoop:
    """A loop of timers and calls (`iothread.Loop`), which is asyncio's loop without input and output."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.start = self._loop.run_forever
        self.stop = self._loop.stop
        self.close = self._loop.close

    def call_later(self, delay: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Call a function after `delay` seconds, and return a handle of this timer."""
        return self._loop.call_later(delay, action)

    def remove_timeout(self, handle: asyncio.TimerHandle) -> None:
        """Cancel a timer."""
        handle.cancel()

    def add_callback_threadsafe(self, action: Callable[[], None]) -> None:
        """Call a function soon; any thread may ask for it."""
        self._loop.call_soon_threadsafe(action)
