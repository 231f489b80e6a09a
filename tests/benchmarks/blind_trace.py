"""
`steadyworker trace` with a reader that looks at no byte: what the relay and its records cost by themselves.

    python -m tests.benchmarks.blind_trace trace --listen HOST:PORT --to HOST:PORT
"""

from __future__ import annotations

from unittest import mock

from steadyworker.cli import main
from steadyworker.diagnosis.tap import TapRecord, What
from steadyworker.diagnosis.tracing import Conversations

receive = Conversations.receive


def receive_no_bytes(self: Conversations, record: TapRecord) -> None:
    """Receive what happens to connections, and drop what passes."""
    if record.what not in {What.DATA, What.SKIPPED}:
        receive(self, record)


if __name__ == "__main__":
    with mock.patch.object(Conversations, "receive", receive_no_bytes):
        main()
