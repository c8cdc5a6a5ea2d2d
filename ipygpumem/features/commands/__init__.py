"""Command specifications, from which the magics, shell commands, help, completion and documentation are generated."""
