"""
Real brokers and pika are made to say what the catalogue explains, so that a new text of a new version is noticed.

Each provocation of `wrong_rabbitmq.py` does one thing wrong: one for each kind of failure, and not one for each entry of the catalogue.
The broker's own log and pika's log and exceptions are then searched as a whole.
The catalogue has to find the expected entries there, their consequences (`follows`), and nothing else.
These tests are slow ones: they prove the texts of other programs, which change with their versions only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.brokers.rabbitmq import Node, RabbitMQ, Vhost
from tests.brokers.trio import Trio
from tests.diagnosis.explaining import Log, catalogue, consequences, records
from tests.diagnosis.wrong_rabbitmq import CASES, GONE, NEWEST, Case, Scene, on_channel, queue

pytestmark = pytest.mark.slow

LATE = {"amqp.frame-error-close"}
"""What the broker writes some seconds later: perhaps into the log of the next provocation."""


@pytest.fixture(scope="module")
def vhosts() -> Iterator[dict[Node, Vhost]]:
    """The virtual host of this module at each node: one for all provocations, as making one takes longer than most of them."""
    made: dict[Node, Vhost] = {}
    yield made
    for node, vhost in made.items():
        node.heal()
        node.remove_vhost(vhost)


@pytest.fixture
def rabbitmq_node(rabbitmq: RabbitMQ) -> Node:
    """As elsewhere, but not healed after each test: a provocation restores what it has set, and most take less time than to heal."""
    if not isinstance(rabbitmq, Node):
        pytest.skip("these tests read the broker's log, and change its settings")
    return rabbitmq


@pytest.fixture
def scene(rabbitmq_node: Node, vhosts: dict[Node, Vhost]) -> Scene:
    if rabbitmq_node not in vhosts:
        vhosts[rabbitmq_node] = rabbitmq_node.add_vhost()
    return Scene(rabbitmq_node, vhosts[rabbitmq_node])


@pytest.mark.parametrize("told", CASES, ids=[case.name for case in CASES])
def test_each_line_of_the_log_is_explained(scene: Scene, told: Case) -> None:
    if told.series and scene.node.series not in told.series:
        pytest.skip(f"RabbitMQ {scene.node.series} says something else, or nothing")
    log = Log(scene.node.log)
    with scene.keeping_warnings():
        told.act(scene)
        if GONE in told.also:
            scene.wait_for_silence()  # or the next provocation's log would have it
    in_log = log.until(told.broker)
    by_client = records("\n".join(scene.texts))
    assert told.client <= by_client.keys(), scene.texts
    known = consequences(told.broker | told.client) | told.also | LATE
    assert not {name: record for name, record in (in_log | by_client).items() if name not in known}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("rabbitmq_series", ["3.10"], indirect=True)
def test_a_cluster_that_has_lost_nodes(trio: Trio) -> None:
    """First the node of a classic queue, then the majority of a quorum queue."""
    first, second, third = trio.nodes
    scene = Scene(first, first.add_vhost())
    with scene.connection(port=third.amqp) as connection:
        queue(connection.channel(), "mine")
    log = Log(first.log)
    third.kill()
    on_channel(scene, lambda channel: channel.queue_declare("mine", passive=True))
    second.kill()
    on_channel(scene, lambda channel: queue(channel, "new", x_queue_type="quorum"))
    lost = {"rabbitmq.queue-node-down", "rabbitmq.no-majority"}
    assert lost <= records("\n".join(scene.texts)).keys()
    assert log.until(lost).keys() - lost <= LATE | {GONE}


TOOLS = ("rabbitmqctl", "rabbitmq-diagnostics", "rabbitmq-plugins")
ELSEWHERE = {"decommission_mqtt_node", "federation_status", "list_mqtt_connections", "shovel_status", "sync_queue"}
"""Commands of plugins that these nodes do not have, and of RabbitMQ 3."""


def test_each_command_of_the_catalogue_exists(rabbitmq_node: Node) -> None:
    """An operator can run what the catalogue advises: each command is one that RabbitMQ's own help lists, on the newest version."""
    if rabbitmq_node.series not in NEWEST:
        pytest.skip("an older version has not all commands")
    texts = [text for entry in catalogue().values() for text in (*entry.remedies, *entry.verify)]
    for tool in TOOLS:
        advised = {found for text in texts for found in re.findall(rf"\b{tool} ([a-z_]+)", text)}
        help_ = rabbitmq_node._run(rabbitmq_node._enter(rabbitmq_node._program(tool), "help"))
        assert advised - {*re.findall(r"^ +([a-z_]+) ", help_, re.MULTILINE)} - ELSEWHERE == set(), tool
