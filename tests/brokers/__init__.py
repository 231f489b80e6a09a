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

    def test_a_claim(database: str) -> None:
        psycopg.connect(database)           # `postgres_cluster` is the server, to be killed

| fixture | what it is | lives as long as |
|---|---|---|
| `rabbitmq` | a broker that runs, once per version wanted | the session |
| `rabbitmq_node` | the same as a `Node`, to be killed and set; healed afterwards | the session |
| `vhost` | a virtual host, a user, their URLs (plain and TLS) | the test |
| `postgres` | a server that runs | the session |
| `postgres_cluster` | the same as a `Cluster`, to be killed; healed afterwards | the session |
| `database` | the URL of an empty database | the test |
| `drivers` | nothing: the JDBC drivers are there | the machine |

Versions: RabbitMQ 3.10 and the newest 4.x that can be had; with `--all-brokers`, 3.10, 4.0 and 4.3.
A test for some of them says `@pytest.mark.parametrize("rabbitmq_series", ["3.10"], indirect=True)`.
Each xdist worker has brokers of its own.

`STEADYWORKER_TEST_AMQP_URL` (with `STEADYWORKER_TEST_AMQP_MANAGEMENT_URL`) and `STEADYWORKER_TEST_POSTGRES_URL` name
servers to use instead; tests that would kill or set them are skipped then.
A broker that cannot be had skips its tests, and fails them where `CI` is set.

By hand: `python -m tests.brokers rabbitmq-4.3 postgres` starts these, prints their URLs, and stops them at Ctrl-C.
"""
