"""Run the benchmarks that this machine can run; print a table, and JSON for machines."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> int:
    names = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which ({', '.join(names)}); all by default")
    parser.add_argument("--json", metavar="PATH", help="also write the results there")
    words = parser.parse_args()
    unknown = set(words.names) - set(names)
    if unknown:
        parser.error(f"no benchmark called {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    results = {}
    for name in words.names or names:
        module = importlib.import_module(f"tests.benchmarks.bench_{name}")
        print(f"== {name}: {module.__doc__.strip().splitlines()[0]}", flush=True)
        rows = module.run()
        results[name] = rows
        width = max((len(row["measure"]) for row in rows), default=0)
        for row in rows:
            target = f"   target {row['target']}" if row.get("target") else ""
            print(f"  {row['measure'].ljust(width)}  {row['value']}{target}", flush=True)
    text = json.dumps(results, indent=1)
    if words.json:
        Path(words.json).write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
