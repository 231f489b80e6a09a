"""
A producer and a consumer of rocketmq-client-python, as programs: they run in its environment, which has nothing of ours.

    python rocketmq_client_python.py send SERVERS TOPIC             one message for each line of standard input, in JSON
    python rocketmq_client_python.py take SERVERS GROUP TOPIC MODE  a line of JSON in the file `notes` for each start and end

A message whose body has `gate` runs until there is a file of that name, and one with `fails` is given back.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

os.environ["HOME"] = str(Path.cwd())  # the library writes its logs below it

from rocketmq.client import ConsumeStatus, Message, Producer, PushConsumer, RecvMessage

SERVERS, *ARGUMENTS = sys.argv[2:]


def send() -> None:
    """Send, and print the ids."""
    (topic,) = ARGUMENTS
    producer = Producer(f"{topic}-senders")
    producer.set_namesrv_addr(SERVERS)
    producer.set_timeout(30_000)
    producer.start()
    for line in sys.stdin:
        wanted = json.loads(line)
        message = Message(topic)
        message.set_body(wanted["body"])
        message.set_tags(wanted.get("tags", ""))
        message.set_keys(wanted.get("keys", ""))
        for name, text in wanted.get("properties", {}).items():
            message.set_property(name, text)
        print(producer.send_sync(message).msg_id)
    producer.shutdown()


def note(what: str, message: RecvMessage) -> None:
    """Append a line, in one write."""
    texts = {name: getattr(message, name).decode() for name in ("body", "tags", "keys")}
    texts |= {name: message.get_property(name).decode() for name in ("own", "sw-job-key")}
    line = {"what": what, "id": message.id, "times": message.reconsume_times, **texts}
    with Path("notes").open("a") as out:
        out.write(f"{json.dumps(line)}\n")


def taken(message: RecvMessage) -> ConsumeStatus:
    """Do a job."""
    note("start", message)
    wanted = json.loads(message.body)
    if "fails" in wanted:
        return ConsumeStatus.RECONSUME_LATER
    while "gate" in wanted and not Path(wanted["gate"]).exists():
        time.sleep(0.05)
    note("end", message)
    return ConsumeStatus.CONSUME_SUCCESS


def take() -> None:
    """Consume until SIGTERM, and then end the job that runs, as a program of the library should."""
    group, topic, mode = ARGUMENTS
    consumer = PushConsumer(group, orderly=mode == "orderly")
    consumer.set_namesrv_addr(SERVERS)
    consumer.set_thread_count(1)
    consumer.set_message_batch_max_size(1)
    consumer.subscribe(topic, taken)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    consumer.start()
    stopping.wait()
    consumer.shutdown()


if __name__ == "__main__":
    code = 1
    try:
        {"send": send, "take": take}[sys.argv[1]]()
        code = 0
    except BaseException:  # noqa: BLE001 - the process must end
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)  # the library's threads would keep the process
