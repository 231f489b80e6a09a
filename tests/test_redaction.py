"""Each form in which a password has been seen in a log."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.clock import SystemClock
from steadyworker.text.redaction import _SECRET_NAME, REDACTED, is_secret_name, may_hold_secret, redact, without_secrets


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
        ("Cookie: eacces; b=2", "Cookie: ***"),
        ("password: hash/2", "password: ***"),
        ("password: YES", "password: ***"),
        ("./.erlang.cookie: ABCDEFGHIJ", "./.erlang.cookie: ***"),
        ("amqp://joe:12345@31200.example.com/", "amqp://joe:***@31200.example.com/"),
        ("amqp://joe:12345@host:5672", "amqp://joe:***@host:5672"),
        ("password: failed", "password: ***"),
        ("password: nullify", "password: ***"),
        ("secretKey=abc, accessKey: def", "secretKey=***, accessKey: ***"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: ***"),
        ("{'Authorization': 'Bearer abcdefghijk'}", "{'Authorization': '***'}"),
        ("sent Bearer abcdefgh.ijkl.mnop", "sent Bearer ***"),
        (
            "DRIVER={ODBC};SERVER=db;UID=sa;PWD=hunter2;Encrypt=yes",
            "DRIVER={ODBC};SERVER=db;UID=sa;PWD=***;Encrypt=yes",
        ),
        ("UID=sa;Pwd={hun;ter2};X=1", "UID=sa;Pwd=***;X=1"),
        ("DB_PWD=hunter2", "DB_PWD=***"),
        ("password=b'hunter2'", "password=b'***'"),
        ("Login(password=SecretStr('hunter2'), user='u')", "Login(password='***'), user='u')"),
        ("password=Secret(value=b'hunter2')", "password='***')"),
        ("password=r'hunter2'", "password=r'***'"),
        ('password=("hunter2")', 'password=("***")'),
        ("password='hun\\'ter2', b=1", "password='***', b=1"),
        ('password="hunter2', 'password="***"'),
        ('{"password": "hunter2 and more\n', '{"password": "***"\n'),
        ("AccountName=a;AccountKey=Zm9vYmFy==;X=1", "AccountName=a;AccountKey=***;X=1"),
        ("private_key=abc", "private_key=***"),
        (
            "key: -----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----\nnext",
            "key: -----BEGIN RSA PRIVATE KEY-----***\nnext",
        ),
        ("mysql --password hunter2 --host h", "mysql --password *** --host h"),
        ("Command '['psql', '--db-password', 'hunter2', 'x']'", "Command '['psql', '--db-password', '***', 'x']'"),
        ("sent Basic dXNlcjpwYXNz to h", "sent Basic *** to h"),
        ("Cookie: auth=Z3Vlc3Q6Z3Vlc3Q; m=1", "Cookie: ***"),
        ('[{user,<<"shop">>},{password,<<"hunter2">>}]', '[{user,<<"shop">>},{password,<<"***">>}]'),
        ('#{password => <<"hunter2">>, user => <<"a">>}', '#{password => <<"***">>, user => <<"a">>}'),
        ('{amqp_params_network,<<"u">>,<<"hunter2">>,<<"/">>}', '{amqp_params_network,<<"u">>,<<"***">>,<<"/">>}'),
        (':user=>"u", :password=>"hunter2"', ':user=>"u", :password=>"***"'),
        ("Array ( [user] => u [password] => hunter2 )", "Array ( [user] => u [password] => *** )"),
        (
            r"#1 a.php(9): PhpAmqpLib\Connection\AMQPStreamConnection->__construct('mq', 5672, 'u', 'hun(ter2')",
            r"#1 a.php(9): PhpAmqpLib\Connection\AMQPStreamConnection->__construct(***",
        ),
        ("new AMQPSSLConnection('mq', 5671, 'u', 'p')", "new AMQPSSLConnection(***"),
        ("#0 a.php(7): PDO->__construct('mysql:host=h', 'u', 'p')", "#0 a.php(7): PDO->__construct(***"),
        ('<property name="password" value="hunter2"/>', '<property name="password" value="***"/>'),
        ("<password>hunter2</password>", "<password>***"),
        (r"StartOk(['response=\x00guest\x00hunter2'])", r"StartOk(['response=\x00guest\x00***'])"),
        (r"response=\\x00guest\\x00hunter2 sent", r"response=\\x00guest\\x00*** sent"),
        (r"[{user,<<\"shop\">>},{password,<<\"hunter2\">>}]", r"[{user,<<\"shop\">>},{password,<<\"***\">>}]"),
        ("response \0guest\0hunter2 sent", "response \0guest\0*** sent"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdef_g-h", "got ***"),
        ("jdbc:oracle:thin:scott/tiger@db:1521/x", "jdbc:oracle:thin:scott/***@db:1521/x"),
        ("host=h pass=hunter2 DB_PASS=x", "host=h pass=*** DB_PASS=***"),
        ('{"pass": "hunter2", "pw": "x"}', '{"pass": "***", "pw": "***"}'),
        ("https://h/blob?sv=1&sig=Zm9v%2Fbar%3D&se=2", "https://h/blob?sv=1&sig=***&se=2"),
        ("pw=hunter2; auth=Zm9v; session_id=4711", "pw=***; auth=***; session_id=***"),
        ("signing_key=abc ENCRYPTION_KEY=def", "signing_key=*** ENCRYPTION_KEY=***"),
        ("x-functions-key: abc", "x-functions-key: ***"),
        ('{"storage_key": "abc=="}', '{"storage_key": "***"}'),
        ("the API key: abc", "the API key: ***"),
        ("got ghp_0123456789abcdefghij", "got ghp_***"),
        ("Stripe refused sk_live_0123456789", "Stripe refused sk_live_***"),
        ("xoxb-1234567890-abcdef and glpat-abcdefgh_1", "xoxb-*** and glpat-***"),
        ("curl -sS -u joe:hunter2 https://h/x", "curl -sS -u joe:*** https://h/x"),
        ("['curl', '--user', 'joe:hunter2', 'https://h']", "['curl', '--user', 'joe:***', 'https://h']"),
        ("mysqldump -h db -u root -phunter2 shop", "mysqldump -h db -u root -p*** shop"),
        ("['mysql', '-phunter2', 'shop']", "['mysql', '-p***', 'shop']"),
        ("sshpass -p hunter2 ssh h", "sshpass -p *** ssh h"),
        ("joe:hunter2@db.example.com:5432/shop", "joe:***@db.example.com:5432/shop"),
        ("dsn root:hunter2@tcp(db:3306)/shop", "dsn root:***@tcp(db:3306)/shop"),
        ("root:123456@tcp(db:3306)/shop", "root:***@tcp(db:3306)/shop"),
        ("user:hunter2@db", "user:***@db"),
        ("joe:hun@ter2@db", "joe:***@db"),
        ("joe:a@h1,ann:b@h2", "joe:***@h1,ann:***@h2"),
        ("curl -sSu joe:hunter2 https://h/x", "curl -sSu joe:*** https://h/x"),
        ("curl -kujoe:hunter2 https://h/x", "curl -kujoe:*** https://h/x"),
        ("curl -U joe:hunter2 https://h/x", "curl -U joe:*** https://h/x"),
        ("curl --user 'joe:hun ter2' https://h", "curl --user 'joe:***' https://h"),
        ("curl --user 'joe:hun ter2", "curl --user 'joe:***"),
        ("curl -u joe:hun\\ ter2 https://h", "curl -u joe:*** https://h"),
        (r'{"run": "curl -u \"joe:hun ter2\" https://h"}', r'{"run": "curl -u \"joe:***\" https://h"}'),
        ('["curl","--proxy-user","joe:hun ter2","https://h"]', '["curl","--proxy-user","joe:***","https://h"]'),
        ("['curl', '--user=joe:hun ter2', 'https://h']", "['curl', '--user=joe:***', 'https://h']"),
        ("mysql -u root -p hunter2", "mysql -u root -p ***"),
        ("mysql -u root -p'hun ter2' shop", "mysql -u root -p'***' shop"),
        ("['mysql', '-phun ter2', 'shop']", "['mysql', '-p***', 'shop']"),
        ('mysql -p"hun ter2" shop', 'mysql -p"***" shop'),
        ("mysql -p-hunter2 shop", "mysql -p*** shop"),
        ("rabbitmqadmin -u joe -p hunter2 list queues", "rabbitmqadmin -u joe -p *** list queues"),
        ("sshpass -p 'hun ter2' ssh -p 22 h", "sshpass -p '***' ssh -p 22 h"),
        ("redis-cli -h db -a hunter2 ping", "redis-cli -h db -a *** ping"),
        ("['redis-cli', '--pass', 'hunter2', 'ping']", "['redis-cli', '--pass', '***', 'ping']"),
        ("X-Auth: Token a b", "X-Auth: ***"),
        ("https://s3/b?X-Amz-Signature=abc&x=1", "https://s3/b?X-Amz-Signature=***&x=1"),
        (f"npm refused npm_{'aB3' * 12}.", "npm refused npm_***."),
        (f"SendGrid refused SG.{'aB3_' * 6}.{'-xY9' * 11}.", "SendGrid refused SG.***."),
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
        *("Unexpected token: '}'", "http://api:8080/u?email=a@b.de failed", "secret: not found", "token: not set."),
        *("basic settings of 12345678", "the following arguments are required: --password", "cannot cd: cwd=/srv"),
        *(
            "new AMQPConnection()",
            "AMQPConnectionError(x)",
            "AMQP\\x00\\x00\\t\\x01",
            "cookie hash: abc",
            "eyJust a word",
        ),
        *("routing_key=jobs", "x-dead-letter-routing-key: jobs.dead", "sw-job-key: k", "no-key: expected a message id"),
        *("mailto:joe@example.com", "rabbit@host: down", "auth: ok", "2 pass: 3 fail", "bypass=1", "design=x"),
        *("gcc -pthread x.c", "curl -u joe https://h", "foreign_key=5", "lookup sk_live_x"),
        *(
            "at 10:30@noon",
            "client_id:worker1@18782@0@dn3",
            "ClientID:192.0.2.2@tx",
            "trace --tls-key key.pem",
            "user 'a@b' in vhost '/'",
            "127.0.0.1:53 -> 127.0.0.1:5672",
        ),
        *("order:42@eu", "message:17@node-3", "mysql -u root -p -h db", "mysql -p < dump.sql", '"mysql -p" failed'),
        *("docker run --name mysql -p 3306:3306 mysql:8", "npm_config_registry_of_this_project=x", "redis-cli ping"),
        *("function signature: f(x)", "msg.payload_of_this_message.first_field_of_it", "curl -o out https://h:1/"),
        *("['mysql', '-p', '-h', 'db']", "AKIAIOSFODNN7EXAMPLE", "user 'a@b' said x-authors: c"),
        *("set <password> and <token>", "{frame_too_large,1342177289,131064}"),
        *(
            "Error when reading ./.erlang.cookie: eacces",
            "cookie file 'z:/.erlang.cookie': enoent\",[]",
            "token: etimedout",
        ),
        *("tcp:///127.0.0.1:53836@31200 and mail a@b", "tcp://mq1/10.0.0.7:61616@40112] x", "(using password: YES)"),
        *("rabbit_password:hash/2 line 25", 'identity_key"=NULL,x', "queue_key = ? and x", "password: null"),
        *(
            "PublicKeyToken=89e7d7c5feba84ce'",
            "credentials: failed to refresh",
            "credentials:\n\tChainCredential: none",
        ),
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


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        *("a" * 200_000 + "://@", "a://b:" * 30_000 + "@", "token='" * 20_000, "\\" * 50_000 + "token"),
        *("token=" + "a.(" * 60_000, "token=a(a(a" * 20_000, "token=" * 30_000, "token={a" * 20_000, "-" * 200_000),
        *("eyJ" * 60_000, "eyJ-." * 40_000, "eyJabcdefghijkl." * 12_000, "\0a" * 60_000, r"\x00" * 40_000),
        *("AMQPConnection(" * 12_000, "jdbc:oracle:thin:a/" * 10_000, 'amqp_params_a,<<"' * 10_000, "token>" * 30_000),
        *("curl " * 40_000, "curl -u " * 20_000, "mysql -p" * 20_000, "a:b" * 60_000, "a_key" * 40_000, "a_" * 90_000),
        *(
            "a:b@" * 50_000,
            "sshpass -p " * 20_000,
            "xox" * 60_000,
            "sk_live_" * 20_000,
            "pass=" * 40_000,
            "curl -u a:" * 20_000,
        ),
        *(
            "curl -sSu 'a:" * 20_000,
            "mysql '-p " * 20_000,
            "redis-cli -a " * 20_000,
            "a:" + "@" * 100_000,
            "a:@@" * 40_000,
        ),
        *(
            "SG." * 60_000,
            "SG." + "a" * 100_000,
            "npm_" * 50_000,
            "curl -" + "u" * 100_000,
            "mongo" * 40_000,
            "x-auth:" * 30_000,
        ),
        *("--token " * 20_000, "--token" * 30_000, "basic " * 30_000, "a://b:1/?" * 20_000 + "@"),
        *(
            "-----BEGIN PRIVATE KEY-----" * 8_000,
            "-----BEGIN " * 20_000 + "PRIVATE KEY-----",
            "token=" + "'\\" * 60_000,
        ),
        "".join("token=" + "\\" * (n % 9) + '"' + "x" * 3_900 + "\n" for n in range(50)),
    ],
    ids=lambda text: f"{text[:12]}…",
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
    assert all(map(is_secret_name, ("DB_PASS", "pw", "sig", "auth", "signing_key", "x-functions-key", "session_id")))
    assert not any(map(is_secret_name, ("key", "tokens", "queue", "author", "sw-job-key", "routing_key", "bypass")))


@pytest.mark.parametrize("name", ["fs.s3a.secret.key", "fs.s3a.access.key"])
def test_the_names_of_hadoops_secrets_are_known(name: str) -> None:
    """They come as `spark.hadoop.fs.s3a.secret.key`, with dots."""
    assert is_secret_name(f"spark.hadoop.{name}")
    assert redact(f"spark.hadoop.{name}=hunter2") == f"spark.hadoop.{name}=***"


@given(st.text(max_size=200) | st.from_regex(_SECRET_NAME.compiled))
def test_what_cannot_hold_a_secret_needs_no_second_look(text: str) -> None:
    """The quick look at a whole line lets no text pass that `redact` would change, and no secret's name."""
    if not may_hold_secret(text):
        assert redact(text) == text
        assert _SECRET_NAME.compiled.search(text) is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"amqp://joe:hunter2@host/": 1}, {"amqp://joe:***@host/": 1}),
        (["--password", "hunter2", "--verbose"], ["--password", "***", "--verbose"]),
        (["curl", "-u", "joe:hunter2", {"page": 7}, 5], ["curl", "-u", "joe:***", {"page": 7}, 5]),
        ({"argv": ["run", "--api-key", 'hünter"2']}, {"argv": ["run", "--api-key", "***"]}),
        (["-----BEGIN PRIVATE KEY-----", "hunter2"], ["***"]),
        (["page", "ü", None, ["token: hunter2", 7]], ["page", "ü", None, ["token: ***", 7]]),
    ],
)
def test_json_data_has_no_secret_that_its_text_has_not(data: Any, expected: Any) -> None:
    assert without_secrets(data) == expected
    assert without_secrets(expected) == expected


def test_a_named_value_is_a_secret_by_its_name() -> None:
    """Headers and properties are often a list of such objects."""
    headers = [
        {"name": "Authorization", "value": "Basic abc"},
        {"key": "password", "value": ["hunter2"]},
        {"name": "size", "value": 3},
        {"name": 7, "value": "x"},
    ]
    assert without_secrets({"headers": headers}) == {
        "headers": [
            {"name": "Authorization", "value": REDACTED},
            {"key": "password", "value": REDACTED},
            {"name": "size", "value": 3},
            {"name": 7, "value": "x"},
        ]
    }
