"""Tables and one-line summaries as text and HTML."""
