"""IPython: life cycle, cell rewrite, magics, settings, completion, and the one error boundary."""
