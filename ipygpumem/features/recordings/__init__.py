"""Recording of allocation history across cells, and display of snapshots."""
