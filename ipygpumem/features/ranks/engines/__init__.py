"""Monitor the engines of an ipyparallel cluster, with one merged report for each ``%%px`` cell."""
