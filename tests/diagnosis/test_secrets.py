"""No output of `explain` and `trace` has a secret, in whatever of 30 forms a log or a connection has it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from pamqp import body, commands, frame, header

from steadyworker.cli import verbs
from steadyworker.diagnosis.cli import explain
from steadyworker.diagnosis.scan import open_values
from steadyworker.text.redaction import redact
from tests.diagnosis import sample_files
from tests.diagnosis.explaining import catalogue
from tests.diagnosis.packets import ACK, FIN, PORT, Talk, timed, write_pcap
from tests.diagnosis.test_trace_capture import data, handshake
from tests.diagnosis.told import stomp

MARK = "Hunter2Canary"
JWT = f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{MARK}abcdefgh"

SECRETS = {
    "URL of AMQP": f"amqp://app:{MARK}@broker:5672/shop",
    "URL with odd characters": f"amqps://app:p/@{MARK}@broker/shop",
    "list of URLs": f"failover:(tcp://a:{MARK}@h1:61616,tcp://b:{MARK}@h2:61616)",
    "URL of a database": f"postgresql+psycopg://app:{MARK}@db:5432/shop",
    "URL of Redis without a user": f"redis://:{MARK}@cache:6379/0",
    "login without a scheme": f"root:{MARK}@tcp(db:3306)/shop",
    "JDBC with a parameter": f"jdbc:mysql://db:3306/shop?user=app&password={MARK}&useSSL=true",
    "JDBC for Oracle": f"jdbc:oracle:thin:scott/{MARK}@db:1521/x",
    "JDBC for SQL Server": f"jdbc:sqlserver://db:1433;databaseName=shop;user=sa;password={MARK};encrypt=true",
    "ODBC": f"DRIVER={{ODBC}};SERVER=db;UID=sa;PWD={MARK};Encrypt=yes",
    "libpq": f"host=db user=app password='{MARK} x' dbname=shop",
    "Azure": f"Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey={MARK}=;EntityPath=q",
    "header Authorization": f"Authorization: Basic {MARK}",
    "bearer token": f"sent Bearer {MARK}.x",
    "cookie": f"Cookie: sid={MARK}; theme=dark",
    "set-cookie": f"Set-Cookie: session={MARK}; HttpOnly",
    "header of an API": f"X-Api-Key: {MARK}",
    "JSON": f'{{"user": "app", "password": "{MARK}", "host": "h"}}',
    "JSON in JSON": f'{{\\"client_secret\\": \\"{MARK}\\", \\"a\\": 1}}',
    "Python's dict": f"{{'passcode': '{MARK}', 'login': 'app'}}",
    "YAML": f"secret_key: {MARK}",
    "environment": f"RABBITMQ_DEFAULT_PASS={MARK}",
    "AWS secret key": f"aws_secret_access_key = {MARK}/K7MDENG",
    "presigned URL": f"https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE&X-Amz-Signature={MARK}&x=1",
    "session token of AWS": f"x-amz-security-token: {MARK}",
    "PEM": f"-----BEGIN RSA PRIVATE KEY----- {MARK} -----END RSA PRIVATE KEY-----",
    "JSON Web Token": f"got {JWT} of the app",
    "token of GitHub": f"ghp_{MARK}0123456789abcdef",
    "option": f"app --host h --password {MARK} --verbose",
    "option with a sign": f"app --db-password={MARK} --verbose",
    "curl": f"curl -sS -u app:{MARK} https://h/x",
    "SASL's PLAIN": f"response=\\x00app\\x00{MARK}",
    "Erlang": f'[{{user,<<"shop">>}},{{password,<<"{MARK}">>}}]',
}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue, read once for all these commands."""
    monkeypatch.setattr(explain, "load", lambda _skipped: catalogue())


def test_there_are_thirty_forms() -> None:
    assert len(SECRETS) >= 30
    assert all(MARK in secret for secret in SECRETS.values())


def lines(secret: str) -> str:
    """Known failures and unknown ones, in several formats, each with the secret."""
    at = "2026-03-02 09:14:31"
    return "\n".join(
        [
            f"{at},402 ERROR [app] unheard of: {secret}",
            json.dumps({"time": f"{at}", "level": "error", "msg": f"unheard of: {secret}", "detail": secret}),
            f'{at},402 ERROR [app] (320, "CONNECTION_FORCED - {secret}")',
            f"{at}.402117+00:00 [error] <0.9.0> closing AMQP connection <0.9.0> (10.0.3.17:1 -> 10.0.3.5:5672 - {secret}):",
            f"{at}.402117+00:00 [error] <0.9.0> missed heartbeats from client, timeout: 60s",
            f"{at} [error    ] delivery_lost [steadyworker] explain=amqp.consumer-cancelled key=a what={secret} remedy=rest",
            json.dumps({"level": "error", "event": "lost", "explain": "amqp.silent-broker", "cause": secret}),
            "Traceback (most recent call last):",
            f'  File "app.py", line 7, in <module>  # {secret}',
            f"pika.exceptions.StreamLostError: Stream connection lost: {secret}",
            f"psycopg.OperationalError: connection failed: FATAL:  sorry, too many clients already {secret}",
            f"{at} WARN org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey={MARK}, {secret}",
        ]
    )


