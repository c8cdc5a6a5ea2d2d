"""The IPython extension: cell events, magics, settings and display."""
