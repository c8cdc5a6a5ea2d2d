"""Entry point of ``python -m ipygpumem``."""

import sys

from ipygpumem.cli import main

if __name__ == "__main__":
    sys.exit(main())
