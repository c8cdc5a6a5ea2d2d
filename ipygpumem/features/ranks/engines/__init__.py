"""Engines of an ipyparallel cluster: one merged report for each ``%%px`` cell."""
