"""`steadyworker send` and `cancel`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from tests.cli.kit import Queues, Shell


def test_a_sent_job_is_there_and_its_key_is_printed(shell: Shell, queues: Queues) -> None:
    done = shell("send", "app:Exports", '{"merchant": "m-17"}', "--key", "k-1", "--header", "tenant=north")
    assert (done.code, done.out, done.err) == (0, "k-1\n", "")
    (delivery,) = queues.received("exports", 1)
    assert json.loads(delivery.body) == {"merchant": "m-17"}
    assert delivery.headers == {"sw-job-key": "k-1", "tenant": "north"}


def test_a_queue_needs_no_code(shell: Shell, queues: Queues) -> None:
    done = shell("send", "elsewhere", "[1, 2]", "--json")
    assert done.code == 0
    (delivery,) = queues.received("elsewhere", 1)
    assert delivery.body == b"[1,2]"
    assert done.records == [{"key": delivery.headers["sw-job-key"], "line": None}]


def test_the_name_of_a_queue_may_have_a_colon(shell: Shell, queues: Queues) -> None:
    """As queues that exist already have; a capital letter or a module makes it a Worker."""
    assert shell("send", "orders:eu", "{}", "--key", "k-1").code == 0
    (delivery,) = queues.received("orders:eu", 1)
    assert delivery.headers["sw-job-key"] == "k-1"
    done = shell("send", "orders:EU", "{}")
    assert (done.code, done.out) == (78, "")
    assert "There is no module 'orders'" in done.err


def test_a_payload_can_come_from_standard_input(shell: Shell, queues: Queues) -> None:
    assert shell("send", "app:Raw", "-", stdin="any bytes\n").code == 0
    assert queues.received("raw", 1)[0].body == b"any bytes\n"


def test_a_raw_payload_is_sent_byte_for_byte(shell: Shell, queues: Queues) -> None:
    assert shell("send", "scans", "--raw", "%PDF {", "--key", "k-1").out == "k-1\n"
    assert shell("send", "app:Raw", "--raw", "-", stdin="any bytes\n").code == 0
    assert queues.received("scans", 1)[0].body == b"%PDF {"
    assert queues.received("raw", 1)[0].body == b"any bytes\n"


def test_a_raw_payload_for_a_typed_worker_is_refused(shell: Shell) -> None:
    done = shell("send", "app:Exports", "--raw", "%PDF")
    assert done.code == 64
    assert "or with a Worker whose payload is bytes, got 'exports' of Request: leave --raw out." in done.err


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("{", "JSON"),
        ('{"merchant": 17}', "$.merchant: expected str, got int"),
        ('{"merchant": "m", "month": 6}', "$.month"),
        ('{"merchant": "m", "merchant": "n"}', "duplicate key"),
    ],
)
def test_a_payload_that_makes_no_sense_is_65_and_names_the_field(shell: Shell, payload: str, message: str) -> None:
    done = shell("send", "app:Exports", payload)
    assert done.code == 65
    assert done.err.startswith("error: Expected a payload that matches queue 'exports', got one that does not: $")
    assert message in done.err
    assert done.out == ""


def test_a_key_that_was_run_is_run_again_when_asked(shell: Shell, queues: Queues) -> None:
    queues.job("k-1", lambda ledger, row: ledger.done(row.token))
    assert shell("send", "app:Exports", '{"merchant": "m"}', "--key", "k-1", "--again").code == 0
    assert queues.received("exports", 1)[0].headers["sw-round"] == "1"


class TestAFileOfJobs:
    def write(self, shell: Shell, *lines: str) -> str:
        (shell.folder / "jobs.jsonl").write_text("\n".join(lines) + "\n")
        return "jobs.jsonl"

    def test_sends_every_line(self, shell: Shell, queues: Queues) -> None:
        file = self.write(
            shell,
            '{"payload": {"merchant": "a"}, "key": "k-a", "headers": {"tenant": "north"}}',
            "",
            '{"payload": {"merchant": "b"}}',
        )
        done = shell("send", "app:Exports", "--file", file, "--json")
        assert done.code == 0
        first, second = queues.received("exports", 2)
        assert done.records == [{"key": "k-a", "line": 1}, {"key": second.headers["sw-job-key"], "line": 3}]
        assert first.headers == {"sw-job-key": "k-a", "tenant": "north"}
        assert json.loads(second.body) == {"merchant": "b"}

    def test_names_the_lines_that_the_broker_did_not_confirm(self, shell: Shell, queues: Queues) -> None:
        """A trigger makes the second of three batches fail, as a full disk does."""
        lines = [f'{{"payload": {{"merchant": "m"}}, "key": "k-{number}"}}' for number in range(1, 1_101)]
        file = self.write(shell, *lines[:600], "", *lines[600:])
        assert shell("send", "app:Exports", '{"merchant": "m"}', "--key", "before").code == 0
        with closing(sqlite3.connect(shell.state / "broker.db")) as broker, broker:
            broker.execute(
                "CREATE TRIGGER full BEFORE INSERT ON messages WHEN new.message_id = 'k-700'"
                " BEGIN SELECT RAISE(ABORT, 'disk full'); END"
            )
        done = shell("send", "app:Exports", "--file", file)
        assert done.code == 69
        assert done.lines == [f"k-{number}" for number in range(1, 501)]
        assert "Of 1,100 jobs, 500 were sent, 500 may or may not have arrived" in done.err
        assert done.err.endswith(" These lines were not confirmed: 501-600, 602-1101.\n")
        assert len(queues.received("exports", 501)) == 501

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", "jobs.jsonl:2"),
            ('{"key": "k"}', "payload"),
            ('{"payload": {"merchant": 17}}', "$.merchant"),
            ('{"payload": {"merchant": "m"}, "kye": "k"}', "kye"),
            ('{"payload": {"merchant": "m"}, "key": "k-1"}', "line 1"),
            ('{"payload": {"merchant": "m"}, "key": ""}', "key"),
            ('{"payload": {"merchant": "m"}, "delay": -1}', "delay"),
            ('{"payload": {"merchant": "m"}, "headers": {"sw-hop": "1"}}', "sw-hop"),
        ],
    )
    def test_with_a_wrong_line_sends_nothing_and_names_it(self, shell: Shell, line: str, message: str) -> None:
        file = self.write(shell, '{"payload": {"merchant": "m"}, "key": "k-1"}', line)
        done = shell("send", "app:Exports", "--file", file)
        assert done.code == 65
        assert "jobs.jsonl:2" in done.err
        assert message in done.err
        assert done.err.endswith(". Nothing was sent.\n")
        assert done.out == ""

    def test_excludes_a_payload_beside_it(self, shell: Shell) -> None:
        file = self.write(shell, '{"payload": {"merchant": "m"}}')
        assert shell("send", "app:Exports", "{}", "--file", file).code == 64
        assert shell("send", "app:Exports", "--file", file, "--key", "k").code == 64
        assert shell("send", "app:Exports").code == 64


def test_a_broker_that_is_none_is_78_and_names_the_schemes(shell: Shell) -> None:
    done = shell("send", "app:Exports", '{"merchant": "m"}', "--broker", "sqlit:x.db")
    assert done.code == 78
    assert "sqlite" in done.err


class TestCancel:
    def test_of_an_unknown_job_is_in_advance(self, shell: Shell, queues: Queues) -> None:
        done = shell("cancel", "app:Exports", "k-1", "--reason", "wrong month")
        assert done.code == 0
        assert f"not in the ledger sqlite:{shell.state}/ledger.db yet" in done.out

    def test_of_an_unknown_key_prints_how_long_it_counts(self, shell: Shell, queues: Queues) -> None:
        queues.job("k-1")
        done = shell("cancel", "exports", "typo")
        assert done.code == 0
        assert "within 14 days" in done.out

    def test_of_an_unknown_queue_is_1_names_a_near_one_and_leaves_no_record(self, shell: Shell, queues: Queues) -> None:
        queues.job("k-1")
        done = shell("cancel", "exprts", "k-1")
        assert done.code == 1
        assert "got 'exprts': did you mean exports?" in done.err
        (job,) = shell("jobs", "--json").records
        assert (job["queue"], job["key"], job["cancelled"]) == ("exports", "k-1", None)

    def test_of_a_run_ends_it(self, shell: Shell, queues: Queues) -> None:
        queues.job("k-1")
        done = shell("cancel", "exports", "k-1", "--reason", "wrong month")
        assert done.code == 0
        assert "running" in done.out
        (job,) = shell("jobs", "--json").records
        assert job["cancelled"] == "wrong month"

    def test_after_the_end_is_1(self, shell: Shell, queues: Queues) -> None:
        queues.job("k-1", lambda ledger, row: ledger.done(row.token))
        done = shell("cancel", "app:Exports", "k-1")
        assert done.code == 1
        assert "already done" in done.err
