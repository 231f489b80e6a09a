"""The loop of adapters whose client library reads from its sockets in threads of its own."""

from __future__ import annotations

import asyncio


class PlainLoop:
    """A loop of timers and calls (`iothread.Loop`): asyncio's, without any of its input and output."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.call_later = self._loop.call_later
        self.add_callback_threadsafe = self._loop.call_soon_threadsafe
        self.start = self._loop.run_forever
        self.stop = self._loop.stop
        self.close = self._loop.close

    def remove_timeout(self, handle: asyncio.TimerHandle) -> None:
        """Cancel a timer."""
        handle.cancel()
