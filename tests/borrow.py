"""Let this environment import missing packages from another environment: ``python tests/borrow.py .venv``.

The packages of the other environment come last on the path, so that IPython, the kernel and the widgets of this
environment take precedence. The package under test is this checkout.
"""

import sys
import sysconfig
from pathlib import Path

own_packages = Path(sysconfig.get_path("purelib"))
major, minor = sys.version_info[:2]
other_packages = Path(sys.argv[1]).resolve() / "lib" / f"python{major}.{minor}" / "site-packages"
checkout = Path(__file__).resolve().parents[1]
(own_packages / "zz_borrowed.pth").write_text(f"{checkout}\n{other_packages}\n", encoding="utf-8")
