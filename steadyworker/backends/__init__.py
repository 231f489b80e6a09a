"""
From a URL to what it names: the adapter of a broker, and the ledger.

| file | subject |
|---|---|
| `registry.py` | which adapter handles a URL's scheme (entry-point group `steadyworker.adapters`) |
| `opening.py` | open an adapter, a ledger, and find their namespace |
| `connections.py` | connections of a process that sends and does not run jobs |
"""
