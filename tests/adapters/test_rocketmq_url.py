"""What the URLs of RocketMQ can have, and what is refused, because the client library or the other driver could not do it."""

from __future__ import annotations

import string
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steadyworker.errors import ConfigError
from steadyworker.network.url import TLS_OPTIONS, Address
from steadyworker_rocketmq.url import DELAY_LEVELS, FORM, RocketmqUrl, parse_url

CANARY = "c4n4ry"
GRPC, REMOTING = ("group", "queues", "namesrv", "members", "invisible"), ("group", "queues", "delay_levels")


def refused(url: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    return str(caught.value)


# --- What a URL has ---------------------------------------------------------------------------------------------------


def test_a_proxy_without_anything() -> None:
    assert parse_url("rocketmq+grpc://proxy") == RocketmqUrl(
        driver="grpc",
        addresses=(Address("proxy", 8081),),
        user=None,
        password="",
        tls=False,
        group=None,
        namesrv=None,
        members=(Address("proxy", 8080),),
        invisible=60,
        queues=16,
        delay_levels=DELAY_LEVELS,
    )


def test_name_servers_without_anything() -> None:
    servers = (Address("ns", 9876), Address("ns2", 9000))
    found = parse_url("rocketmq://ns,ns2:9000")
    assert found == RocketmqUrl(driver="remoting", addresses=servers, namesrv=servers)
    assert str(found) == "ns:9876,ns2:9000"
    assert not found.tls
    assert found.members is None


def test_everything_that_the_url_of_a_proxy_can_have() -> None:
    found = parse_url(
        "RocketMQ+grpc://acc%2Bess:se%3Acret%2F@10.0.0.1:7000,10.0.0.2"
        "?group=g&queues=256&namesrv=ns;[::1]:9000&members=10.0.0.1:1;10.0.0.2&invisible=43200"
    )
    assert (found.driver, found.tls, found.user, found.password) == ("grpc", False, "acc+ess", "se:cret/")
    assert found.addresses == (Address("10.0.0.1", 7000), Address("10.0.0.2", 8081))
    assert found.namesrv == (Address("ns", 9876), Address("::1", 9000))
    assert found.members == (Address("10.0.0.1", 1), Address("10.0.0.2", 8080))
    assert (found.group, found.queues, found.invisible) == ("g", 256, 43_200)
    assert str(found) == "10.0.0.1:7000,10.0.0.2:8081"
    assert "se:cret/" not in repr(found)


def test_brokers_and_members_can_be_left_unasked() -> None:
    found = parse_url("rocketmq+grpc://proxy:1?namesrv=off&members=off")
    assert found.namesrv is None
    assert found.members is None


def test_the_members_are_asked_at_each_proxys_host() -> None:
    found = parse_url("rocketmq+grpc://10.0.0.1:7000,10.0.0.2")
    assert found.members == (Address("10.0.0.1", 8080), Address("10.0.0.2", 8080))


def test_the_default_levels_are_those_of_a_broker_as_it_is_shipped() -> None:
    shipped = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert len(DELAY_LEVELS) == 18
    for text in (shipped.replace(" ", "+"), quote(shipped), shipped.replace(" ", ","), shipped.replace(" ", ",+")):
        assert parse_url(f"rocketmq://ns?delay_levels={text}").delay_levels == DELAY_LEVELS


@pytest.mark.parametrize(
    ("text", "levels"), [("1s", (1.0,)), ("60s,1m,1d", (60.0, 60.0, 86_400.0)), (",2s,+1h,", (2.0, 3600.0))]
)
def test_levels_of_any_number_and_unit(text: str, levels: tuple[float, ...]) -> None:
    assert parse_url(f"rocketmq://ns?delay_levels={text}").delay_levels == levels


@pytest.mark.parametrize(("option", "least", "most"), [("queues", 1, 256), ("invisible", 10, 43_200)])
def test_numbers_have_borders(option: str, least: int, most: int) -> None:
    for number in (least, most):
        assert getattr(parse_url(f"rocketmq+grpc://h?{option}={number}"), option) == number
    for text in (least - 1, most + 1, -1, "1.5", "%D9%A3%D9%A3", "20s", "+20", "20%0A", "9" * 5000):
        assert f"from {least} to {most}" in refused(f"rocketmq+grpc://h?{option}={text}")


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("rocketmqs://h", "something else"),
        ("rocketmq+grpc://h/vhost", "no path in the broker's URL, got '/vhost'"),
        ("rocketmq+grpc://h?invisble=60", "did you mean invisible?"),
        ("rocketmq+grpc://h?group=", "a value for the option group"),
        ("rocketmq://h?delay_levels=", "a value for the option delay_levels"),
        ("rocketmq://h?delay_levels=,", "at least 1s, each a whole number"),
        ("rocketmq://h?delay_levels=0s", "at least 1s, each a whole number and its unit s, m, h or d, got '0s'"),
        ("rocketmq://h?delay_levels=1s,5", "whole number and its unit s, m, h or d, got '5'"),
        ("rocketmq://h?delay_levels=1S", "got '1S'"),
        ("rocketmq://h?delay_levels=1.5s", "got '1.5s'"),
        ("rocketmq://h?delay_levels=1s,1w", "got '1w'"),
        ("rocketmq://h?delay_levels=1s,1m,59s", "levels in ascending order, got '59s' after '1m'"),
        ("rocketmq+grpc://h?namesrv=ns:0", "got 'ns' with a port that is not from 1 to 65535: write namesrv=host:9876"),
        ("rocketmq+grpc://h?namesrv=a;;b", "got none: write namesrv="),
        ("rocketmq+grpc://h?namesrv=a,b", "host:port;host2, or off, as the option namesrv"),
        ("rocketmq+grpc://h?members=a/b", "host:port;host2, or off, as the option members"),
        ("rocketmq+grpc://h?members=h:x", "got 'h' with a port that is not from 1 to 65535: write members=host:8080"),
    ],
)
def test_what_is_wrong_is_named(url: str, part: str) -> None:
    assert part in refused(url)


