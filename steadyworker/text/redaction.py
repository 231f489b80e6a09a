"""
The removal of secrets from text: URL passwords, `password=…`, `--password …`, private keys, STOMP frames, Authorization,
tokens with a known beginning, the passwords of some commands, and the forms in which Erlang, PHP, Ruby and XML show passwords.

`redact` uses patterns and no URL parser, because a password can contain `/` or `@`, and a list of URLs is not a URL.
In doubt, `redact` removes too much: of the text between `://` and the last `@`, only the user's name remains.
"""

from __future__ import annotations

import base64
import errno
import json
import re
from collections.abc import Mapping
from typing import Any

REDACTED = "***"

LONGEST_VALUE = 4000
"""The largest number of characters of a secret in quotes."""


class _LazyPattern:
    """A pattern that is compiled at its first use: to compile all patterns takes 6 ms, and few processes need each of them."""

    def __init__(self, text: str, flags: int = 0) -> None:
        self._given = text, flags
        self._compiled: re.Pattern[str] | None = None

    @property
    def compiled(self) -> re.Pattern[str]:
        """The compiled pattern."""
        if self._compiled is None:
            self._compiled = re.compile(*self._given)
        return self._compiled


# Every repetition below has a bound, so that the search takes linear time, even in a long line that an attacker wrote.
_WORD = _LazyPattern(r"\S+")
# This matches where a list's next URL starts within a word; every other comma or quote can belong to a password.
_NEXT_URL = _LazyPattern(r"""(?=[,;"'()]{1,3}[a-z][a-z0-9+.-]{0,30}://)""", re.IGNORECASE)
# A key with one of these names identifies a thing, and is no secret.
_PLAIN_KEYS = (
    "bad|binding|cache|composite|dedup|entity|event|foreign|group|hash|header|idempotency|index|invalid|job|lookup"
    "|message|missing|no|object|order|partition|primary|public|range|record|routing|row|same|search|shard|sort"
    "|ssl|surrogate|tls|uniq|unique|unknown|wrong"
)
_NAMES = (
    r"(?:passw(?:or)?d|passphrase|passcode|(?<![a-z])pwd|secret(?:[._-]?key)?|(?:access|account|api|private)[ ._-]?key"
    rf"|(?<![a-z0-9])(?!(?:{_PLAIN_KEYS})[_-])[a-z0-9]{{1,30}}[_-]key|credentials?|(?<!publickey)token|session[_-]?id)"
)
# A value with one of these names is a secret only after `=`, or if the name is in quotes; so `auth: ok` has no secret.
_SHORT_NAMES = r"(?<![a-z0-9])(?:pass|pw|sig(?:nature)?|auth)"
# The value ends at the closing quote; in a cut text without a closing quote, the value ends with the line.
_QUOTED = rf"""(?P<quote> \\{{0,9}}["'])
    (?P<value> (?: (?!(?P=quote)) (?:\\.|.) ){{0,{LONGEST_VALUE}}} ) (?P=quote)?"""
