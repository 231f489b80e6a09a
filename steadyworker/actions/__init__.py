"""
Actions: what a person does with jobs, dead letters and queues.

The command line, `Client` and other programs share these actions.
Each action works on one queue or one worker process, and can be repeated: a second call changes only what the first call has not changed.
An action on many jobs handles one job after the other, and reports each of them.
If the broker or the ledger fails during an action, the action ends with an `ActionReport` of the finished jobs and the error.
The jobs after that point are unchanged; a repeated action handles them.

After its effect, each action writes an entry to the ledger's log of actions: the person, the action, the jobs, their number.
If this entry cannot be written, the action still counts, and `ActionReport.unlogged` has the cause.

| file | content |
|---|---|
| `report.py` | the report of an action; the log of actions |
| `jobs.py` | cancel, undo a cancel, retry now, retry at another time |
| `deadletters.py` | a dead-letter queue, the reason for each letter, and the two ways out of the queue |
| `letters.py` | replay and drop dead letters, chosen by their facts |
| `queues.py` | pause, resume, purge |
| `workers.py` | a command to a worker process: quiet, resume |
"""
