"""
`AdapterSuite`: the definition of an adapter that works.

::

    class TestMyAdapter(AdapterSuite):
        def make_adapter(self, place, spec):
            return open_adapter("my://localhost/tests", spec, Settings())

        def cut(self, adapter):
            kill_connections_of(adapter)

What a broker cannot do is read from its `Capabilities`, and the tests of it are skipped.
"""

from __future__ import annotations

from steadyworker.testing.conformance.adapter_consume import ConsumePromises
from steadyworker.testing.conformance.adapter_publish import PublishPromises
from steadyworker.testing.conformance.adapter_settle import SettlePromises


class AdapterSuite(ConsumePromises, PublishPromises, SettlePromises):
    """Every promise of `steadyworker.adapter.Adapter`; subclass it and say how an adapter is made (`AdapterBench`)."""
