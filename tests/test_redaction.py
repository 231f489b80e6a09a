"""Each form in which a password has been seen in a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.clock import SystemClock
from steadyworker.text.redaction import _SECRET_NAME, is_secret_name, may_hold_secret, redact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amqp://u:p@host:5672/v", "amqp://u:***@host:5672/v"),
        ("amqp://u:p@ss/w@host:5672/v", "amqp://u:***@host:5672/v"),
        ("amqps://u:pa,ss@h and mail me@x", "amqps://u:***@h and mail me@x"),
        ('amqp://u:p"q@h/x', "amqp://u:***@h/x"),
        ("amqp://:onlyapassword@h", "amqp://:***@h"),
        ("failover:(amqp://a:b@h1,amqp://c:d@h2)?x=1", "failover:(amqp://a:***@h1,amqp://c:***@h2)?x=1"),
        ("stomp://u:p%40@h:61613,stomp://v:q@i", "stomp://u:***@h:61613,stomp://v:***@i"),
        ('url="amqp://u:p@h", next="a@b"', 'url="amqp://u:***@h", next="a@b"'),
        ("https://u:p@h/?token=abc&x=1", "https://u:***@h/?token=***&x=1"),
        ("CONNECT\nlogin:joe\npasscode:my pass\nhost:x", "CONNECT\nlogin:***\npasscode:***\nhost:x"),
        (r"[b'passcode:s3c\n', b'login:u\n']", r"[b'passcode:***\n', b'login:***\n']"),
        ("{'passcode': 'x y', 'a': 1}", "{'passcode': '***', 'a': 1}"),
        ('{"password": "x y", "host": "h"}', '{"password": "***", "host": "h"}'),
        (r"{\"password\": \"x\", \"b\": 1}", r"{\"password\": \"***\", \"b\": 1}"),
        ("$.password: hunter2", "$.password: ***"),
        ("config.password: expected", "config.password: ***"),
        ("host=h password=hunter2 user=u", "host=h password=*** user=u"),
        ("secretKey=abc, accessKey: def", "secretKey=***, accessKey: ***"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: ***"),
        ("{'Authorization': 'Bearer abcdefghijk'}", "{'Authorization': '***'}"),
        ("sent Bearer abcdefgh.ijkl.mnop", "sent Bearer ***"),
    ],
)
def test_secrets_are_taken_out(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("amqp://host:5672/a", "postgresql://app@db/x", "tokens: 5", "key=abc", "unexpected token: }", "mail a@b"),
        *("10:30", "ValueError: no such merchant: m-17", "FATAL: password authentication failed for user shop"),
        *("$.password: expected str, got int", "bad-payload: $.users[3].api_key: missing", "KeyError: 'password'"),
        *("https://example.com/a?page=2&q=a:b", "see https://example.com/: 3 tokens, write to joe@example.com"),
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@given(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=30))
def test_no_password_in_a_url_survives(tail: str) -> None:
    """Whatever a password is made of, its characters are gone; a blank is no part of a URL."""
    assert "CANARY" not in redact(f"amqp://joe:CANARY{tail.replace('://', '')}@host/")


@given(st.text(max_size=200))
def test_twice_is_once(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text", ["a" * 200_000 + "://@", "a://b:" * 30_000 + "@", "token='" * 20_000, "\\" * 50_000 + "token"]
)
def test_a_huge_line_takes_no_long_time(text: str) -> None:
    clock = SystemClock()
    began = clock.monotonic()
    redact(text)
    assert clock.monotonic() - began < 5


def test_names_of_secrets() -> None:
    assert all(
        map(is_secret_name, ("password", "DB_PASSWORD", "token", "Proxy-Authorization", "client_secret", "cookie"))
    )
    assert not any(map(is_secret_name, ("key", "tokens", "queue", "author")))


@given(st.text(max_size=200) | st.from_regex(_SECRET_NAME))
def test_what_cannot_hold_a_secret_needs_no_second_look(text: str) -> None:
    """The quick look at a whole line lets no text pass that `redact` would change, and no secret's name."""
    if not may_hold_secret(text):
        assert redact(text) == text
        assert not is_secret_name(text)
