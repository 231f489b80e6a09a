"""
The diagnosis of failures: from a line of a log, or from the bytes on a connection, to the cause and its remedy.

| file | subject |
|---|---|
| `entries/` | the catalogue: what brokers and clients write, why they write it, and what to do |
| `catalogue.py` | reads the entries |
| `records.py` | cuts a log into records: a line with the lines that belong to it |
| `matching.py` | finds the entries that a record matches |
| `timeline.py` | joins related records to one finding with its time line |
| `report.py` | shows a finding, for people and as JSON |
"""
