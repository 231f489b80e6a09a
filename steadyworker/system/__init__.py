"""The operating system: processes and their memory (`procfs`), this host (`host`), systemd's notify socket (`systemd`)."""
