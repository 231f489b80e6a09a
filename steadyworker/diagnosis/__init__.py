"""
Diagnosis: finds the cause of a line in a log, and finds from a connection's bytes the end that broke the connection.

Two commands are in this package: `steadyworker explain` reads logs, and `steadyworker trace` reads connections.
Neither command needs a broker, a ledger or a worker of SteadyWorker.
The core imports nothing from this package.
By entry points, the core finds the commands, and the remedies for its own log.

| file | subject |
|---|---|
| `entries/` | the catalogue: what brokers and clients write when something fails, why, and what to do |
| `catalogue.py` | the schema of the catalogue, and its reader |
| `formats.py`, `records.py` | the formats of logs; the records, each of which is a line with the lines that belong to it |
| `matching.py`, `loose.py` | the entries that explain a record; their patterns, loosened for the words of other versions |
| `pasted.py` | the log in a text that was wrapped, quoted or escaped on its way to a person |
| `timeline.py` | related records, joined to one finding with a time line |
| `reading.py`, `following.py` | files and pipes in blocks; a pipe that stays open |
| `scan.py` | the search of a log's blocks: what the catalogue explains, and a count of the other errors |
| `own_lines.py`, `remedies.py` | the fields of SteadyWorker's own lines; the remedies that its log adds |
| `report.py` | a finding, for people and as JSON |
| `relay.py` | the relay between clients and the broker |
| `tap.py`, `tracing.py` | the records that the relay passes to the reader; the start and end of the relay |
| `conversation.py`, `silence.py` | one connection in a trace: protocol, silences, closes |
| `amqp_conversation.py`, `amqp_channel.py`, `tags.py` | the meaning of AMQP's frames: connection, channels, delivery tags |
| `amqp_flaws.py` | the flags of bytes that break AMQP |
| `stomp_conversation.py` | the meaning of STOMP's frames |
| `wire.py`, `line.py` | the events and flags of a trace, and of a single connection |
| `boundary.py` | the search for the next frame after missed bytes |
| `outputs.py`, `terminal.py` | where events go: files, a page, a terminal |
| `page.py`, `verdict.py` | the page of a trace, which `templates/trace.html` draws; the sentences at its top |
| `frames.py` | the items that a reader returns for one direction of a connection |
| `amqp.py` | the reader of AMQP 0-9-1 |
| `fields.py` | the values in AMQP's frames: arguments, properties, tables |
| `stomp.py` | the reader of STOMP 1.0 to 1.2 |
| `protocols.py` | the recognition of a protocol by its first bytes, or by numbers that were read from these bytes |
| `cli/` | the verbs `explain` and `trace` |
| `capture.py` | the TCP connections in a file of captured packets, in place of the relay |

A reader gets the bytes of one direction as they arrive, and returns each item that is complete.
The reader never waits, holds at most one incomplete frame, and checks each length before it relies on the length.
The reader counts the bytes of a message's body, and does not keep them.
Bytes that break the protocol become a `Flaw`, which names the bytes that were found, and what was expected.
"""
