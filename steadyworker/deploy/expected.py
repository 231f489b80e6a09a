"""What a deployed file is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steadyworker.adapter import Capabilities
from steadyworker.config.resolve import Options
from steadyworker.deploy.numbers import Numbers
from steadyworker.spec import WorkerSpec


@dataclass(frozen=True, slots=True)
class Expected:
    """Workers, their settings, the abilities of their brokers in the same order, and the numbers of all these."""

    specs: Sequence[WorkerSpec]
    options: Options
    brokers: Sequence[Capabilities]
    numbers: Numbers

    @property
    def on_one_host(self) -> bool:
        """True if neither a broker nor the ledger is reached over a network."""
        return self.options.ledger_is_local and all(broker.one_host for broker in self.brokers)
