"""List of the commands that the features define."""

from ipygpumem.features.environment.command import ENV
from ipygpumem.features.explain.command import EXPLAIN
from ipygpumem.features.fit.command import FIT
from ipygpumem.features.free.command import FREE
from ipygpumem.features.history.command import COMPARE, HISTORY, NOTEBOOK
from ipygpumem.features.holders.command import WHO
from ipygpumem.features.live.command import MONITOR
from ipygpumem.features.processes.command import PROCESSES
from ipygpumem.features.ranks.command import RANKS
from ipygpumem.features.ranks.engines.command import ENGINES
from ipygpumem.features.recordings.command import RECORD, VIEW
from ipygpumem.features.whatif.command import WHATIF

COMMANDS = (
    *(ENV, RECORD, WHO, FREE, EXPLAIN, PROCESSES, MONITOR, VIEW, WHATIF, FIT),
    *(HISTORY, NOTEBOOK, COMPARE, ENGINES, RANKS),
)
"""The help lists the commands in this order."""
