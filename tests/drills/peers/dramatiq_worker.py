"""
Dramatiq: `dramatiq tests.drills.peers.dramatiq_worker`; run as a program it sends.

Settings: dramatiq.io, "User guide" (one process, one thread, a prefetch of one from the environment), no time limit.
"""

from __future__ import annotations

import json
import os
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from tests.drills.bodies import HEARTBEAT, QUEUE, perform

broker = RabbitmqBroker(url=f"{os.environ['DRILL_URL']}?heartbeat={HEARTBEAT}", confirm_delivery=True)
dramatiq.set_broker(broker)
actor = dramatiq.actor(perform, actor_name="perform", queue_name=QUEUE, time_limit=float("inf"))

if __name__ == "__main__":
    for line in sys.stdin:
        actor.send(**json.loads(line))
    broker.close()
