"""Lines of code that allocated memory for which no Python object was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from ipygpumem.core.introspection import user_frame
from ipygpumem.sources.allocator import AllocatedBlock, stack_of_block

_MAX_BLOCKS = 100
"""Number of blocks whose stacks are read."""
_MAX_LINES = 3


def allocation_lines(
    blocks: Iterable[AllocatedBlock], label: Callable[[str, int, str], str]
) -> tuple[tuple[str, int], ...]:
    """Return the lines of code that allocated the largest of these blocks, with sizes in bytes, largest first.

    The result is empty if PyTorch has not recorded their stacks.
    """
    sizes: Counter[str] = Counter()
    for block in sorted(blocks, key=lambda block: -block.size)[:_MAX_BLOCKS]:
        frame = user_frame(stack_of_block(block))
        if frame is not None:
            sizes[label(*frame)] += block.size
    return tuple(sizes.most_common(_MAX_LINES))
