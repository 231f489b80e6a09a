"""A broker file or a ledger that was removed between two commands: no command makes an empty one in silence."""

from __future__ import annotations

import pytest

from tests.cli.kit import Queues, Shell

SEND = ("send", "app:Exports", '{"merchant": "m"}', "--key")


@pytest.mark.parametrize("name", ["broker", "ledger"])
def test_a_file_that_was_removed_with_no_worker_alive_stops_the_next_worker_with_the_remedy(
    shell: Shell, queues: Queues, name: str
) -> None:
    assert shell(*SEND, "a").code == 0
    for part in shell.state.glob(f"{name}.db*"):
        if part.is_file():
            part.unlink()

    assert shell(*SEND, "b").code == (69 if name == "broker" else 0)
    for command in (("check", "app:Exports"), ("run", "app:Exports", "--max-jobs", "1")):
        done = shell(*command)
        assert done.code == 78
        assert f"{name}.db, but it was removed" in done.out + done.err
    assert not (shell.state / f"{name}.db").exists()
