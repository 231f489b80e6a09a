"""
Real brokers for the tests: started on free loopback ports, gone with the test process, however it ends.

A test asks for a fixture; nothing is installed or started before one does:

    def test_a_message_comes_back(rabbitmq: RabbitMQ, vhost: Vhost) -> None:
        pika.BlockingConnection(pika.URLParameters(vhost.url))

    def test_a_restart_keeps_it(rabbitmq_node: Node, vhost: Vhost) -> None:
        rabbitmq_node.kill()                # also stop, freeze and thaw, ctl, eval, set_delivery_timeout, set_memory_alarm
        rabbitmq_node.start()

    def test_a_client_without_a_certificate(rabbitmq_node: Node) -> None:
        with rabbitmq_node.listener_for_certificates("tlsv1.3") as port: ...

    def test_a_job_comes_back(stomp_broker: StompBroker, queue: str) -> None:
        with stomp_broker.client() as client:       # a witness; the adapter gets `stomp_broker.url`
            client.send(queue, b"m-17")
        assert stomp_broker.depth(queue) == 1       # also delivering, consumers, dead, purge

    def test_a_lost_broker(stomp_node: StompNode, queue: str) -> None:
        stomp_node.kill()                           # also stop, freeze and thaw, close_connections, set_certificate, set_authority
        stomp_node.start()

    def test_a_claim(database: str) -> None:
        psycopg.connect(database)           # `postgres_cluster` is the server, to be killed

    def test_of_any_broker(place: Place) -> None:
        place.publish(place.queue("jobs"), b"{}")       # `own_broker` is its broker, to be killed

| fixture | what it is | lives as long as |
|---|---|---|
| `place` | a test's place at a broker, whichever that is (`place.py`) | the test |
| `own_broker` | the broker of `place`, to be killed, stopped and frozen; healed afterwards | the xdist worker |
| `rabbitmq` | a broker that runs, once per version wanted; all tests of a run share it | the run |
| `rabbitmq_node` | a `Node` of our own, to be killed and set; healed afterwards | the xdist worker |
| `trio` | three nodes of one cluster, to be killed and frozen | the test |
| `vhost` | a virtual host, a user, their URLs (plain and TLS) | the test |
| `rabbitmq_stomp` | the URL of `rabbitmq_node`'s STOMP plugin, which the adapter refuses | the test |
| `stomp_broker` | an ActiveMQ that runs, once per kind wanted; all tests of a run share it | the run |
| `stomp_node` | a `Classic` or an `Artemis`, to be killed and set; healed afterwards | the xdist worker |
| `queue` | the name of a queue there; it and those whose names begin with it are removed | the test |
| `bare_classic` | a `Classic` that delivers delayed messages at once, and sends neither advisory messages nor statistics | the test |
| `rocketmq4` | a `RocketMQ4` (4.9.7) of our own, to be killed and frozen; healed afterwards | the xdist worker |
| `rocketmq5` | a `RocketMQ5` (5.4.0) with a proxy, likewise | the xdist worker |
| `postgres` | a server that runs; all tests of a run share it | the run |
| `postgres_cluster` | a `Cluster` of our own, to be killed; healed afterwards | the xdist worker |
| `pair` | a `Cluster` and its synchronous standby, which can be promoted | the test |
| `database` | the URL of an empty database | the test |
| `pooler` | starts PgBouncer in transaction mode before the server of `postgres` | the test |
| `drivers` | nothing: the JDBC drivers are there | the machine |

Versions: the newest RabbitMQ 4.x that can be had; with `--all-brokers`, 3.10, 4.0 and 4.3.
The tests of `adapters` and `brokers` always run on 3.10 too.
What differs between versions is what the adapter asks and is told: arguments of queues, refusals, delivery timeouts, counters.
A fleet, a drill or an example of README sees the same adapter on each of them.
A test for some versions says `@pytest.mark.parametrize("rabbitmq_series", ["3.10"], indirect=True)`.

Kinds of ActiveMQ (`stomp_kind`): `classic` (6.3) and `artemis`; with `--all-brokers`, `classic-5.18` too.
Each has four listeners (`url`, `tls_url`, `mutual_url`, `other_url`), and a second user who may not count consumers (`limited_url`).
Both are as they are shipped, but for what `activemq.py` and `artemis.py` say.

A place at RocketMQ is by the driver for brokers on 4.9.7, and by that for proxies on 5.4.0; with `--all-brokers`, by the former on 5.4.0 too.
All tests of RocketMQ share one xdist worker, because one line works at a time.

The controlling process of xdist owns the shared brokers, and starts each when the first test asks for it.
Tests that ask for `rabbitmq_node`, `stomp_node` or `own_broker` run on one xdist worker for each version or kind, so that few nodes are started.
A test that asks for `rabbitmq_node` or `postgres_cluster` has its `vhost` or `database` there.
Without xdist the one process has one broker of each kind, for all tests.

`STEADYWORKER_TEST_AMQP_URL` (with `STEADYWORKER_TEST_AMQP_MANAGEMENT_URL`), `STEADYWORKER_TEST_STOMP_URL` (with
`STEADYWORKER_TEST_JOLOKIA_URL`, whose Jolokia must allow `exec`) and
`STEADYWORKER_TEST_POSTGRES_URL` name servers to use instead; tests that would kill or set them are skipped then.
A broker that cannot be had skips its tests, and fails them where `CI` is set.

How they come to this machine, at the first test that asks:

| what | from | once |
|---|---|---|
| RabbitMQ 3.10, PostgreSQL, MariaDB, PgBouncer, the JDBC driver of PostgreSQL | apt, as root on Debian | |
| the JDBC drivers of MySQL and MariaDB | Maven, in `~/.cache/steadyworker/brokers` | 4 MB |
| newer RabbitMQ | debootstrap of a newer Debian suite, in `~/.cache/steadyworker/brokers` | a minute and 380 MB for each suite |
| ActiveMQ Classic, Artemis, RocketMQ | Maven, in the same folder; they need a JDK 17 or newer | 220 MB |
| S3Proxy, a server of buckets | Maven, in the same folder; it needs a Java 17 or newer | 55 MB |
| promtool, buildah, podman, runc, the schemas of Kubernetes | apt, and an environment of their own | 144 MB |
| the peers of drills, rocketmq-client-python (x86-64 only) | pip, in environments of their own | 31 MB |
| Moto, a server of buckets with versions | pip, in the same folder | 160 MB |
| Spark 4.1 beside the newest one, with Delta and Iceberg | pip and Maven | 630 MB |

By hand: `python -m tests.brokers rabbitmq-4.3 activemq postgres` starts these, prints their URLs, and stops them at Ctrl-C.
"""
