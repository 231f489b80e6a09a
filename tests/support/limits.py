"""Limits of the system that a test reaches in its own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_further_thread() -> Iterator[None]:
    """Let no thread start, as at a limit of processes: its stack needs more addresses than there are."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)
