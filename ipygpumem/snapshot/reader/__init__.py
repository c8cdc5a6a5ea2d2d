"""Reading an untrusted file into columns, without executing anything in it."""
