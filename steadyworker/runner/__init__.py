"""
The runner: what one worker process does with the deliveries of one Worker.

| file | subject |
|---|---|
| `runner.py` | the loop: handles one event at a time, then does what depends on all events, such as the prefetch |
| `state.py` | the runner's dependencies, and the runs and deliveries that it holds |
| `envelope.py` | reads a delivery: which job, which hop, which counters |
| `deliveries.py` | decides from the job's row what to do with a delivery, and does it |
| `runs.py` | the life of a run, from its claim to its settlement |
| `requests.py` | the requests of a running job: to save a checkpoint or an export's state, to commit, to call a service |
| `planning.py` | makes the plan of a settlement from an outcome, as `steadyworker.retry.decide` decides |
| `settlement_plan.py` | the plan of one settlement, as values |
| `settler.py` | carries a plan out; the only caller of `adapter.publish` and `adapter.settle` |
| `slot_health.py` | which slots cannot take a run, and why |
| `consumer_audit.py` | compares the queue's consumers with the owners in the ledger |
| `report.py` | the fields of a run in events and logs |
"""
