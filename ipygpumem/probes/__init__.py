"""Where the numbers come from: one file a source, each the only importer of its library; `card` pairs them."""

from ipygpumem.probes.watch import Watch

__all__ = ["Watch"]