_UNQUOTED = r"""(?: (?!\\[nr]) [^\s,;&"')\]}] )+"""
_PAIR = _LazyPattern(
    rf"""(?P<name> {_SHORT_NAMES} (?: = | \\{{0,9}}["'] \s{{0,9}} (?: => | [=:] ) \s{{0,9}} )
         | {_NAMES} \\{{0,9}}["']? \]?
         (?: \s{{0,9}} (?: => | [=:] ) \s{{0,9}}  # Ruby and PHP print =>
           | \s?,\s? (?=<<\\{{0,9}}")  # a tuple of Erlang
           | \s{{1,9}} value \s?=\s?  # <property name="password" value="x"/>
           | > (?=[^<>\s]) ))  # <password>x
         (?: (?P<before> (?: [\w.]{{0,30}} [(\[{{=] \s? ){{0,3}} (?: << | [bru]{{0,2}} )) {_QUOTED}  # 'x', b'x', SecretStr('x')
           | \{{ [^{{}}"'\n]{{1,200}} \}}  # a value of ODBC that has a ;
           | {_UNQUOTED} )
    """,
    re.IGNORECASE | re.VERBOSE,
)
# These are the arguments of a command, in one text or as a list: `--password x`, `['--password', 'x']`.
_ARGUMENT = _LazyPattern(
    rf"""(?P<name> --[\w-]{{0,30}} {_NAMES} (?: \s{{1,9}} | ["'] \s?,\s{{0,9}} (?=["']) ))
         (?: (?P<before>) {_QUOTED} | (?!-) {_UNQUOTED} )
    """,
    re.IGNORECASE | re.VERBOSE,
)
_PEM = _LazyPattern(
    r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:(?!-----END).){1,20000}(?:-----END[A-Z ]{0,50}-----)?", re.DOTALL
)
# These are the header lines of a STOMP frame, plain or as a client's debug log shows the lines (`\n` escaped, quoted).
_FRAME = _LazyPattern(r"((?:^|\\n|[\"'])(?:login|passcode):)(?:(?!\\[nr])[^\n\"'])+", re.IGNORECASE | re.MULTILINE)
_AUTHORIZATION = _LazyPattern(
    r"""((?:authorization|cookie|(?<![a-z0-9])x-auth) \\{0,9}["']? \s{0,9} [=:] \s{0,9} (?:b(?=["']))? \\{0,9}["']?)  # name, and = or :
        (?:(?!\\[nr])[^\n"',}])+
    """,
    re.IGNORECASE | re.VERBOSE,
)
# SASL's mechanism PLAIN sends NUL, the user, NUL, the password; logs and tracebacks show a NUL in four ways.
_NUL = r"(?:\\{1,9}(?:x00|u0000|0)|\x00)"
_PLAIN = _LazyPattern(rf"""({_NUL}[^\s\\"'\x00]{{1,100}}{_NUL})[^\s\\"'\x00,)\]}}]+""")
_TOKEN = _LazyPattern(r"(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}")  # JSON Web Token
# These are the arguments of a call in a stack trace of PHP: host, port, user, password.
_CALL = _LazyPattern(r"(\b(?:AMQP\w{0,30}Connection|PDO)(?:(?:->|::)\w{1,40})?\((?=[^)\n]))[^\n]+")
_PARAMETERS = _LazyPattern(r'(amqp_params_\w{1,20},<<"[^"\n]{0,200}">>,(?:\{\w{1,20},)?<<")[^"\n]*')  # Erlang's client
_ORACLE = _LazyPattern(r"(jdbc:oracle:\w{1,10}:[^/\s@:]{1,100}/)\S{1,200}(?=@)", re.IGNORECASE)
# GitHub, GitLab, Stripe, Slack, npm and SendGrid begin their tokens with these texts, so that a search can find the tokens.
# Amazon's AKIA… is not in this list, because AKIA… only names a secret key, and a search for a leak needs the name.
_KNOWN_TOKEN = _LazyPattern(
    r"""(?<![a-z0-9]) ( gh[oprsu]_ | github_pat_ | glpat- | [rs]k_(?:live|test)_ | xox[a-z]-
                        | npm_ (?=[a-z0-9]{30}) | (?-i:SG) \. (?=[\w-]{16,64}\.[\w-]{16}) )
        [a-z0-9_-]{8,} (?: \.[a-z0-9_-]{16,} )?
    """,
    re.IGNORECASE | re.VERBOSE,
)
# These are `curl -u user:password`, `mysql -ppassword`, `redis-cli -a password` and similar commands, in one text or as a list.
# MySQL reads the word in `-p word` as a database, but a user can mean a password.
_NEXT = r"""(?: ["'] \s{0,3} ,? \s{0,3} (?=["']) | \s{1,3} )"""
_ATTACHED = r"""(?! \\{0,9} ["'] [\s,:;)\]}] )"""  # the next character is no closing quote
_COMMAND = _LazyPattern(
    rf"""( \b(?: (?P<curl>curl) | (?P<redis>redis-cli) | (?:mysql|mariadb|mongo|rabbitmqadmin|sshpass)\w{{0,10}} )\b
          [^\n]{{0,200}}? (?: \s | (?P<around>["']) )
          (?(curl) (?: -[a-zA-Z]{{0,10}}?[uU] {_NEXT}? | --(?:proxy-)?user (?: = | {_NEXT}) )
           | (?(redis) (?: -a (?: {_NEXT} | {_ATTACHED} ) | --pass {_NEXT} )
              | -p (?: {_NEXT} (?! [-<>|&;] | ["'] - | \d{{1,5}}:\d )  # no option, and no port of `docker run -p`
                 | {_ATTACHED} ) ))
          (?P<quote> \\{{0,9}}["'])? (?(curl) [^\s:"']{{1,100}} : )
        )
        (?(quote) (?: (?!(?P=quote)) (?:\\.|.) ){{1,{LONGEST_VALUE}}}
         | (?(around) (?: (?!(?P=around)) . ){{1,{LONGEST_VALUE}}} | (?: \\\s | [^\s"'] )+ ))
    """,
    re.VERBOSE,
)
# This is `user:password@host` without a scheme; after `mailto`, `from` and similar names, an e-mail address can follow.
# A number after the name of a thing, as in `order:42@eu`, is no password; after another name, a number can be a password.
_LOGIN = _LazyPattern(
    rf"""(?<![\w/.@:+-])(?!(?:mailto|from|to|cc|bcc|e?mail|e-mail|sender|author|contact|node|sip|client_?id|\w{{1,40}}[_-]id):)
        (?! (?:{_PLAIN_KEYS}):\d{{1,20}}@ )
        ([a-z][\w.+-]{{0,60}}:)[^\s:/"'<>]{{1,100}}(?=@[\w\[(])
    """,
    re.IGNORECASE | re.VERBOSE,
)
_BEARER = _LazyPattern(r"\b(bearer\s{1,9})[\w.~+/-]{8,}=*", re.IGNORECASE)
_BASIC = _LazyPattern(r"\b(basic\s{1,9})([a-z0-9+/]{4,}={0,2})", re.IGNORECASE)
# This is a field's path in an error message, as in `$.password: expected str, got int`; such a message has no secret.
_PLACE = _LazyPattern(r"\$(?:\.[\w-]{1,60}|\[\d{1,9}\]){0,9}\.\w{0,60}$")
_LONGEST_PLACE = 700
_WORDS_ABOUT_FIELDS = frozenset({"duplicate", "expected", "field", "input", "missing", "unknown"})
# Java writes the two ports of a connection so: tcp:///127.0.0.1:53836@31200
_PORTS = _LazyPattern(r"[\w.-]{0,90}/[\da-f.:]{3,40}:\d{4,5}@\d{4,5}[\]),;.]{0,3}")
_WORDS = _LazyPattern(r" [a-z]{2,}")
# Erlang writes the name of an error of the system where a secret could be; SQL and programs write that there is no value.
_WORDS_OF_NO_SECRET = frozenset({"nil", "none", "null", "undefined", *map(str.lower, errno.errorcode.values())})
_CLASS_OF_AZURE = _LazyPattern(r"\w{1,60}Credential:")
_PUNCTUATION = 3  # characters; a text of at most this length is no secret if it has no letter or digit
_PREFIX = 2  # characters: b, rb
_PORT_DIGITS = 5
_MARKS = frozenset(":@")
_SECRET_NAME = _LazyPattern(rf"{_NAMES}$|{_SHORT_NAMES}$|authorization$|cookie$|(?<![a-z0-9])x-auth$", re.IGNORECASE)
# Each pattern matches only a text that contains one of these hints; most log texts contain no hint, and need no search.
_HINTS = (
    *("@", "pass", "pw", "login:", "secret", "credential", "token", "cookie", "sig", "auth", "session", "curl"),
    *("mysql", "mariadb", "ghp_", "github_pat_", "glpat-", "k_live_", "k_test_", "xox", "_key", "-key"),
    *("npm_", "sg.", "redis-cli", "mongo", "rabbitmqadmin"),
    *(f"gh{kind}_" for kind in "orsu"),
    *("bearer", "basic", "private key-----", "eyj", "amqp_params", "jdbc:oracle"),
    *("connection(", "connection->", "connection::", "pdo(", "pdo->", "pdo::", "\x00", r"\0", r"\x00", r"\u0000"),
    *(f"{whose}{mark}key" for whose in ("access", "account", "api", "private") for mark in ("", " ", ".")),
)


