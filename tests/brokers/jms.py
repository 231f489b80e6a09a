"""
JMS messages of the kinds that STOMP does not have, sent without a Java client, and what the broker then has.

Classic makes them of its own transformation of a STOMP message; Artemis's management sends them in the encoding of its clients.
"""

from __future__ import annotations

import base64
import json
import struct

from tests.brokers.stomp_broker import StompBroker

OBJECT, MAP, STREAM = 2, 5, 6
"""Artemis's numbers of kinds of messages (`Message.java`)."""


def wide(text: str) -> bytes:
    """A text as Artemis's clients encode it."""
    data = text.encode("utf-16-le")
    return struct.pack(">i", len(data)) + data


def map_of(names: int) -> bytes:
    """A map of so many texts, as Artemis's clients encode it."""
    return (
        b"\x01"
        + struct.pack(">i", names)
        + b"".join(wide(f"n{each}") + b"\x0a" + wide("harbour") for each in range(names))
    )


def managed(broker: StompBroker, queue: str, kind: int, body: bytes) -> None:
    """Have Artemis's management send a message of this kind to a queue."""
    (mbean,) = broker.jolokia.search("org.apache.activemq.artemis:broker=*")
    unless_it_exists = json.dumps({"name": queue, "address": queue, "routing-type": "ANYCAST"})
    broker.jolokia.execute(mbean, "createQueue(java.lang.String,boolean)", unless_it_exists, True)
    (address,) = broker.jolokia.search(f'org.apache.activemq.artemis:broker=*,component=addresses,address="{queue}"')
    send = "sendMessage(java.util.Map,int,java.lang.String,boolean,java.lang.String,java.lang.String)"
    text = base64.b64encode(body).decode()
    broker.jolokia.execute(address, send, {}, kind, text, True, broker.user, broker.password)


def transformed(broker: StompBroker, queue: str, kind: str = "map", persistent: str = "true") -> None:
    """Send a JMS message of this kind to a queue of Classic."""
    body = (
        b"<map><entry><string>n0</string><string>harbour</string></entry></map>"
        if kind == "map"
        else b"<string>harbour</string>"
    )
    headers = {"destination": f"/queue/{queue}", "persistent": persistent, "transformation": f"jms-{kind}-xml"}
    with broker.client() as client:
        client.send_frame("SEND", headers, body, receipt=True)


def send_map(broker: StompBroker, queue: str) -> None:
    if broker.is_artemis:
        managed(broker, queue, MAP, map_of(3))
    else:
        transformed(broker, queue)


def content(broker: StompBroker, queue: str) -> list[str]:
    """What a queue of Classic has of this test's messages, with the content as JMX shows it."""
    found: list[str] = []
    for mbean in broker.jolokia.search(
        f"org.apache.activemq:type=Broker,brokerName=*,destinationType=Queue,destinationName={queue}"
    ):
        found += [json.dumps(each) for each in broker.jolokia.execute(mbean, "browse()")]
    return found


def kinds(broker: StompBroker, queue: str) -> list[int]:
    """The kinds of the messages that a queue of Artemis has, and that no consumer holds."""
    (mbean,) = broker.jolokia.search(f'org.apache.activemq.artemis:*,subcomponent=queues,queue="{queue}"')
    return [
        each["type"] for each in json.loads(broker.jolokia.execute(mbean, "listMessagesAsJSON(java.lang.String)", ""))
    ]
