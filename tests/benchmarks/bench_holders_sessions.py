"""`%gpumem who` in a session with imported libraries, before and after the search was limited, in alternation."""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
OLD_COMMIT = "b9fa34d7"
ROUNDS = 3
SESSIONS = {
    "GPT-2 and AdamW": (0, 0),
    "and 24,000 tensors": (24_000, 0),
    "and 500,000 objects of a library": (0, 500_000),
    "and 2,000,000 objects of a library": (0, 2_000_000),
}
LIMIT = 0.2
PROGRAM = """
import gc, json, sys, time, types
import torch

extra, count, limit = json.loads(sys.argv[1])
try:
    import transformers
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    run = lambda ids: model(ids, labels=ids).loss
except ImportError:
    layers = [torch.nn.TransformerEncoderLayer(768, 12, batch_first=True) for _ in range(12)]
    model = torch.nn.Sequential(torch.nn.Embedding(50_257, 768), *layers)
    run = lambda ids: model(ids).sum()
device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)
optimizer = torch.optim.AdamW(model.parameters())
loss = run(torch.randint(0, 1000, (1, 16), device=device))
loss.backward()
optimizer.step()
tensors = [torch.ones(128, device=device) for _ in range(extra)]
sys.modules["zz_library"] = library = types.ModuleType("zz_library")
library.__file__ = torch.__file__
library.objects = [(i, [i]) for i in range(count // 2)]
del library

from ipygpumem.features.holders import collect
from ipygpumem.features.holders.table import holders_tables
from ipygpumem.sources import allocator, pytorch, storages

if device == "cpu":  # the allocated memory of a CPU is unknown, so its tensors count as blocks of a GPU
    def location(self, storage, address=None):
        return [place._replace(device="cuda:0") for place in find(self, storage, address)]

    def blocks():
        sizes = {}
        for obj in gc.get_objects():
            if issubclass(type(obj), torch.Tensor) and obj.device.type == "cpu" and obj.layout is torch.strided:
                storage = obj.untyped_storage()
                sizes[storage.data_ptr()] = -(-storage.nbytes() // 512) * 512
        sizes.pop(0, None)
        listed = [{"address": key, "size": sizes[key], "state": "active_allocated"} for key in sorted(sizes)]
        return [{"device": 0, "address": 0, "total_size": 1 << 62, "blocks": listed}]

    cuda = torch.device("cuda", 0)
    storages._get_device = lambda storage: cuda  # for tensors in lists, whose storages are read together
    find = storages.StorageInspector.storage_locations
    storages.StorageInspector.storage_locations = location
    sys.blocks = blocks()
    allocator.segments = lambda: sys.blocks
    torch._C._cuda_memoryStats = lambda index: {"allocation": {"all": {}}}
    pytorch.initialized_torch = lambda: torch
    torch.cuda.device_count = lambda: 0


def search(**options):
    start = time.perf_counter()
    holders = collect.holders(**options)
    holders_tables(holders)
    return time.perf_counter() - start, [holder.name for holder in holders.largest(2)]


search()
seconds, names = search()
late, late_names = search(limit=limit)
print(json.dumps({"seconds": seconds, "names": names, "late": late, "late_names": late_names}))
"""


def _old_package(folder):
    """Extract the package at the old commit; return None if the history is not available."""
    git = shutil.which("git") or "git"
    archive = subprocess.run([git, "archive", OLD_COMMIT, "ipygpumem"], cwd=CHECKOUT, capture_output=True, check=False)
    if archive.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def _run(package, session):
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps([*session, LIMIT])]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])


def run():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        packages = {"new": CHECKOUT, "old": _old_package(folder)}
        packages = {name: package for name, package in packages.items() if package is not None}
        for title, session in SESSIONS.items():
            results = {name: [] for name in packages}
            for _ in range(ROUNDS):
                for name, package in packages.items():
                    results[name].append(_run(package, session))
            for key, names_key, what in (("seconds", "names", "who"), ("late", "late_names", f"limit={LIMIT}")):
                values = {name: statistics.median(result[key] for result in runs) for name, runs in results.items()}
                texts = (
                    f"{name} {value:.2f} s ({', '.join(results[name][0][names_key]) or 'no names'})"
                    for name, value in values.items()
                )
                rows.append({"measure": f"{title}: {what}", "value": "; ".join(texts), "seconds": values["new"]})
    return rows
