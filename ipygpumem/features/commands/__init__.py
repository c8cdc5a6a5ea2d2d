"""Commands: one specification of each serves ``%gpumem``, the shell command, help, completion and documentation."""
