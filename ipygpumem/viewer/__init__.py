"""Seeing a snapshot: in the notebook, as a page of its own, as a still picture."""
