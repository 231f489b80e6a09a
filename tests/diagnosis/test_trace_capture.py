"""`steadyworker trace --pcap`: captured packets are read as live bytes are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pamqp import base, commands, frame

from steadyworker.cli import verbs
from tests.diagnosis.amqp_client import OPENING, publish
from tests.diagnosis.packets import ACK, FIN, PORT, Talk, timed, write_pcap
from tests.diagnosis.told import START, stomp

pytest.importorskip("pcapy", reason="the extra 'pcap' is not installed")


def run(file: Path, *options: str, port: int = PORT) -> Result:
    return CliRunner().invoke(verbs, ["trace", "--pcap", str(file), "--port", str(port), *options])


def events(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def data(*what: bytes | base.Frame) -> bytes:
    return b"".join(
        each if isinstance(each, bytes) else frame.marshal(each, 0 if "Connection" in each.name else 1) for each in what
    )


def handshake(talk: Talk, beat: int = 0) -> list[bytes]:
    return [
        *talk.opened(),
        talk.packet(OPENING),
        talk.packet(data(START), by_client=False),
        talk.packet(data(commands.Connection.StartOk(response="\0guest\0hunter2"))),
        talk.packet(data(commands.Connection.Tune(2047, 131072, 60)), by_client=False),
        talk.packet(
            data(commands.Connection.TuneOk(2047, 131072, beat), commands.Connection.Open(), commands.Channel.Open())
        ),
        talk.packet(data(commands.Connection.OpenOk(), commands.Channel.OpenOk()), by_client=False),
    ]


def test_a_connection_that_a_second_header_ends(tmp_path: Path) -> None:
    talk = Talk()
    packets = [
        *handshake(talk),
        talk.packet(OPENING),
        talk.packet(flags=FIN | ACK, by_client=False),
        talk.packet(flags=FIN | ACK),
    ]
    result = run(write_pcap(tmp_path / "one.pcap", timed(packets)), "--jsonl", "-")
    assert result.exit_code == 1
    found = events(result)
    assert found[0]["started"] == "2023-11-14T22:13:20.000000+00:00"
    assert found[0]["to"] == f"port {PORT}"
    assert (found[1]["kind"], found[1]["client"]) == ("open", "10.0.0.1:40000")
    assert (found[2]["kind"], found[2]["broker"]) == ("connected", f"10.0.0.2:{PORT}")
    assert found[-1]["flags"] == {"amqp.second-header": 1}
    assert [event["who"] for event in found if event["kind"] == "close"] == ["broker", "client"]
    assert "hunter2" not in result.stdout


@pytest.mark.parametrize("speaks_stomp", [True, False])
def test_a_connection_that_was_open_before(tmp_path: Path, *, speaks_stomp: bool) -> None:
    """Its first packet begins in the middle of a frame; its port is not one that is known."""
    talk = Talk(port=7000)
    message = stomp("SEND", {"destination": "/queue/jobs"}, b"{}") if speaks_stomp else publish("jobs", b"{}")
    packets = [talk.packet(message[9:]), *(talk.packet(message) for _ in range(5))]
    result = run(write_pcap(tmp_path / "joined.pcap", timed(packets)), "--jsonl", "-", port=7000)
    found = events(result)
    assert result.exit_code == 0, found
    kind = "frame" if speaks_stomp else "method"
    assert [event["name"] for event in found if event["kind"] == kind] == [
        "SEND" if speaks_stomp else "Basic.Publish"
    ] * 5


@pytest.mark.parametrize("head", [b'\0\0\0\x0e{"code":105}..', b"\1\0\0\x0e\0\x69\0\1\x97" + bytes(9)])
@pytest.mark.parametrize("port", [10911, 7000])
def test_a_client_of_rocketmq_is_named_with_what_to_do_instead(tmp_path: Path, head: bytes, port: int) -> None:
    """Frames of its remoting protocol: the length, the type (JSON or binary) and length of the header, the header."""
    talk = Talk(port=port)
    remoting = b"\0\0\0\x12" + head
    packets = [*talk.opened(), *(talk.packet(part) for part in (remoting[:5], remoting[5:]))]
    result = run(write_pcap(tmp_path / "one.pcap", timed(packets)), "--jsonl", "-", port=port)
    (flag,) = [event for event in events(result) if event["kind"] == "flag"]
    assert (flag["id"], "speaks RocketMQ's remoting protocol" in flag["what"]) == ("trace.unparsable", True)
    assert "trace reads AMQP 0-9-1 and STOMP. For RocketMQ, let `steadyworker explain` read" in flag["remedy"]
    assert sum(event["size"] for event in events(result) if event["kind"] == "bytes") == len(remoting)
    assert ("10911 is a port of RocketMQ" in result.stderr) is (port == 10911)


def test_the_page_of_a_capture(tmp_path: Path) -> None:
    talk = Talk()
    file = write_pcap(tmp_path / "one.pcap", timed([*handshake(talk), talk.packet(OPENING)]))
    result = run(file, "--html", str(tmp_path / "page.html"), "--flags-only")
    assert result.exit_code == 1
    assert "! amqp.second-header" in result.stdout
    page = (tmp_path / "page.html").read_text()
    assert "amqp.second-header" in page
    assert "hunter2" not in page


@pytest.mark.parametrize(
    ("content", "said"), [(b"no capture", "Expected a capture in"), (None, "Expected packets of port 5672 in")]
)
def test_a_file_without_packets_is_reported(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "file.pcap"
    if content is None:
        write_pcap(file, [])
    else:
        file.write_bytes(content)
    result = run(file)
    assert result.exit_code == 78
    assert said in result.stderr


def test_a_file_that_is_damaged_further_on_has_its_page_with_what_was_before(tmp_path: Path) -> None:
    talk = Talk()
    file = write_pcap(tmp_path / "one.pcap", timed([*handshake(talk), talk.packet(OPENING)]))
    file.write_bytes(file.read_bytes() + b"\xff" * 100)
    result = run(file, "--html", str(tmp_path / "page.html"), "--jsonl", "-")
    assert (result.exit_code, "Expected a capture in" in result.stderr) == (78, True)
    assert events(result)[-1]["flags"] == {"amqp.second-header": 1}
    assert "amqp.second-header" in (tmp_path / "page.html").read_text()
