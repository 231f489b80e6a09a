"""`steadyworker send` and `cancel`."""

from __future__ import annotations

import json

import pytest

from tests.cli.kit import Queues, Shell


def test_a_sent_job_is_there_and_its_key_is_printed(shell: Shell, queues: Queues) -> None:
    said = shell("send", "app:Exports", '{"merchant": "m-17"}', "--key", "k-1", "--header", "tenant=north")
    assert (said.code, said.out, said.err) == (0, "k-1\n", "")
    (delivery,) = queues.received("exports", 1)
    assert json.loads(delivery.body) == {"merchant": "m-17"}
    assert delivery.headers == {"sw-job-key": "k-1", "tenant": "north"}


def test_a_queue_needs_no_code(shell: Shell, queues: Queues) -> None:
    said = shell("send", "elsewhere", "[1, 2]", "--json")
    assert said.code == 0
    (delivery,) = queues.received("elsewhere", 1)
    assert delivery.body == b"[1,2]"
    assert said.records == [{"key": delivery.headers["sw-job-key"], "line": None}]


def test_the_name_of_a_queue_may_have_a_colon(shell: Shell, queues: Queues) -> None:
    """As queues that exist already have; a capital letter or a module makes it a Worker."""
    assert shell("send", "orders:eu", "{}", "--key", "k-1").code == 0
    (delivery,) = queues.received("orders:eu", 1)
    assert delivery.headers["sw-job-key"] == "k-1"
    said = shell("send", "orders:EU", "{}")
    assert (said.code, said.out) == (78, "")
    assert "There is no module 'orders'" in said.err


def test_a_payload_can_come_from_standard_input(shell: Shell, queues: Queues) -> None:
    assert shell("send", "app:Raw", "-", stdin="any bytes\n").code == 0
    assert queues.received("raw", 1)[0].body == b"any bytes\n"


@pytest.mark.parametrize(
    ("payload", "said_of_it"),
    [
        ("{", "JSON"),
        ('{"merchant": 17}', "$.merchant: expected str, got int"),
        ('{"merchant": "m", "month": 6}', "$.month"),
        ('{"merchant": "m", "merchant": "n"}', "duplicate key"),
    ],
)
def test_a_payload_that_makes_no_sense_is_65_and_names_the_field(shell: Shell, payload: str, said_of_it: str) -> None:
    said = shell("send", "app:Exports", payload)
    assert said.code == 65
    assert said.err.startswith("error: Expected a payload that matches queue 'exports', got one that does not: $")
    assert said_of_it in said.err
    assert said.out == ""


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
        said = shell("send", "app:Exports", "--file", file, "--json")
        assert said.code == 0
        first, second = queues.received("exports", 2)
        assert said.records == [{"key": "k-a", "line": 1}, {"key": second.headers["sw-job-key"], "line": 3}]
        assert first.headers == {"sw-job-key": "k-a", "tenant": "north"}
        assert json.loads(second.body) == {"merchant": "b"}

    @pytest.mark.parametrize(
        ("line", "said_of_it"),
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
    def test_with_a_wrong_line_sends_nothing_and_names_it(self, shell: Shell, line: str, said_of_it: str) -> None:
        file = self.write(shell, '{"payload": {"merchant": "m"}, "key": "k-1"}', line)
        said = shell("send", "app:Exports", "--file", file)
        assert said.code == 65
        assert "jobs.jsonl:2" in said.err
        assert said_of_it in said.err
        assert said.err.endswith(". Nothing was sent.\n")
        assert said.out == ""

    def test_excludes_a_payload_beside_it(self, shell: Shell) -> None:
        file = self.write(shell, '{"payload": {"merchant": "m"}}')
        assert shell("send", "app:Exports", "{}", "--file", file).code == 64
        assert shell("send", "app:Exports", "--file", file, "--key", "k").code == 64
        assert shell("send", "app:Exports").code == 64


def test_a_broker_that_is_none_is_78_and_names_the_schemes(shell: Shell) -> None:
    said = shell("send", "app:Exports", '{"merchant": "m"}', "--broker", "sqlit:x.db")
    assert said.code == 78
    assert "sqlite" in said.err


class TestCancel:
    def test_of_an_unknown_job_is_in_advance(self, shell: Shell, queues: Queues) -> None:
        said = shell("cancel", "app:Exports", "k-1", "--reason", "wrong month")
        assert said.code == 0
        assert f"not in the ledger sqlite:{shell.state}/ledger.db yet" in said.out

    def test_of_an_unknown_key_says_how_long_it_counts(self, shell: Shell, queues: Queues) -> None:
        queues.job("k-1")
        said = shell("cancel", "exports", "typo")
        assert said.code == 0
        assert "within 14 days" in said.out

    def test_of_an_unknown_queue_is_1_names_a_near_one_and_leaves_no_record(self, shell: Shell, queues: Queues) -> None:
        queues.job("k-1")
        said = shell("cancel", "exprts", "k-1")
        assert said.code == 1
        assert "got 'exprts': did you mean exports?" in said.err
        (job,) = shell("jobs", "--json").records
        assert (job["queue"], job["key"], job["cancelled"]) == ("exports", "k-1", None)

    def test_of_a_run_is_heard(self, shell: Shell, queues: Queues) -> None:
        queues.job("k-1")
        said = shell("cancel", "exports", "k-1", "--reason", "wrong month")
        assert said.code == 0
        assert "running" in said.out
        (job,) = shell("jobs", "--json").records
        assert job["cancelled"] == "wrong month"

    def test_after_the_end_is_1(self, shell: Shell, queues: Queues) -> None:
        queues.job("k-1", lambda ledger, row: ledger.done(row.token))
        said = shell("cancel", "app:Exports", "k-1")
        assert said.code == 1
        assert "already done" in said.err
