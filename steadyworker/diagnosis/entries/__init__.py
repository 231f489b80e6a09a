"""
The entries of the catalogue, one file for each broker or kind of client.

`steadyworker.diagnosis.catalogue` reads them, and its classes `Entry` and `Pattern` are the schema.
The tests prove each entry by sample lines, which are in `tests/diagnosis/samples` in a file of the same name.
`connections.toml` is the exception: it has findings, which have no samples.
"""
