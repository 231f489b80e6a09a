"""
The picture of a trace: one HTML page with both ends of each connection, for a reader who has never seen the tool.

| file | subject |
|---|---|
| `event_fields.py` | the fields of an event, as texts and numbers that are safe to keep |
| `words.py` | what a frame means, durations, and the words for many frames of one kind |
| `curves.py` | counts and levels over time, in a fixed number of bins |
| `rows.py` | the events of a connection in their order: some exactly, runs of like events folded |
| `pending.py` | the deliveries that wait for their acknowledgement |
| `story.py`, `trace.py` | all that is kept of a connection; of a trace |
| `flags.py` | the flags of a trace, with their evidence as tables, in a bounded number |
| `verdict.py` | what the trace shows, in a few sentences |
| `markup.py` | HTML, with everything escaped |
| `lanes.py` | the time line of a connection: a lane for each end, as SVG |
| `sequence.py` | the frames of a connection, with an arrow from end to end |
| `sheet.py` | the parts of the page, in the order of the reader's questions, within its size |

Names, headers and texts come from the wire, so a page can hold anything that an attacker writes.
`event_fields.py` limits and redacts every text, and `markup.py` is the only file that writes HTML.
The time and the memory for an event do not depend on the number of events before it.
"""
