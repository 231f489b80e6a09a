"""Logs of every format, cut into records; and input that is no log at all."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.diagnosis.formats import instant, is_error
from steadyworker.diagnosis.records import LONGEST, Cutter, Record


def cut(text: str | bytes, *, size: int = 1 << 20) -> list[Record]:
    data = text.encode() if isinstance(text, str) else text
    cutter = Cutter("log")
    found = [record for at in range(0, len(data), size) for record in cutter.feed(data[at : at + size])]
    return [*found, *cutter.end()]


RABBIT_4 = """\
2026-11-25 02:29:27.141095+00:00 [error] <0.906.0> Error on AMQP connection <0.906.0> (state: running), channel 19793:
2026-11-25 02:29:27.141095+00:00 [error] <0.906.0>  operation none caused a connection exception
2026-11-25 02:29:27.753559+00:00 [info] <0.918.0> Deleting vhost 'x'
"""
RABBIT_37 = """\
2018-05-01 10:00:00.123 [error] <0.812.0> Error on AMQP connection <0.812.0> (state: running), channel 1:
 operation none caused a connection exception
2018-05-01 10:00:00.123 [info] <0.812.0> closing AMQP connection
"""
RABBIT_36 = """\

=ERROR REPORT==== 1-May-2018::10:00:00 ===
Error on AMQP connection <0.812.0>:
operation none caused a connection exception

=INFO REPORT==== 1-May-2018::10:00:01 ===
accepting AMQP connection
"""
RABBIT_JSON = (
    r'{"time":"2026-11-25 02:29:27.141095+00:00","level":"error","msg":"Error on AMQP connection:\n operation \"none\" '
    r'caused","line":12,"pid":"<0.906.0>"}' + "\n" + '{"time":"2026-11-25 02:29:27.141095+00:00","level":"info",'
    '"msg":"Next","pid":"<0.906.0>"}\n'
)
CLASSIC = """\
2026-11-25 02:28:27,368 | WARN  | Transport failed: broken | org.apache.activemq.broker.TransportConnection | thread
java.io.IOException: broken
\tat java.base/java.net.Socket.read(Socket.java:1)
Caused by: java.net.SocketException: reset
\t... 12 more
2026-11-25 02:28:36,720 | INFO  | Connector stopped | org.apache.activemq | main
"""
ARTEMIS = """\
2026-11-25 02:28:27,368 WARN  [org.apache.activemq.artemis.core.client] AMQ212037: Connection failure
2026-11-25 02:28:28,368 INFO  [org.apache.activemq.artemis.core.server] AMQ221007: Server is now active
"""
ROCKETMQ = """\
2026-11-25 10:28:27 WARN SendMessageThread_1 - the topic is illegal
org.apache.rocketmq.client.exception.MQBrokerException: CODE: 13
\tat org.apache.rocketmq.client.impl.MQClientAPIImpl.processSendResponse(MQClientAPIImpl.java:1)
2026-11-25 10:28:28 INFO main - ok
"""
PYTHON = """\
2026-11-25 10:00:00,123 ERROR worker: failed
Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'ctag1'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 1, in g
pika.exceptions.StreamLostError: gone
2026-11-25 10:00:01,000 INFO worker: next
"""
TRACEBACK = """\
starting
Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'ctag1'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 1, in g
pika.exceptions.StreamLostError: gone
stopping
"""
BASIC = """\
ERROR:pika.adapters:Socket failed
Traceback (most recent call last):
  File "a.py", line 1, in f
