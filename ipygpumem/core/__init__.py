"""Facts that every feature shares: readings, reports and the memory breakdown, sizes in bytes."""
