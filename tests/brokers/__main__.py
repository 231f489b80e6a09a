"""Start brokers by hand: `python -m tests.brokers rabbitmq-4.3 activemq artemis rocketmq-5.4 postgres`; Ctrl-C stops them."""

from __future__ import annotations

import argparse
import signal
from contextlib import ExitStack, closing, suppress

from tests.brokers.install import MissingError
from tests.brokers.shared import MAKERS

NAMES = {name.replace("classic", "activemq"): maker for name, maker in MAKERS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.brokers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all when none is named")
    names = parser.parse_args().names or [*NAMES]
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"expected some of {', '.join(NAMES)}; got {', '.join(unknown)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background ignores it
    with suppress(KeyboardInterrupt), ExitStack() as started:
        for name in names:
            try:
                broker = started.enter_context(closing(NAMES[name]()))
            except MissingError as missing:
                print(f"{name}: {missing}", flush=True)
                continue
            broker.start()
            where = broker.address
            print(f"{name}: {where.url}", flush=True)
            for url in filter(None, (where.tls_url, where.mutual_url, where.other_url, where.management_url)):
                print(f"  {url}", flush=True)
            certificates = f", certificates {where.certificates}" if where.certificates else ""
            print(f"  pid {broker.pid}, log {broker.log}{certificates}", flush=True)
        print("Ctrl-C stops them.", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
