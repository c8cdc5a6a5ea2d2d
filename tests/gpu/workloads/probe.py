"""Observations of a process after a program: values, random number generators, counters and global state.

Kernels run this file by its path, with ``namespace`` and ``target`` as globals.
"""

import gc
import hashlib
import json
import pathlib
import random
import sys
import threading
import warnings


def encode(value):
    """Return JSON data that represents a value. Tensors are represented by hashes, and floats exactly."""
    import torch

    if isinstance(value, torch.Tensor):
        data = value.detach()
        if hasattr(data, "to_local"):
            data = data.to_local()
        data = data.cpu().contiguous().flatten()
        raw = data.view(torch.uint8) if data.numel() else data
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(bytes(raw.tolist())).hexdigest()[:16]}"
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value if isinstance(value, (int, str, bool, type(None))) else repr(value)


def weights(namespace):
    import torch

    hashes = {}
    for name in sorted(namespace):
        if not name.startswith("_") and isinstance(namespace[name], torch.nn.Module):
            total = hashlib.sha256()
            for key, tensor in namespace[name].state_dict().items():
                if type(tensor) in {torch.Tensor, torch.nn.Parameter}:
                    flat = tensor.detach().cpu().contiguous().flatten()
                    total.update(key.encode() + memoryview(flat.view(torch.uint8).numpy()))
            hashes[name] = total.hexdigest()[:16]
    return hashes


def counters():
    import torch

    if not torch.cuda.is_available():
        return {}
    values = {}
    for index in range(torch.cuda.device_count()):
        statistics = torch.cuda.memory_stats(index)
        for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
            for moment in ("current", "peak"):
                key = f"{name}.all.{moment}"
                values[f"cuda:{index} {key}"] = statistics.get(key)
        for name in ("num_alloc_retries", "num_ooms"):
            values[f"cuda:{index} {name}"] = statistics.get(name)
        values[f"cuda:{index} max_memory_allocated"] = torch.cuda.max_memory_allocated(index)
        values[f"cuda:{index} max_memory_reserved"] = torch.cuda.max_memory_reserved(index)
    return values


def generators():
    import torch

    states = {"torch": encode(torch.get_rng_state()), "random": repr(random.getstate())}
    if torch.cuda.is_available():
        states |= {f"cuda:{i}": encode(state) for i, state in enumerate(torch.cuda.get_rng_state_all())}
    if "numpy" in sys.modules:
        states["numpy"] = repr(sys.modules["numpy"].random.get_state()[1:])
    return {name: hashlib.sha256(state.encode()).hexdigest()[:16] for name, state in states.items()}


def state():
    import torch

    return {
        # libraries add filters for their own warnings when they are imported
        "warning filters": sorted(repr(entry[:3]) for entry in warnings.filters if entry[2].__module__ == "builtins"),
        "gradients": torch.is_grad_enabled(),
        "default dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "trace": repr(sys.gettrace()),
        "profile": repr(sys.getprofile()),
        "thread profile": repr(threading.getprofile() if hasattr(threading, "getprofile") else None),
        "garbage collection": [gc.isenabled(), gc.get_threshold()],
        "global hooks": [
            len(getattr(torch.nn.modules.module, name))
            for name in dir(torch.nn.modules.module)
            if name.startswith("_global_") and name.endswith("hooks")
        ],
    }


def observe(namespace, target, search=False):
    """Write a file with everything that can be observed. If ``search`` is true, this includes the holders of memory."""
    import torch

    loaded = sys.modules.get("ipygpumem")
    record = {"counters": counters(), "rng": generators(), "state": state()}
    record["names"] = sorted(name for name in namespace if not name.startswith("_"))
    if loaded is not None:
        # programs may have cells after the measured one
        options = [report for report in loaded.reports if report.lines or report.recording or report.modules]
        last = options[-1] if options else loaded.last
        record["report"] = None if last is None else last.to_dict()
    if search:  # without a GPU, all objects are searched
        found = loaded.holders(limit=10 if torch.cuda.is_available() else 120)
        record["holders"] = [[holder.name, holder.amount] for holder in found.holders][:10]
    record["values"] = {"result": encode(namespace.get("result")), **weights(namespace)}
    pathlib.Path(target).write_text(json.dumps(record), encoding="utf-8")


if "target" in globals():
    observe(globals()["namespace"], globals()["target"], globals()["search"])
