"""Functions that run the shell command."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ipygpumem import cli
from snapshot import files

ROOT = Path(__file__).parents[2]
GPT = str(files.SMALL / "gpt_small.pickle.xz")
OOM = str(files.SMALL / "oom_fragmented.pickle.xz")


def run(capsys, *arguments):
    status = cli.main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return status, out, err


def shell(command):
    process = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    return process.returncode, process.stdout, process.stderr
