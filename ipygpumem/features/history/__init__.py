"""The measurements of a session, a log or a notebook over time."""
