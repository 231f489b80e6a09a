"""Start brokers by hand: `python -m tests.brokers rabbitmq-3.10 rabbitmq-4.3 postgres`; Ctrl-C stops them."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial

from tests.brokers.install import SUITES, MissingError
from tests.brokers.postgres import Cluster
from tests.brokers.rabbitmq import Node

MAKERS: dict[str, Callable[[], Node | Cluster]] = {
    **{f"rabbitmq-{series}": partial(Node, series) for series in SUITES},
    "postgres": Cluster,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.brokers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MAKERS)}; all when none is named")
    names = parser.parse_args().names or [*MAKERS]
    if unknown := [name for name in names if name not in MAKERS]:
        parser.error(f"expected some of {', '.join(MAKERS)}; got {', '.join(unknown)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background ignores it
    with suppress(KeyboardInterrupt), ExitStack() as started:
        for name in names:
            try:
                broker = started.enter_context(closing(MAKERS[name]()))
            except MissingError as missing:
                print(f"{name}: {missing}", flush=True)
                continue
            broker.start()
            print(f"{name}: {broker.url}", flush=True)
            if isinstance(broker, Node):
                print(f"  {broker.tls_url} (CA: {broker.ca_file})\n  {broker.management_url}", flush=True)
            print(f"  pid {broker.pid}, log {broker.log}", flush=True)
        print("Ctrl-C stops them.", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