@pytest.mark.parametrize(
    ("scheme", "option", "belongs"),
    [
        *(("rocketmq", option, "rocketmq+grpc") for option in GRPC if option not in REMOTING),
        *((f"rocketmq+grpc{s}", "delay_levels", "rocketmq") for s in ("", "s")),
    ],
)
def test_an_option_of_the_other_driver_is_refused(scheme: str, option: str, belongs: str) -> None:
    text = refused(f"{scheme}://h?{option}=off")
    assert f"the option {option} only in a URL that begins with {belongs}://, got " in text
    assert "leave the option out" in text


def test_every_option_belongs_to_a_driver() -> None:
    assert set(FORM.options) == {*GRPC, *REMOTING}


@pytest.mark.parametrize("scheme", FORM.ports)
@pytest.mark.parametrize("option", TLS_OPTIONS)
@pytest.mark.parametrize("written", ["{}", "queues=1&{}"])
def test_files_of_tls_are_refused_with_what_to_do(scheme: str, option: str, written: str) -> None:
    """Before a file is looked for, and without the advice to write another scheme where the option is refused, too."""
    text = refused(f"{scheme}://h?{written.format(option)}=/nowhere.pem")
    assert f"Expected no option {option} in the broker's URL" in text
    assert ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" in text) == (option == "cafile" and scheme != "rocketmq")
    assert ("this driver has no TLS" in text) == (scheme == "rocketmq")


@pytest.mark.parametrize("scheme", FORM.ports)
def test_files_of_tls_are_not_offered(scheme: str) -> None:
    """Not in the list of the options, and not as what a wrong option was meant to be."""
    for name in ("cafiles", "server%5Fname", "nonsense"):
        text = refused(f"{scheme}://h?{name}=x")
        assert f"Expected only the options {', '.join(FORM.options)} in the broker's URL, got " in text
        assert "did you mean" not in text


def test_tls_has_one_host() -> None:
    """Of several addresses, gRPC makes one name, which no certificate has (tried with grpcio 1.85)."""
    for host in ("proxy", "10.0.0.1"):
        assert parse_url(f"rocketmq+grpcs://{host}").tls
    assert "Expected one host in a URL that begins with rocketmq+grpcs://, got 2" in refused(
        "rocketmq+grpcs://10.0.0.1,10.0.0.2"
    )


@pytest.mark.parametrize("hosts", ["a,b", "10.0.0.1,b", "b,10.0.0.1:1", "10.0.0.1,10.0.0", "a,a", "10.0.0.1,010.0.0.1"])
def test_several_hosts_with_a_name_are_for_name_servers_only(hosts: str) -> None:
    for scheme in ("rocketmq+grpc", "rocketmq+grpcs"):
        assert "Expected one name, or IPv4 addresses only" in refused(f"{scheme}://{hosts}")
    assert len(parse_url(f"rocketmq://{hosts}").addresses) == 2


@pytest.mark.parametrize("scheme", ["rocketmq+grpc", "rocketmq+grpcs"])
def test_an_ipv6_address_is_refused_for_proxies(scheme: str) -> None:
    """The client library splits an address at its first colon."""
    for host in ("[::1]", "[::1]:8081", "10.0.0.1,[fe80::1]:1"):
        assert "splits an address at its first colon" in refused(f"{scheme}://{host}")