@pytest.mark.parametrize("name", SECRETS)
def test_explain_shows_no_secret(tmp_path: Path, name: str) -> None:
    """Neither in a file, nor in what a person pasted, as text and as JSON."""
    log, pasted = tmp_path / "app.log", tmp_path / "pasted.txt"
    log.write_text(lines(SECRETS[name]))
    pasted.write_text("".join(f"> {line}\n" for line in lines(SECRETS[name]).splitlines()))
    for file in (log, pasted):
        for options in ([], ["--json"]):
            result = CliRunner().invoke(verbs, ["explain", str(file), *options])
            assert "amqp.missed-heartbeat" in result.output, "the log is read"
            assert "rocketmq.wrong-signature" in result.output, (
                "the line whose secret has its name outside the value is read"
            )
            assert MARK not in result.output, "\n".join(line for line in result.output.splitlines() if MARK in line)


@pytest.mark.long
def test_no_entry_shows_a_value_that_is_a_secret_in_its_record() -> None:
    """The samples of all entries, each with one of its values once more, as the value of a password."""
    tried: set[tuple[str, str]] = set()
    for identity, samples in sample_files.load().items():
        expressions = [re.compile(pattern.regex, re.MULTILINE) for pattern in catalogue()[identity].patterns]
        for text in (sample.text for sample in samples):
            for match in filter(None, (expression.search(text) for expression in expressions)):
                for name, value in match.groupdict(default="").items():
                    if re.search(r"\w", value) and not re.search(r"[\"\\\n]", value) and redact(value) == value:
                        record = f'{text}\npassword="{value}"'
                        assert name not in open_values({name: value}, record, redact(record)), (identity, value)
                        tried.add((identity, name))
    assert len(tried) >= 1000


@pytest.mark.parametrize(
    ("text", "groups", "shown"),
    [
        ("user 'app' of app", {"user": "app"}, {"user": "app"}),
        (f"accessKey={MARK}, queue jobs", {"user": MARK, "queue": "jobs"}, {"queue": "jobs"}),
        (f"lost: password={MARK} of jobs", {"text": f"password={MARK} of jobs"}, {"text": "password=*** of jobs"}),
        (f"api_key: '{MARK} in two' on channel 2", {"text": "in two", "channel": "2"}, {"channel": "2"}),
        ("password=12, channel 1", {"channel": "1"}, {"channel": "1"}),
        (f"accessKey={MARK}", {"user": MARK[:6]}, {}),
        (
            "what was written in quotes",
            {"what": "a text that was read from them"},
            {"what": "a text that was read from them"},
        ),
    ],
)
def test_a_value_is_shown_unless_it_is_a_secret_in_its_record(
    text: str, groups: dict[str, str], shown: dict[str, str]
) -> None:
    assert open_values(groups, text, redact(text)) == shown


def amqp_bytes(talk: Talk, secret: str) -> list[bytes]:
    properties = commands.Basic.Properties(headers={"note": secret, "password": MARK}, correlation_id=secret[:200])
    message = header.ContentHeader(0, len(secret), properties), body.ContentBody(secret.encode())
    return [
        *handshake(talk),
        talk.packet(data(commands.Queue.Declare(queue="jobs", arguments={"x-note": secret}))),
        talk.packet(data(commands.Basic.Publish(routing_key="jobs"), *(frame.marshal(each, 1) for each in message))),
        talk.packet(data(commands.Channel.Close(406, secret[:200], 0, 0)), by_client=False),
        talk.packet(data(commands.Connection.Close(320, secret[:200], 0, 0)), by_client=False),
        talk.packet(secret.encode()),
        talk.packet(flags=FIN | ACK),
    ]


def stomp_bytes(talk: Talk, secret: str) -> list[bytes]:
    escaped = secret.replace("\\", "\\\\").replace(":", "\\c")
    return [
        *talk.opened(),
        talk.packet(stomp("CONNECT", {"accept-version": "1.2", "login": "app", "passcode": MARK})),
        talk.packet(stomp("CONNECTED", {"version": "1.2", "server": secret}), by_client=False),
        talk.packet(stomp("SEND", {"destination": "/queue/jobs", "note": escaped}, secret.encode())),
        talk.packet(stomp("ERROR", {"message": escaped}, secret.encode()), by_client=False),
        talk.packet(secret.encode() + b"\n\n\0"),
        talk.packet(flags=FIN | ACK),
    ]


@pytest.mark.parametrize("protocol", [amqp_bytes, stomp_bytes], ids=["AMQP", "STOMP"])
@pytest.mark.parametrize("name", SECRETS)
def test_trace_shows_no_secret(tmp_path: Path, name: str, protocol: Callable[[Talk, str], list[bytes]]) -> None:
    """Neither in a terminal, nor as JSON, nor on its page."""
    pytest.importorskip("pcapy", reason="the extra 'pcap' is not installed")
    file = write_pcap(tmp_path / "one.pcap", timed(protocol(Talk(), SECRETS[name])))
    page = tmp_path / "page.html"
    trace = ["trace", "--pcap", str(file), "--port", str(PORT)]
    text = CliRunner().invoke(verbs, [*trace, "--html", str(page)])
    events = CliRunner().invoke(verbs, [*trace, "--jsonl", "-"])
    assert "jobs" in events.output, "the bytes are read"
    for output in (text.output, events.output, page.read_text()):
        assert MARK not in output, "\n".join(line[:400] for line in output.splitlines() if MARK in line)
