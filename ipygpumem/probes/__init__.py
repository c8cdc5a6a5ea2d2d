"""Where the numbers come from: one file a source, each the only importer of its library, and the file that pairs them."""

from ipygpumem.probes.watch import Watch

__all__ = ["Watch"]
