"""
The variations in which programs write the same failure: other numbers, quotes, prefixes, names, and other clients' sentences.

Each variation is a function of a sample's text; it returns the same text if there is nothing in it to vary.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_HEAD = re.compile(
    r"^(?:[\[(]?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[\])]?,?\s*(?:\|\s*)?"
    r"(?:\[\w+\s*\]\s*|(?:ERROR|WARN|WARNING|INFO|CRITICAL)\b[\s|:-]*)?(?:<[\d.]+>\s+)?)",
)
_AMQP = re.compile(r"\b(?P<name>[A-Z]{2,}(?:_[A-Z]+)+) - (?P<text>[^\n]*?)(?=['\"\\)]*(?:, class-id|, \(\d+, \d|$|\n))")
_SERVER = re.compile(r"caused a (?P<kind>channel|connection) exception (?P<name>[a-z_]+): (?P<text>[^\n]+)")
_CODES = {
    "NOT_FOUND": 404,
    "ACCESS_REFUSED": 403,
    "PRECONDITION_FAILED": 406,
    "RESOURCE_LOCKED": 405,
    "NOT_ALLOWED": 530,
    "FRAME_ERROR": 501,
    "COMMAND_INVALID": 503,
    "CHANNEL_ERROR": 504,
    "UNEXPECTED_FRAME": 505,
    "RESOURCE_ERROR": 506,
    "NOT_IMPLEMENTED": 540,
    "INTERNAL_ERROR": 541,
    "CONNECTION_FORCED": 320,
    "SYNTAX_ERROR": 502,
    "NO_ROUTE": 312,
}


def replaced(pattern: str, instead: str | Callable[[re.Match[str]], str], flags: int = 0) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, instead, text, flags=flags)


def bare(text: str) -> str:
    """Without the time and the level at the beginning of the lines."""
    return "\n".join(_HEAD.sub("", line) for line in text.split("\n"))


def headed(head: str) -> Callable[[str], str]:
    """With another program's time, level and name before the first line; the other lines are as they were."""

    def variation(text: str) -> str:
        return text if text.startswith(("{", "=")) else head + bare(text)

    return variation


def each_headed(head: str) -> Callable[[str], str]:
    def variation(text: str) -> str:
        return text if text.startswith(("{", "=")) else "\n".join(head + line for line in bare(text).split("\n"))

    return variation


def reply(sentence: str) -> Callable[[str], str]:
    """A reply of an AMQP broker, as another client shows it."""

    def variation(text: str) -> str:
        found = _AMQP.search(text)
        if found is None and (found := _SERVER.search(text)) is None:
            return text
        name, words = found["name"].upper(), found["text"].strip()
        if name not in _CODES or len(words) < 8:
            return text
        words = words.strip('"') if "caused a" in found[0] else words
        return sentence.format(
            name=name, text=words, code=_CODES[name], dashed=name.replace("_", "-"), lower=name.lower(),
            camel="".join(part.title() for part in name.split("_")),
        )  # fmt: skip

    return variation


def _thousands(found: re.Match[str]) -> str:
    return f"{int(found[0]):,}"


