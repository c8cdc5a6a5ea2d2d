"""Entry point of ``python -m ipygpumem``."""

from __future__ import annotations

import sys

from ipygpumem.cli import main

if __name__ == "__main__":
    sys.exit(main())
