"""
The checks of the broker and the queues before the first message, and the count of consumers.

| file | subject |
|---|---|
| `findings.py` | every finding for a broker, with its remedy |
| `versions.py` | versions that are too old, and versions with a known weakness |
| `probes.py` | facts that a broker shows over STOMP: rights, prefetch, frame limit |
| `risks.py` | settings of addresses and queues with which Artemis loses messages |
| `artemis.py` | questions to Artemis's management |
| `census.py` | the count of consumers, and whether a queue exists |
"""
