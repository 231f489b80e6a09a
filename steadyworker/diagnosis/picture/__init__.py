"""
The picture of a trace: one HTML page with both ends of each connection, for a reader who has never seen the tool.

| file | subject |
|---|---|
| `event_fields.py` | the fields of an event, as texts and numbers that are safe to keep |
| `words.py` | words for the meaning of a frame, for durations, and for many frames of one kind |
| `curves.py` | counts and levels over time, in a fixed number of bins |
| `rows.py` | the events of a connection in their order; some events are exact, and runs of like events are folded |
| `pending.py` | the deliveries that wait for their acknowledgement |
| `story.py`, `trace.py` | the data that is kept of a connection, and of a whole trace |
| `flags.py` | a bounded number of the trace's flags, with their evidence as tables |
| `verdict.py` | the conclusion from the trace, in a few sentences |
| `markup.py` | HTML with all texts escaped |
| `lanes.py` | the time line of a connection as SVG, with a lane for each end |
| `sequence.py` | the frames of a connection, with an arrow from one end to the other |
| `sheet.py` | the parts of the page, in the order of the reader's questions, within the page's size |

Names, headers and texts come from the traced connections, so a page can contain any text of an attacker.
`event_fields.py` limits and redacts every text, and `markup.py` is the only file that writes HTML.
The time and the memory for an event do not depend on the number of events before it.
"""
