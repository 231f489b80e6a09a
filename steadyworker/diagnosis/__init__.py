"""
Diagnosis: from a line in a log to its cause, and from the bytes on the wire to the end that broke the connection.

Two commands are in this package: `steadyworker explain` reads logs, and `steadyworker trace` reads connections.
The core imports nothing of this package: it finds the commands, and the remedies for its log, by their entry points.
Neither needs a broker, a ledger or a worker of SteadyWorker.

| file | subject |
|---|---|
| `entries/` | the catalogue: what brokers and clients write when something fails, why, and what to do |
| `catalogue.py` | the schema of the catalogue, and its reader |
| `formats.py`, `records.py` | the formats of logs; a log, cut into records: a line with the lines that belong to it |
| `matching.py` | the entries that explain a record |
| `timeline.py` | related records, joined to one finding with its time line |
| `reading.py`, `decoding.py`, `following.py` | logs in blocks; their bytes as text; logs that grow |
| `scan.py` | from blocks of a log to what the catalogue explains, and a count of the rest |
| `own_lines.py`, `remedies.py` | the fields of SteadyWorker's own lines; the remedies that its log adds |
| `report.py` | a finding, for people and as JSON |
| `relay.py`, `links.py`, `ends.py` | passes bytes between clients and the broker; its connections; its sockets |
| `tap.py`, `tracing.py` | the copy of these bytes for the reader, which is another process; the start and end of both |
| `conversation.py`, `silence.py` | a connection as a trace sees it: protocol, silences, closes |
| `amqp_conversation.py`, `amqp_channel.py`, `tags.py` | what AMQP means: a connection, a channel of it, its delivery tags |
| `amqp_flaws.py` | the flags of bytes that break AMQP |
| `stomp_conversation.py` | what STOMP means |
| `rocketmq_conversation.py` | what RocketMQ's remoting protocol means |
| `wire.py`, `line.py` | the events and flags of a trace, and of one connection of it |
| `boundary.py` | where a frame begins behind bytes that were missed |
| `outputs.py`, `terminal.py` | where events go: files, a page, a terminal |
| `page.py`, `picture/` | the page of a trace |
| `frames.py` | what a reader returns: the things that it found in one direction of a connection |
| `amqp.py` | the reader of AMQP 0-9-1 |
| `fields.py` | the values in its frames: arguments, properties, tables |
| `stomp.py` | the reader of STOMP 1.0 to 1.2 |
| `remoting.py` | the reader of RocketMQ's remoting protocol |
| `protocols.py` | the protocol that some bytes, or numbers that were read from such bytes, begin |
| `cli/` | the verbs `explain` and `trace` |
| `capture.py` | the TCP connections in a file of captured packets, in place of the relay |

A reader is fed with the bytes of one direction, as they arrive, and returns the things that are complete.
It never waits, never holds more than one incomplete frame, and never trusts a length before it has checked it.
The bytes of a message's body are counted, and not kept.
What breaks the protocol becomes a `Flaw`, which names what stands where something else was expected.
"""