VARIATIONS: dict[str, Callable[[str], str]] = {
    # numbers
    "2,000 for 2000": replaced(r"(?<![\d.:,\w@#$<{-])\d{4,7}(?= ?(?:ms|s|bytes|seconds|milliseconds|octets|messages)\b)", _thousands),
    "2000 ms for 2000ms": replaced(r"(\d)(ms|s)\b", r"\1 \2"),
    "2000ms for 2000 ms": replaced(r"(\d) (ms|s|seconds)\b", r"\1\2"),
    "2s for 2000 ms": replaced(r"\b(\d+)000 ?ms\b", r"\1s"),
    "2.0 for 2": replaced(r"(?<![\d.:,\w@#$<{-])(\d{1,3})(?= ?(?:s|seconds)\b)", r"\1.0"),
    "seconds in words": replaced(r"\b(\d+) ?s\b", r"\1 seconds"),
    # quotes
    "double quotes": replaced("'", '"'),
    "single quotes": lambda text: text if text.startswith("{") else text.replace('"', "'"),  # JSON has no others
    "backquotes": replaced("'([^'\n]*)'", r"`\1`"),
    "no quotes": replaced(r"(?<!\\)['\"]", ""),
    # spaces
    "spaces within tuples": replaced(r",(?=[\w{<\[\"'])", ", "),
    "no spaces after commas": replaced(r", (?=['\w{<])", ","),
    "two spaces": replaced(r"(?<=[a-z]): (?=\w)", ":  "),
    "no final stop": lambda text: text.rstrip().rstrip(".!"),
    "a final stop": lambda text: f"{text.rstrip()}.",
    # prefixes, levels, times
    "bare": bare,
    "Log4j": headed("2024-05-01 10:00:00.123 ERROR 1 --- [ntainer#0-1] o.s.a.r.l.SimpleMessageListener : "),
    "logback": headed("10:00:00.123 [pool-1-thread-2] WARN  c.e.shop.Orders - "),
    "Python": headed("ERROR:shop.orders:"),
    "Celery": headed("[2024-05-01 10:00:00,123: ERROR/ForkPoolWorker-2] "),
    "Ruby": headed("E, [2024-05-01T10:00:00.123456 #12]  ERROR -- #<Bunny::Session:0x7f>: "),
    "Monolog": headed("[2024-05-01T10:00:00.123456+00:00] production.ERROR: "),
    "Go": headed("2024/05/01 10:00:00 consumer.go:42: "),
    "logrus": lambda text: f'time="2024-05-01T10:00:00Z" level=error msg="{bare(text).partition(chr(10))[0]}"' if "\n" not in text and '"' not in text else text,
    ".NET": headed("fail: Shop.Orders.Consumer[0]\n      "),
    "Serilog": headed("[10:00:00 ERR] "),
    "Heroku": each_headed("2024-05-01T10:00:00.123456+00:00 app[worker.1]: "),
    "syslog": each_headed("May  1 10:00:00 host shop[12]: "),
    "docker compose": each_headed("worker-1  | "),
    "kubectl": each_headed("[pod/shop-6f5d/worker] "),
    "pm2": each_headed("0|shop  | "),
    "klog": headed("E0501 10:00:00.123456       1 consumer.go:42] "),
    "nested": headed("Error: could not consume: "),
    "level [erro]": replaced(r"\[(error|warning|notice)\s*\]", lambda found: f"[{found[1][:4]}]"),
    "level in capitals": replaced(r"\[(error|warning|notice)\s*\]", lambda found: f"[{found[1].upper()}]"),
    # names
    "other processes": replaced(r"<0\.\d+\.\d+>", "<0.12345.678>"),
    "processes of another node": replaced(r"<0\.(\d+)\.(\d+)>", r"<9123.\1.\2>"),
    "hidden processes": replaced(r"<0\.\d+\.\d+>", "<x.y.z>"),
    "IPv6": replaced(r"\b127\.0\.0\.1:(\d+)", r"[::1]:\1"),
    "names of hosts": replaced(r"\b127\.0\.0\.1\b", "rabbit-0.rabbit.shop.svc"),
    "hidden hosts": replaced(r"\b127\.0\.0\.1:\d+", "x.x.x.x:xxxx"),
    "short names of classes": replaced(r"\b(?:[a-z]\w+\.){2,}(?=[A-Z]\w+(?:Exception|Error)\b)", ""),
    "names with points": replaced(r"'shop'", "'shop.orders.v2'"),
    "a node's long name": replaced(r"rabbit@[\w-]+", "rabbit@rabbit-0.rabbit-nodes.shop.svc.cluster.local"),
    # words
    "waiting on": replaced("waiting for", "waiting on"),
    "time-out": replaced(r"\btimeout\b(?=[ :])", "time-out"),
    "time out": replaced(r"\btimed out\b", "timed-out"),
    "small letters": replaced(r"(?<=: )[A-Z](?=[a-z]+ [a-z])", lambda found: found[0].lower()),
    "capitals": replaced(r"(?<=: )[a-z](?=[a-z]+ [a-z])", lambda found: found[0].upper()),
    "could not": replaced(r"\b(?:cannot|can't|can not)\b", "could not"),
    "failed to": replaced(r"\b(?:could not|cannot)\b", "failed to"),
    # the sentences of other clients
    "pika": reply('pika.exceptions.ChannelClosedByBroker: ({code}, "{name} - {text}")'),
    "aio-pika": reply("aiormq.exceptions.Channel{camel}: {name} - {text}"),
    "py-amqp": reply("amqp.exceptions.{camel}: Queue.declare: ({code}) {name} - {text}"),
    "kombu": reply("{camel}({code}, \"{name} - {text}\", (50, 10), 'Queue.declare')"),
    "Java": reply("com.rabbitmq.client.ShutdownSignalException: channel error; protocol method: #method<channel.close>(reply-code={code}, reply-text={name} - {text}, class-id=50, method-id=10)"),
    ".NET client": reply("RabbitMQ.Client.Exceptions.OperationInterruptedException: The AMQP operation was interrupted: AMQP close-reason, initiated by Peer, code={code}, text='{name} - {text}', classId=50, methodId=10"),
    "Go client": reply('Exception ({code}) Reason: "{name} - {text}"'),
    "amqplib": reply('Error: Operation failed: QueueDeclare; {code} ({dashed}) with message "{name} - {text}"'),
    "amqplib's close": reply('Error: Channel closed by server: {code} ({dashed}) with message "{name} - {text}"'),
    "Bunny": reply("/usr/lib/bunny/channel.rb:1956:in `raise_if_continuation_resulted_in_a_channel_error!': {name} - {text} (Bunny::{camel})"),
    "php-amqplib": reply("PHP Fatal error:  Uncaught PhpAmqpLib\\Exception\\AMQPProtocolChannelException: {name} - {text} in /app/vendor/php-amqplib/php-amqplib/PhpAmqpLib/Channel/AMQPChannel.php:216"),
    "ext-amqp": reply("Server channel error: {code}, message: {name} - {text}"),
    "lapin": reply("AMQP soft error: {dashed}: {name} - {text}"),
    "broker's log": reply("2024-05-01 10:00:00.123 [error] <0.1.2> operation queue.declare caused a channel exception {lower}: {text}"),
}  # fmt: skip
