"""The output for operators: log lines, one line for each event, metrics, and spans."""
