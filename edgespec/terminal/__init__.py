"""What people see: prompts, replies, progress, tables. `edgespec.cli` reads the arguments."""
