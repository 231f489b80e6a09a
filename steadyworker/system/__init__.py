"""The operating system: processes and memory (`procfs`), this host (`host`), messages to systemd (`systemd`), and files."""
