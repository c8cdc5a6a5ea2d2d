"""Run the benchmarks that this machine supports, and print the results as a table and as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

DIRECTORY = Path(__file__).parent


def main() -> int:
    names = sorted(path.stem.removeprefix("bench_") for path in DIRECTORY.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"benchmarks to run (all by default): {', '.join(names)}")
    parser.add_argument("--json", metavar="PATH", help="write the JSON to this file instead of printing it")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(names)
    if unknown:
        parser.error(f"unknown benchmark: {', '.join(sorted(unknown))}; available: {', '.join(names)}")
    results = {}
    for name in arguments.names or names:
        module = importlib.import_module(f"tests.benchmarks.bench_{name}")
        print(f"== {name}: {module.__doc__.strip().splitlines()[0]}", flush=True)
        rows = module.run()
        results[name] = rows
        width = max((len(row["measure"]) for row in rows), default=0)
        for row in rows:
            target = f"   target {row['target']}" if row.get("target") else ""
            print(f"  {row['measure'].ljust(width)}  {row['value']}{target}", flush=True)
    text = json.dumps(results, indent=1)
    if arguments.json:
        Path(arguments.json).write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