def test_name_servers_can_have_ipv6_addresses() -> None:
    assert parse_url("rocketmq://[::1],ns:1").addresses == (Address("::1", 9876), Address("ns", 1))
    for host in ("[::g]", f"[{CANARY}:1]", "[fe80::1%25eth0]"):
        text = refused(f"rocketmq://{host}")
        assert "got another character in host 1" in text
        assert CANARY not in text


@pytest.mark.parametrize("hosts", ["a;b", "a b", "a\n", "a%2Cb", "ä", "\udce9", "a\0"])
@pytest.mark.parametrize("scheme", ["rocketmq", "rocketmq+grpc"])
def test_a_host_with_another_character_is_refused(scheme: str, hosts: str) -> None:
    assert "commas between two hosts, got another character in host 2" in refused(f"{scheme}://10.0.0.1,{hosts}")


@pytest.mark.parametrize("scheme", ["rocketmq", "rocketmq+grpc"])
@pytest.mark.parametrize(
    ("login", "part"),
    [
        ("bob", "got no secret"),
        ("bob:", "got no secret"),
        (f":{CANARY}", "got no access key"),
        ("", "got no access key and no secret"),
        (f"bob:{CANARY}%0A", "without control characters"),
        (f"bo%00b:{CANARY}", "without control characters"),
        (f"bob:{CANARY}\udce9", "without control characters"),
        (f"bob:{CANARY}%7F", "without control characters"),
        (f"bob:{CANARY}%C2%85", "without control characters"),
    ],
)
def test_a_login_is_whole_and_can_be_sent(scheme: str, login: str, part: str) -> None:
    text = refused(f"{scheme}://{login}@h")
    assert part in text
    assert CANARY not in text


@pytest.mark.parametrize("key", ["b%20ob", "b%2Cob", "%C3%A4"])
def test_an_access_key_that_a_proxy_cannot_read_is_refused_for_a_proxy(key: str) -> None:
    assert "a proxy gets it in a header" in refused(f"rocketmq+grpc://{key}:{CANARY}@h")
    assert parse_url(f"rocketmq://{key}:{CANARY}@h").password == CANARY


# --- Secrets ----------------------------------------------------------------------------------------------------------

SCHEMES = st.sampled_from(["rocketmq+grpc", "rocketmq", "http"])  # with TLS, a parse takes 50 ms
MARKS = st.text(st.sampled_from(string.punctuation + " %0A\n\t\0é\udce9x"), max_size=6)
HOSTS = st.sampled_from(["h", "a,b", "[::1]", "[::1", "h:bad", "h:0", "", "10.0.0.1,b", "a;b", "h,", "h/path", "h#x"])
OPTIONS = st.lists(
    st.tuples(
        st.sampled_from([*FORM.options, *TLS_OPTIONS, "nonsense", "", "group"]),
        st.sampled_from(["off", "", "1", "20", "1s,5s", "5s,1s", "h:1;h", "x y", "=", "%00"]),
    ),
    max_size=3,
).map(lambda pairs: "".join(f"{'&' if number else '?'}{name}={value}" for number, (name, value) in enumerate(pairs)))


@given(SCHEMES, MARKS, MARKS, st.booleans(), HOSTS, OPTIONS)
@example("rocketmq", "?cafile=", "", False, "h", "")
@example("rocketmq+grpc", "?", "=", False, "h", "")
def test_no_text_contains_the_secret(
    scheme: str, before: str, after: str, is_encoded: bool, hosts: str, options: str
) -> None:
    """Whether the secret is percent-encoded or not, and whatever else is wrong."""
    secret = f"{before}{CANARY}{after}"
    login = quote(secret, safe="", errors="surrogatepass") if is_encoded else secret
    shown: list[object] = []
    try:
        found = parse_url(f"{scheme}://access:{login}@{hosts}{options}")
        shown += [found, repr(found)]
    except ConfigError as error:
        shown += [error, repr(error.__cause__), repr(None if error.__suppress_context__ else error.__context__)]
    assert CANARY not in "".join(map(str, shown))


@pytest.mark.parametrize("option", ["namesrv", "members"])
@pytest.mark.parametrize("text", [f"bob:{CANARY}@ns", f"bob:{CANARY}%40ns:9876", f"bob:{CANARY}", f"bob:{CANARY}/;ns"])
def test_a_secret_in_a_list_of_hosts_is_not_repeated(option: str, text: str) -> None:
    assert CANARY not in refused(f"rocketmq+grpc://h?{option}={text}")


def test_a_secret_before_a_host_that_was_forgotten_is_not_repeated() -> None:
    for url in (f"rocketmq+grpc://bob:{CANARY}", f"rocketmq://h1,bob:{CANARY}!", f"rocketmq://bob;{CANARY}"):
        assert CANARY not in refused(url)