OSError: 1
INFO:root:next
"""
CELERY = """\
[2026-11-25 10:00:00,123: ERROR/MainProcess] consumer: Cannot connect
[2026-11-25 10:00:01,123: WARNING/MainProcess] Restoring 1 unacknowledged message(s)
"""
BUNNY = """\
E, [2026-11-25T10:00:00.123456 #812] ERROR -- #<Bunny::Session>: Got an exception
W, [2026-11-25T10:00:01.123456 #812]  WARN -- #<Bunny::Session>: Recovering
"""
PHP = """\
[25-Nov-2026 10:00:00 UTC] PHP Fatal error:  Uncaught PhpAmqpLib\\Exception\\AMQPConnectionClosedException: gone in a.php:1
Stack trace:
#0 a.php(1): f()
#1 {main}
  thrown in a.php on line 1
[25-Nov-2026 10:00:01 UTC] next
"""
PHP_CONSOLE = """\
PHP Fatal error:  Uncaught PhpAmqpLib\\Exception\\AMQPConnectionClosedException: gone in a.php:1
Stack trace:
#0 a.php(1): f()
#1 {main}
  thrown in a.php on line 1
next
"""
MONOLOG = """\
[2026-11-25T10:00:00.123456+00:00] app.ERROR: broken {"exception":"[object]"} []
[2026-11-25T10:00:01.123456+00:00] app.INFO: fine [] []
"""
NODE = """\
Error: Channel closed by server: 406 (PRECONDITION-FAILED) with message "x"
    at C.accept (channel.js:406:17) {
  code: 406
}
next
"""
STRUCTLOG = """\
2026-11-25T10:00:00.123Z [error    ] delivery_lost   [steadyworker] explain=amqp.delivery-timeout key=march
2026-11-25T10:00:01.123Z [info     ] job_started     [steadyworker] key=march
"""
OURS = (
    '{"timestamp":"2026-11-25T10:00:00.123Z","level":"error","event":"delivery_lost","logger":"steadyworker",'
    '"explain":"amqp.delivery-timeout"}\n{"timestamp":"2026-11-25T10:00:01.123Z","level":"info","event":"x","logger":"y"}\n'
)
JAVA_UTIL = """\
Nov 25, 2026 10:00:00 AM org.apache.activemq.Client fail
SEVERE: gone
Nov 25, 2026 10:00:01 AM org.apache.activemq.Client run
INFO: next
"""


@pytest.mark.parametrize(
    ("log", "numbers", "in_first"),
    [
        (RABBIT_4, [1, 3], "channel 19793:\n operation none"),
        (RABBIT_37, [1, 3], "channel 1:\n operation none"),
        (RABBIT_36, [2, 6], "<0.812.0>:\noperation none"),
        (RABBIT_JSON, [1, 2], '[error] <0.906.0> Error on AMQP connection:\n operation "none" caused'),
        (CLASSIC, [1, 6], "\t... 12 more"),
        (ARTEMIS, [1, 2], "AMQ212037"),
        (ROCKETMQ, [1, 4], "CODE: 13\n\tat"),
        (PYTHON, [1, 11], "StreamLostError: gone"),
        (BASIC, [1, 5], "OSError: 1"),
        (CELERY, [1, 2], "Cannot connect"),
        (BUNNY, [1, 2], "Got an exception"),
        (PHP, [1, 6], "thrown in a.php"),
        (PHP_CONSOLE, [1, 6], "thrown in a.php"),
        (MONOLOG, [1, 2], "broken"),
        (NODE, [1, 5], "code: 406\n}"),
        (STRUCTLOG, [1, 2], "explain=amqp"),
        (OURS, [1, 2], "[error] delivery_lost logger=steadyworker explain=amqp.delivery-timeout"),
        (JAVA_UTIL, [1, 3], "SEVERE: gone"),
    ],
)
def test_a_log_becomes_its_records(log: str, numbers: list[int], in_first: str) -> None:
    records = cut(log)
    assert [record.line for record in records] == numbers
    first, last = records[0].text, records[-1].text
    assert in_first in first
    assert is_error(first) == ("WARN" not in first)
    assert not is_error(last)


def test_a_traceback_without_a_log_is_one_record() -> None:
    records = cut(TRACEBACK)
    assert [record.line for record in records] == [1, 2, 11]
    assert is_error(records[1].text)
    assert records[1].text.endswith("StreamLostError: gone")


@pytest.mark.parametrize(
    ("prefixes", "process"),
    [
        (("Nov 25 10:00:00 host rabbitmq-server[812]: ",), "rabbitmq-server[812]"),
        (("<27>Nov 25 10:00:00 host rabbit: ",), "rabbit"),
        (("2026-11-25T10:00:00+0000 host rabbit[812]: ",), "rabbit[812]"),
        (("2026-11-25T10:00:00.123456789Z ",), ""),
        (("2026-11-25T10:00:00.123456789Z stderr F ",), ""),
        (("rabbit-1  | ",), "rabbit-1"),
        (("rabbit-1  | 2026-11-25T10:00:00.123456789Z ",), "rabbit-1"),
        (("[pod/rabbit-0/rabbit] ",), "pod/rabbit-0/rabbit"),
    ],
)
@pytest.mark.parametrize("log", [RABBIT_4, RABBIT_37, CLASSIC, PYTHON, STRUCTLOG, OURS, BUNNY])
def test_what_a_collector_puts_in_front_is_removed(prefixes: tuple[str], process: str, log: str) -> None:
    (put,) = prefixes
    bare, collected = cut(log), cut("".join(f"{put}{line}" for line in log.splitlines(keepends=True)))
    assert [(record.line, record.text) for record in collected] == [(record.line, record.text) for record in bare]
    assert {record.process for record in collected} == {process}


def test_dockers_json_is_unwrapped() -> None:
    lines = [
        rf'{{"log":"{line}\n","stream":"stdout","time":"2026-11-25T10:00:00.1Z"}}' for line in RABBIT_4.splitlines()[2:]
    ]
    (record,) = cut("\n".join(lines))
    assert record.text == RABBIT_4.splitlines()[2]


def test_the_time_of_the_collector_counts_where_the_line_has_none() -> None:
    (record,) = cut("Nov 25 10:00:00 host worker[1]: gone\n")
    assert (record.text, record.stamp) == ("gone", "Nov 25 10:00:00")


def test_records_of_several_processes_may_be_mixed() -> None:
    mixed = "a | 2026-11-25 10:00:00,1 ERROR one\nb | 2026-11-25 10:00:00,2 ERROR two\na | \tat one\nb | \tat two\n"
    assert {record.text for record in cut(mixed)} == {
        "2026-11-25 10:00:00,1 ERROR one\n\tat one",
        "2026-11-25 10:00:00,2 ERROR two\n\tat two",
    }


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("2026-11-25 02:29:27.141095+00:00", 1795573767.141095),
        ("2026-11-25T02:29:27.141Z", 1795573767.141),
        ("2026-11-25T02:29:27.141095123Z", 1795573767.141095),
        ("2026/11/25 02:29:27 UTC", 1795573767),
        ("2026-11-25 02:29:27,141 +0000", 1795573767.141),
        ("2026-11-25 03:29:27 +01:00", 1795573767),
    ],
)
def test_a_time_with_a_zone_is_exact(stamp: str, seconds: float) -> None:
    assert instant(stamp) == seconds


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ("1-May-2018::10:00:00", "1-May-2018::10:00:09", 9),
        ("25-Nov-2026 10:00:00", "25-Nov-2026 10:01:00", 60),
        ("Nov 25, 2026 1:00:00 PM", "Nov 25, 2026 1:00:01 PM", 1),
        ("Nov 25 10:00:00", "Nov 25 10:00:02", 2),
        ("10:00:00.123", "10:00:01.123", 1),
        ("10:00:00,123", "10:00:01,123", 1),
        ("2026-11-25 10:00:00,123", "2026-11-25 10:00:00.223", 0.1),
    ],
)
def test_a_time_without_a_zone_is_good_for_differences(first: str, second: str, apart: float) -> None:
    one, two = instant(first), instant(second)
    assert one is not None
    assert two is not None
    assert two - one == pytest.approx(apart, abs=1e-3)


@pytest.mark.parametrize("stamp", ["", "now", "2026-13-45 10:00:00", "99999999999999999999", "\0"])
def test_what_is_no_time_is_none(stamp: str) -> None:
    assert instant(stamp) is None


# --- Chunks and blocks ------------------------------------------------------------------------------------------------

WHOLE = f"{RABBIT_4}{CLASSIC}{PYTHON}{RABBIT_JSON}{TRACEBACK}{PHP}{NODE}"


@given(st.integers(1, 300))
def test_the_chunks_make_no_difference(size: int) -> None:
    assert cut(WHOLE, size=size) == cut(WHOLE)


def test_ordinary_blocks_are_skipped_and_their_lines_counted() -> None:
    ordinary = "".join(f"2026-11-25 10:00:00,{n % 1000:03} INFO nothing {n}\n" for n in range(20_000))
    cutter = Cutter("log", skip=lambda lines: b"ERROR" not in lines)
    log = f"{ordinary}2026-11-25 10:00:01,000 ERROR gone\n\tat here\n{ordinary}".encode()
    records = [record for at in range(0, len(log), 4096) for record in cutter.feed(log[at : at + 4096])]
    records.extend(cutter.end())
    (error,) = [record for record in records if "ERROR" in record.text]
    assert (error.line, error.text.count("\n")) == (20_001, 1)
    assert cutter.lines == 40_002
    assert records[-1].line == 40_002


@pytest.mark.parametrize("interesting", [True, False])
@pytest.mark.parametrize("shape", ["sl", "ls", "sls", "lsl", "ll"])
def test_long_lines_among_short_ones_are_all_read(shape: str, interesting: bool) -> None:
    """A block that cannot be halved is taken whole."""
    log = "".join("short\n" * 300 if part == "s" else f"{'x' * 60_000}\n" for part in shape)
    cutter = Cutter("log", skip=lambda _: not interesting)
    records = [*cutter.feed(log.encode()), *cutter.end()]
    assert cutter.lines == log.count("\n")
    assert not interesting or len(records) == log.count("\n")


@pytest.mark.parametrize("before", range(40))
def test_a_record_that_begins_in_an_ordinary_block_is_whole(before: int) -> None:
    """The word of interest is in a later line of it, in the next block."""
    filler = "2026-11-25 10:00:00,000 INFO nothing\n" * 1000
    trace = "\tat nowhere\n" * before
    log = f"{filler}2026-11-25 10:00:01,000 WARN broken\n{trace}".encode()
    cutter = Cutter("log", skip=lambda lines: b"cause" not in lines)
    records = [*cutter.feed(log), *cutter.feed(b"Caused by: cause\n"), *cutter.feed(filler.encode()), *cutter.end()]
    (found,) = [record for record in records if "cause" in record.text]
    assert found.line == 1001
    assert found.text.startswith("2026-11-25 10:00:01,000 WARN broken")


# --- Input that is no log ---------------------------------------------------------------------------------------------


@given(st.binary(max_size=2000))
def test_any_bytes_become_records(data: bytes) -> None:
    for record in cut(data):
        assert record.text.strip()
        assert "\x1b[" not in record.text
        is_error(record.text)
        instant(record.stamp)


def test_colours_are_removed() -> None:
    log = "\x1b[2m2026-11-25T10:00:00.123Z\x1b[0m [\x1b[31m\x1b[1merror    \x1b[0m] \x1b]8;;http://x\x07gone\x1b]8;;\x07\n"
    (record,) = cut(log)
    assert (record.text, record.stamp) == ("2026-11-25T10:00:00.123Z [error    ] gone", "2026-11-25T10:00:00.123Z")


def test_a_line_of_100_mb_needs_no_memory() -> None:
    cutter = Cutter("log")
    block = b"x" * (256 << 10)
    tracemalloc.start()
    try:
        records = list(cutter.feed(b"2026-11-25 10:00:00,000 ERROR begins "))
        for _ in range(400):
            records.extend(cutter.feed(block))
        records.extend(cutter.feed(b" ends\n2026-11-25 10:00:01,000 INFO next\n"))
        records.extend(cutter.end())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20
    assert [record.line for record in records] == [1, 2]
    assert records[0].text.startswith("2026-11-25 10:00:00,000 ERROR begins xxx")
    assert records[0].text.endswith("xxx ends")
    assert len(records[0].text) <= LONGEST


@pytest.mark.long
def test_a_record_without_an_end_is_cut() -> None:
    log = "2026-11-25 10:00:00,000 ERROR begins\n" + "\tat somewhere\n" * 200_000
    cutter = Cutter("log")
    records = [*cutter.feed(log.encode()), *cutter.end()]
    assert max(len(record.text) for record in records) <= LONGEST
    assert sum(record.text.count("\n") + 1 for record in records) == 200_001


def test_many_processes_keep_few_open_records() -> None:
    cutter = Cutter("log")
    names = [f"worker-{number}" for number in range(10_000)]
    random.Random(1).shuffle(names)
    records = [record for name in names for record in cutter.feed(f"{name} | gone\n".encode())]
    assert len(cutter._open) == 64
    assert len([*records, *cutter.end()]) == 10_000
