"""Engines of an ipyparallel cluster, and one merged report for each ``%%px`` cell."""
