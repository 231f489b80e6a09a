"""The operating system: processes and memory (`procfs`), this host (`host`), its user (`person`), messages to systemd (`systemd`), and files."""
