"""
Diagnosis: from a line in a log to its cause, and from the bytes on the wire to the end that broke the connection.

Two commands use this wing: `steadyworker explain` reads logs, and `steadyworker trace` reads connections.
Neither needs a broker, a ledger or a worker of SteadyWorker.

| file | subject |
|---|---|
| `entries/` | the catalogue: what brokers and clients write when something fails, why, and what to do |
| `catalogue.py` | the schema of the catalogue, and its reader |
| `formats.py`, `records.py` | the formats of logs; a log, cut into records: a line with the lines that belong to it |
| `matching.py` | the entries that explain a record |
| `timeline.py` | related records, joined to one finding with its time line |
| `report.py` | a finding, for people and as JSON |
| `frames.py` | what a reader returns: the things that it found in one direction of a connection |
| `amqp.py` | the reader of AMQP 0-9-1 |
| `fields.py` | the values in its frames: arguments, properties, tables |
| `stomp.py` | the reader of STOMP 1.0 to 1.2 |
| `protocols.py` | the protocol that some bytes, or numbers that were read from such bytes, begin |
| `capture.py` | the TCP connections in a file of captured packets |

A reader is fed with the bytes of one direction, as they arrive, and returns the things that are complete.
It never waits, never holds more than one incomplete frame, and never trusts a length before it has checked it.
The bytes of a message's body are counted, and not kept.
A reader can join a connection later, and go on behind bytes that are missing, as both happens in captures.
What breaks the protocol becomes a `Flaw`, which says what stands where something else was expected.
"""
