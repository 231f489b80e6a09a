"""
The code that finds and opens the brokers and ledgers that URLs name.

| file | subject |
|---|---|
| `registry.py` | find the adapter for a URL's scheme (entry-point group `steadyworker.adapters`) |
| `opening.py` | open an adapter and a ledger, and find the namespace of a queue's jobs |
| `connections.py` | the connections of a process that sends jobs and runs none |
| `batches.py` | publish many messages |
| `questions.py` | ask a broker with a short time limit |
| `waiting.py` | what waits in each queue, for people |
"""
