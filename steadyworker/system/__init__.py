"""The operating system: processes and their memory (`procfs`), this host (`host`), messages to systemd (`systemd`), files."""
