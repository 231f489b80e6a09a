"""Facts from the operating system: memory of processes (`procfs`), this host (`host`), systemd's notify socket (`systemd`)."""
