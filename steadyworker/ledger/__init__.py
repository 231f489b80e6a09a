"""
The ledger: the durable record of jobs, and the life of a job.

Each job has one row; (namespace, queue, key, round) is the row's primary key.
A replay of a dead letter, or a send with `again=True`, raises the round.
The row records the worker process that runs the job, the end of its lease, the job's checkpoint, and the job's outcome.
Beside the row, the ledger keeps the job's message, so a claimed job does not depend on the broker's copy.
It also keeps the last 20 runs of the job, for people; the section "Attempts" explains them.
No event of a connection changes a row, so no event of a connection starts a job again.

`base` has the Protocol of all ledgers, and `facts` has the records for people, which decide nothing.
`sqlite` implements this Protocol for one host, and `postgres` for a fleet; `shared` has the code that both use.
`steadyworker.testing.memory_ledger` implements the Protocol for tests.

States
------
::

                ┌──────────── claim ────────────────────────────────────────────┐
                ↓                                                               │
    no row → running ──→ interrupted (stopped by its worker process) ───────────┤
              │    │                                                            │
              │    └───→ moving (settlement recorded, ──→ moved (retry sent) ───┘
              │              message not yet confirmed) └→ dead  (dead letter sent)
              └────────→ done

`dead replay` first inserts the row of the next round.
This row is `moved`, its retry is due now or after the chosen delay, and it has the message of the dead letter.
Then `dead replay` publishes the message.
The hop of this row is -1, so the round's first message, with hop 0, counts as the row's retry.
`retry` and `reschedule` first give a `moved` row another time and a hop above the hop of its delayed message.
Then they publish a message with the next hop, for which the row now waits; the delayed message counts as a duplicate.
A retry that arrives also claims a row that is still `moving`, because the arrival proves that the publish succeeded.
A claim of a job whose owner is gone leaves the row `running`, with a new owner.
`Client.cancel` sets a cancel mark in the job's row.
If the job has no row, `Client.cancel` inserts an `interrupted` row, which accepts a message with any body.
Each worker process reads the marks of its running jobs every 2 s, in one query; the same query reads the pauses of queues.
If a job has a cancel mark, the ledger refuses every commit of the job's exports, so an accepted cancel stops every later commit.
If a job already has a mark at its claim, the job does not run, and becomes a dead letter.
`cancel --undo` removes the mark of an `interrupted` or `moved` row, because no run can have read it; a row that only holds a mark is deleted with the mark.

Decision table
--------------
For each delivery the runner reads the row and calls `steadyworker.ledger.rules.action_for`.
The first line of the table that fits decides.
The hop is the number of a job's message: 0 for the first message, and one more for each retry.
The column "held by" has the values of `HeldBy`, which the section "The holder of a row" explains.
A *letter* is the job's own dead letter, which an operator has moved unchanged from the dead-letter queue to the work queue.

| row | hop of the delivery | held by | action |
|---|---|---|---|
| none | any; a letter | - | `Replay`: decide again, as on the first message of the next round |
| none | any | - | `Claim`: run the job, with the counters from the message's headers |
| any state, another body | any | any | `KeyConflict`: make the delivery a dead letter, and count it in the row; change nothing else in the row |
| dead, or moving to a dead letter | any; a letter | any | `Replay` |
| done, dead | any | any | `AckDuplicate`: acknowledge the delivery, run nothing |
| any other state | lower than the row's | any | `AckDuplicate`: a retry has replaced this message |
| interrupted | same or higher | - | `Claim` |
| moved | same | - | `AckDuplicate`: the retry has been sent |
| moved, or moving to a retry | higher, and due in more than 1 s | any | `Defer`, for at most the time that is left |
| moved, or moving to a retry | higher, and due | any | `Claim`: this message is the retry |
| running, moving | same or higher | DETACHED | `Adopt`: settle the run with this delivery |
| running, moving | same or higher | MINE, ALIVE | `Defer`, for 30 s |
| moving | same or higher | LOST, GONE | `Finish`: complete the settlement, run nothing |
| running | same or higher | LOST | `Claim`, without counting a loss |
| running | same or higher | GONE, fewer losses than `max_losses` | `Claim`, and count a loss: the job is taken over |
| running | same or higher | GONE, `max_losses` reached | `LostTooOften`: record a dead letter, then complete its settlement |

The letter of round n always replays as round n + 1, even if the key already has later rounds.
So two copies of a letter lead to one replay, even if an operator moved the first copy and `dead replay` published the second.
If a letter arrives while its row is still `moving`, the arrival proves that the publish of the letter succeeded.
`Defer` publishes a delayed message with the same hop, waits for its confirm, and acknowledges the delivery.
Then `Defer` records in the ledger when this message comes, so the job's message does not count as lost before that time.
If the broker has no delays, the runner keeps the delivery and decides again after 30 s.
The count of losses starts again at 1 if the lost run had saved a checkpoint.
Each of `Claim`, `Finish` and `LostTooOften` is one compare-and-set, which gives the row a new fence.
If the ledger refuses this write, the runner reads the row again and decides again.
A claim waits while an earlier run of the same job is still in a slot of this process.
While the ledger is unreachable, the runner decides nothing: it holds its deliveries and sets the prefetch to 0.

Messages without a key
----------------------
The table needs a key, so the runner replaces a message without a key by a copy with a generated key (`runner/unkeyed.py`).
The broker confirms the copy before the runner acknowledges the original, so no message is lost.
A kill between these two steps leads to a second job.
If the full work queue refuses the copy, the copy gets a delay of 30 s, and the runner claims the job at once.
This run begins without a delivery, like a DETACHED run; the decision table decides on the copy when the copy arrives.
The runner claims the job only after the copy's confirm, so a row never waits for a message that does not exist.

A job whose message is lost
---------------------------
The transaction of a claim also stores the job's message: the body, the headers, and all other facts that a handler can see.
The transaction that records `done` deletes the message.
In all other cases, the ledger deletes the message together with the row.
A `dead` job keeps its message for a replay.
So the job can run after any loss of the broker's copy, such as a purge, an expiry, a delivery limit or a lost disk.

The state of a claimed row determines when a message of its job must come:

| row | a message must come |
|---|---|
| running, moving | when lease and margin are over |
| interrupted | at once |
| moved | when the retry is due, by the delay level that the adapter chose |
| any of these, after `Defer` | when the deferred message comes, if that is later |

If no message comes within `orphan_after` seconds after this time, the message counts as lost, and the job is an *orphan*.
The option `orphan_after` is at least the greatest of these four: the sum of lease and margin, twice the delay of `Defer`,
and `forgets_consumers_within` and `redelivers_within` in the adapter's `Capabilities`.

Each worker process asks the ledger every 30 s for orphans of its own queues.
A worker process runs an orphan only if this process would have received the job's message.
All of these conditions must hold:

- the process has a prefetch above 0, because it is not quiet, draining, blocked or unfit, its queue is not paused, and it has a free slot;
- by the monotonic clock, the process has renewed its leases and consumed from the broker without a gap for `orphan_after` seconds;
- the process has asked for a message, and has received no message for `answers_within` seconds, a time that the adapter names.

So an outage of the ledger or the broker, a suspended host or a long queue makes no orphan.
In a queue that is never empty, an orphan gets the next free slot if its message is an hour late.
This requires that another message has come since the orphan's message was due, and that the process could receive messages for this hour.
The runner makes a delivery of the kept message, and the decision table applies to this delivery.
The delivery has the row's hop; if the row is `moved`, the delivery has the row's hop plus 1.
So the counters change in the same way as with the broker's message.
If several worker processes find the same orphan, the claim's compare-and-set decides.
If the lost message comes later, the decision table settles it like any second copy.
The log line `message_lost` names the job's last worker process, and what becomes of the job.

In two cases, no worker process runs such a job by itself.
The commands `jobs` and `check` list the job.
As soon as no message waits in the queue, a worker process also reports the job once. The two cases are:

- *Old record.* After the last claim of the job, the ledger went back in time, or for an hour the queue had no registered owner.
  A restored backup, or a fail-over without the last commits, makes a ledger go back in time.
  After a move to another ledger, a queue has no owner in this ledger.
  In all these cases, the job can be done without a record in this ledger.
  `steadyworker retry` publishes the kept message again; if the job has a cancel mark, the job then becomes a dead letter.
- *No message.* The Worker has `keep_message = False`, the body is above `max_body`, or an older version of SteadyWorker claimed the job.
  Then only the sender has the content: send the job again with `--again`.
  If such a job moves to a dead letter, the job becomes `dead` without a letter, as soon as no message waits in the queue.

A row that `cancel` inserted for a job that was never claimed is no orphan.

| what | with a lost message |
|---|---|
| a purge, or the deletion of the queue | stops no claimed job; only `cancel` stops a claimed job |
| a queue that was deleted, if `topology` is not `declare` | the worker process is not ready, and names the queue; the jobs go on when the queue exists |
| a message without a key | the copy with the generated key is the job's message; before the claim, only the broker has it |
| rounds | each round has its own message; only the last round of a key can run as an orphan; an earlier round that moves to a dead letter still gets its letter |
| `retry`, `reschedule` | raise the row's hop before the publish; if this process dies between the two, the delayed message counts as a duplicate, and the job runs as an orphan at its new time |
| `dead replay` | inserts the next round's row and message before the publish, so this round runs even if the broker loses the message |
| a dead letter that is lost | `dead replay` uses the kept message; `dead drop` deletes the kept message with the row |
| `send --again` | makes another round, which replaces the unfinished round; the unfinished round becomes `dead` without a run, unless its message comes first |
| `--max-jobs` | counts a run of an orphan like any run; it does not count an orphan whose settlement a process only completes |
| quiet, draining, paused | the process runs no orphan, because it receives no message |
| two Workers on one ledger | each worker process asks for the orphans of its own queues; if two processes have the same queue, only one process gets the job |
| a changed namespace | the jobs under the old name have no owner, so no worker process runs them by itself |

A paused queue
--------------
A person pauses a queue with `Facts.pause`; the pause stays in the ledger until a person ends it.
Each worker process of the fleet then sets the prefetch of this queue to 0: within 2 s if the process runs a job, otherwise within 4 s.
The process keeps its connection, its jobs go on, and the process is ready.
A process that starts during the pause, or whose ledger comes back, reads the pause before it receives a message.
A worker process of an older version, which does not know pauses, ignores the pause.
The broker keeps the messages meanwhile, so retries and scheduled jobs wait, too.

The holder of a row
-------------------
`steadyworker.ledger.rules.HeldBy` names the holder of a row, as one worker process sees the row:

- MINE: this process owns the row, and the run or settlement under the row's fence has a valid delivery.
- DETACHED: this process owns the row, but the delivery of its run or settlement is lost.
  Adoption only saves time, and no guarantee depends on it.
  Tests switch adoption off; then the runner treats DETACHED as MINE.
- LOST: this process owns the row, but has no run or settlement under the row's fence.
- ALIVE: another process owns the row, lease and margin are not over, and there is no proof that this other process is dead.
- GONE: the row has no owner, or its owner is another process that has lost the row.
  A process has lost the row when the process is proven dead, or when lease and margin are over.

Clocks and leases
-----------------
A claim draws a *fence*: the last fence plus 1, or the wall clock in milliseconds, whichever is greater.
Every write of a run carries the run's fence, so the fence decides which run owns the job; no clock decides this.
A claim also begins a lease of 60 s, which the worker process renews every 15 s.
The owner can still renew a lease that has ended, if no other process has taken the job over.
The worker process trusts a run for 50 s, counted from the *start* of the run's claim or of its last granted renewal.
After this time, the run's checkpoints, export commits and outcome wait until the ledger grants a renewal.
When the lease has been over for 30 s (the margin), other processes may take the job over.
Only the ledger's clock judges the end of a lease: the server's wall clock in PostgreSQL, CLOCK_BOOTTIME with the boot's id in SQLite.
PostgreSQL has no other clock.
If the server's wall clock jumps forward, or a fail-over leads to a server whose clock is ahead, leases end too early.
Another process can then take over a job that runs; the fence still refuses every write of the older run.
After such a jump, no job is an orphan for the time of a lease, so that living owners renew first.
If the clock jumps back, leases and waits for retries become longer by the length of the jump.
So let the clock of each server follow NTP, which corrects small differences without a jump.
`check` compares the clocks of all hosts in the ledger's URL.
When the ledger refuses a write or a renewal, the runner drops the run and kills its child.
The run's delivery, if it is still valid, goes through the decision table again.
While the ledger is away, a job goes on until its next request that writes: a checkpoint, an export's state or an export's commit.
This request waits until the ledger is back, and the job's call waits for the reply.
A job without such a request goes on to its end, and its outcome waits.
If the lease ends during a ledger outage, the option `on_ledger_loss` decides: the runner kills the run (`stop`), or does not stop the run (`finish`).
The default is `finish` for a ledger of one host, and `stop` for all others.

Proof of death
--------------
A worker process holds a lock on a file whose name is the owner id.
The slot children and the guard of the process share the lock.
When the worker process dies, the guard first kills every process that the children have started, and then ends.
The kernel frees the lock when all processes that share it are dead.
So a process that gets the lock has proof that these processes are dead, and need not wait for the end of the lease.
The code is in `steadyworker.ledger.owners`.

The order of a settlement
-------------------------
::

    record                    publish                    confirm               settle
    running → done ────────────────────────────────────────────────────────→ acknowledge
    running → moving ───────→ retry or dead letter, ───→ moving → moved ────→ acknowledge
                              confirmed by the broker    or dead
    running → interrupted ─────────────────────────────────────────────────→ release

If the broker never accepts a copy of the message for a retry, the runner decides on a dead letter instead.
If the broker does not accept the dead letter either, the broker itself moves the original message.
The order is then: record, reject, confirm.

Each step can be repeated without harm.
If the owner dies between two steps, the next delivery leads to `Finish` or `AckDuplicate`; after `interrupted`, the next delivery leads to `Claim`.

The call of on_dead
-------------------
If a Worker has an `on_dead`, the write that decides on a dead letter also records that a call of `on_dead` is owed.
The call is due when the row is `dead`, so when the dead letter is confirmed.
Each worker process of the queue asks for due calls; `Ledger.next_call` gives a call to one process for 90 s.
If this process dies, the call is due again after this time, so a job that was given up has at least one call.
No job and no settlement waits for such a call, and the call changes no decision.

Attempts
--------
Each run of a job is an *attempt*: where and why it began, how it ended, its traceback, and the peak of its memory.
The transaction of the claim records the start, and the transaction that records the run's outcome also records its end.
A run that ends without an outcome has no end.
The next claim of the job records such a run as `lost`, and so does the take-over of a job that was lost too often.
`Ledger.facts` returns the attempts (`steadyworker.ledger.facts`).
Attempts decide nothing: the decision table and all writes of the runner read only the row.
So a missing attempt does no harm; a worker process of an earlier version records none.
The last 20 attempts of a job stay, and are deleted together with the row.

Retention of rows
-----------------
- `running`, `interrupted`, `moving`: always.
- `interrupted`, inserted by a cancel and never claimed: until 14 days after the last cancel.
- `moved`: until 14 days after the retry is due.
- `done`: until 24 hours (`keep_done` of the Worker) after the broker confirmed the settlement; if the broker did not confirm it, for at least 14 days.
  A ledger commits the confirms of the last second together, so a kill can lose them; these rows then stay 14 days, too.
- `dead`: 90 days (`keep_dead`), after a cancel 7 days (`keep_cancelled`), or until its dead letter is replayed or dropped.
- The attempts of a job: 7 days after the end of each (`keep_attempts`), at most 20, and never longer than its row.
- The message of a job: until the job is `done`, and never longer than its row.
- The result of a job that is `done`: as long as its row.
- An owed call of `on_dead`: until a process has made it, or has tried five times, and never longer than its row.
- Facts: events of links, commands and depths for a day, counts of a minute for two days, and actions for 90 days.
- A pause: until a person ends it.

The first claim of a replay (round + 1) copies the checkpoint from the row of the previous round.

Guarantees
----------
The guarantees hold if each message has a key, and a key names one piece of work.
All consumers of a queue must share one ledger, and the ledger must keep its commits.
Until the first claim of a job, the broker must keep the job's message.
After the claim, the ledger keeps this message, unless `keep_message` is False.

1. Every claimed job ends in `done`, or in `dead` with a reason, and never in both, whatever happens to its message.
2. At most one run of a job at a time can write a checkpoint, commit an export or record an outcome.
   Two runs may compute at the same time only while the owner of one run is frozen or cut off from the ledger.
3. A lost connection, a broker's timeout or restart, or a redelivery never starts a job again.
   A job starts again after a retry, a snooze or an interruption, or when its process, host or ledger is lost.
   The new run starts from the last checkpoint, or from the beginning after `Retry(fresh=True)`.

The side effects of a handler happen at least once; a handler can use the job's key or fence to make a repeat safe.
"""