def redact(text: str) -> str:
    """Return the text with `***` in place of every recognised password, token and Authorization."""
    if not text or not may_hold_secret(text):
        return text
    if "://" in text and "@" in text:
        text = _WORD.compiled.sub(_redacted_word, text)
    text = _AUTHORIZATION.compiled.sub(_redacted_authorization, text)
    text = _BEARER.compiled.sub(rf"\1{REDACTED}", text)
    text = _BASIC.compiled.sub(_redacted_basic, text)
    text = _PEM.compiled.sub(rf"\1{REDACTED}", text)
    text = _FRAME.compiled.sub(rf"\1{REDACTED}", text)
    for pattern in (_PLAIN, _PARAMETERS, _ORACLE, _CALL):
        text = pattern.compiled.sub(rf"\1{REDACTED}", text)
    text = _TOKEN.compiled.sub(REDACTED, text)
    text = _KNOWN_TOKEN.compiled.sub(rf"\1{REDACTED}", text)
    text = _COMMAND.compiled.sub(rf"\1{REDACTED}", text)
    text = _LOGIN.compiled.sub(rf"\1{REDACTED}", text)
    return _PAIR.compiled.sub(_redacted_pair, _ARGUMENT.compiled.sub(_redacted_pair, text))


def may_hold_secret(text: str) -> bool:
    """
    Return True if the text can contain a secret, or the name of a secret.

    The result is False for most log lines; `redact` would replace nothing in such a line.
    """
    lowered = text.lower()
    for hint in _HINTS:  # noqa: SIM110 - `any` of a generator takes twice as long, and every line passes here
        if hint in lowered:
            return True
    return False


