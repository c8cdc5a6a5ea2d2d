"""What a command is: its options, its help and its output, for the magic and for the shell."""
