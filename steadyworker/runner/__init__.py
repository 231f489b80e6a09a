"""
The runner, which handles the deliveries of one Worker in one worker process.

| file | subject |
|---|---|
| `runner.py` | the loop: handles one event at a time, and then updates the values that depend on all events, such as the prefetch |
| `turn.py` | records the claims and the ends of one turn of the loop in one commit of the ledger |
| `state.py` | the runner's dependencies, the events of the runner's inbox, and the runs and deliveries that the runner holds |
| `causes.py` | the reasons why the runner accepts no message |
| `envelope.py` | reads the job, the hop and the counters from a delivery's headers |
| `deliveries.py` | decides from the job's row on the action for a delivery, and carries it out |
| `unkeyed.py` | gives a key to each message without a key |
| `redeliveries.py` | finds why the broker delivers a message again, for the log |
| `runs.py` | the life of a run, from its claim to its settlement |
| `orphans.py` | finds the jobs whose message is lost, and runs them from the ledger's copy |
| `requests.py` | the requests of a running job: to save a checkpoint or an export's state, to commit, to call a service |
| `planning.py` | makes the plan of a settlement from an outcome, by the decision of `steadyworker.retry.decide` |
| `waits.py` | draws the wait before a job's next attempt; a user's own function can draw this wait |
| `settlement_plan.py` | the record of a message, and the plan of its settlement, as values |
| `settler.py` | carries a plan out; the only caller of `adapter.publish` and `adapter.settle` |
| `slot_health.py` | the slots that cannot begin a run, with the reasons |
| `consumer_audit.py` | compares the queue's consumers with the owners in the ledger |
| `report.py` | the fields of a run in events and logs |
| `letters.py` | reads dead letters, and folds the copies of a job's letter into one letter |
| `dead_jobs.py` | the rows of dead jobs, and the messages of these jobs that the ledger has kept |
"""