def is_secret_name(name: str) -> bool:
    """Return whether a value with this name is always a secret."""
    return may_hold_secret(name) and _SECRET_NAME.compiled.search(name) is not None


def without_secrets(value: Any) -> Any:
    """Return JSON data without the secrets in its names and texts, and without the values of names such as `password`."""
    if isinstance(value, Mapping):
        named = (value.get(name) for name in ("name", "key"))  # as in {"name": "password", "value": "x"}
        secrets = {"value"} if any(isinstance(name, str) and is_secret_name(name) for name in named) else set()
        return {
            redact(name): REDACTED if name in secrets or is_secret_name(name) else without_secrets(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return _redacted_items([without_secrets(inner) for inner in value])
    return redact(value) if isinstance(value, str) else value


def _redacted_items(items: list[Any]) -> list[Any]:
    """Return a list without the secrets that only an earlier item shows, such as the word after `--password`."""
    texts = [item if isinstance(item, str) else None for item in items]
    text = json.dumps(texts, ensure_ascii=False)
    if (redacted := redact(text)) == text:
        return items
    try:
        found = json.loads(redacted)
    except ValueError:
        found = []
    if len(found) != len(items):
        return [REDACTED]  # a secret in the text of the list has no clear end
    return [new if isinstance(item, str) else item for item, new in zip(items, found, strict=True)]


def _redacted_word(match: re.Match[str]) -> str:
    """
    Return the word with a replacement for the password of each `scheme://user:password@`.

    In a list of URLs a password ends at the last `@` of its item.
    """
    items = _NEXT_URL.compiled.split(match[0])
    for index, item in enumerate(items):
        scheme, _, rest = item.partition("://")
        userinfo, at, host = rest.rpartition("@")
        user, colon, password = userinfo.partition(":")
        if at and colon and not _is_port_and_query(password) and not _PORTS.compiled.fullmatch(rest):
            items[index] = f"{scheme}://{user}:{REDACTED}@{host}"
    return "".join(items)


def _is_port_and_query(text: str) -> bool:
    """Return whether this text before an `@` belongs to a URL without a password, such as `8080/users?email=joe`."""
    port, _, path = text.partition("/")
    return port.isdecimal() and len(port) <= _PORT_DIGITS and "=" in path.partition("?")[2] and not _MARKS & set(path)


def _redacted_authorization(match: re.Match[str]) -> str:
    """Return the name without its value; keep the name of an error, as in `.erlang.cookie: eacces`."""
    value = match[0].removeprefix(match[1]).strip(r" \).]")
    return match[0] if value in _WORDS_OF_NO_SECRET else f"{match[1]}{REDACTED}"


def _redacted_basic(match: re.Match[str]) -> str:
    """Return the scheme without its credentials (`user:password` in base64); keep a word that encodes no credentials."""
    given = match[2].rstrip("=")
    decoded = base64.b64decode(given[: len(given) // 4 * 4])
    return f"{match[1]}{REDACTED}" if b":" in decoded else match[0]


def _redacted_pair(match: re.Match[str]) -> str:
    """Return the pair without its value; keep a value that is only the text of an error about a field or a secret."""
    name, quote, before = match["name"], match["quote"] or "", match["before"] or ""
    if quote:
        if len(match["value"]) <= _PUNCTUATION and not any(map(str.isalnum, match["value"])):
            return match[0]  # Unexpected token: '}'
        return f"{name}{before if len(before) <= _PREFIX else ''}{quote}{REDACTED}{quote}"
    return match[0] if _is_no_secret(match, name) else f"{name}{REDACTED}"


def _is_no_secret(match: re.Match[str], name: str) -> bool:
    """Return whether the value of this pair, which has no quotes, is only a word of a message or the name of an error."""
    value = match[0].removeprefix(name)
    text, start, end = match.string, match.start(), match.end()
    if value in _WORDS_ABOUT_FIELDS:
        return _PLACE.compiled.search(text, max(0, start - _LONGEST_PLACE), start) is not None
    if value in {"failed", "not"}:  # secret: not found, credentials: failed to refresh
        return ":" in name and _WORDS.compiled.match(text, end) is not None
    if value in {"NO", "YES"}:  # MySQL: (using password: YES)
        return text.endswith("(using ", 0, start)
    if value == "hash/2":  # a function in a stack trace of RabbitMQ: rabbit_password:hash/2
        return text.endswith("rabbit_", 0, start)
    return value == "?" or value.lower() in _WORDS_OF_NO_SECRET or _CLASS_OF_AZURE.compiled.fullmatch(value) is not None
