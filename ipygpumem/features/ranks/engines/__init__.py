"""Engines of an ipyparallel cluster, with one merged report per ``%%px`` cell."""
