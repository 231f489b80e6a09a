"""
`AdapterSuite`: the tests that every adapter must pass.

::

    class TestMyAdapter(AdapterSuite):
        def make_adapter(self, place, spec):
            return open_adapter("my://localhost/tests", spec, Settings())

        def cut(self, adapter):
            kill_connections_of(adapter)

If the broker's `Capabilities` lack a feature, the tests of this feature are skipped.
"""

from __future__ import annotations

from steadyworker.testing.conformance.adapter_consume import ConsumePromises
from steadyworker.testing.conformance.adapter_depth import DepthPromises
from steadyworker.testing.conformance.adapter_publish import PublishPromises
from steadyworker.testing.conformance.adapter_settle import SettlePromises


class AdapterSuite(ConsumePromises, PublishPromises, SettlePromises, DepthPromises):
    """
    Tests of every promise of `steadyworker.adapter.Adapter`.

    Subclass it, and implement `make_adapter` and `cut` (see `AdapterBench`).
    """
