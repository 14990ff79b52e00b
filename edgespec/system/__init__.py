"""What the machine and the system offer: compiled code, folders, child processes, memory, cores."""
