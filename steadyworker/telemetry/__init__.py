"""What operators read of a worker process: log lines, a line for each event, metrics; and secrets removed from text."""
