"""Who holds the memory: a million live objects and ten thousand tensors, named; beside gc's own way."""

from __future__ import annotations

import gc
import statistics
import time

OBJECTS = 500_000
TENSORS = 10_000
LINKS = 100_000


def _gpu():
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _fill(torch, device):
    """A notebook with much in it: a million objects without a tensor, ten thousand tensors in all kinds of places."""
    keep = [{"number": [i], "text": str(i)} for i in range(OBJECTS)]
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(500))).to(device)
    results = [{"logits": torch.ones(16, device=device), "step": i} for i in range(TENSORS - 2000)]
    loss = model(torch.ones(4, 16, device=device)).sum()
    return {"keep": keep, "model": model, "results": results, "loss": loss}


def _chain(torch, device):
    """A linked list whose last link has the tensor: one object a level, the worst case of a search by levels."""
    link = {"tensor": torch.ones(16, device=device)}
    for _ in range(LINKS):
        link = {"next": link}
    return link


def _search(torch):
    """What people write for want of better: every tensor of the heap, without a name."""
    return [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]


def run():
    import torch

    from ipygpumem.features.holders.collect import holders
    from ipygpumem.features.holders.roots import Root

    device = "cuda" if _gpu() else "cpu"
    space = _fill(torch, device)
    roots = [Root("", space, "variable", "names")]
    holders(roots, host=device == "cpu")
    found = [holders(roots, host=device == "cpu") for _ in range(5)]
    seconds = statistics.median(one.seconds for one in found)
    samples = []
    for _ in range(5):
        start = time.perf_counter()
        _search(torch)
        samples.append(time.perf_counter() - start)
    bare = statistics.median(samples)
    named = found[-1].largest(3)
    space.clear()
    gc.collect()
    space["chain"] = _chain(torch, device)
    linked = [holders(roots, host=device == "cpu") for _ in range(3)]
    chain = statistics.median(one.seconds for one in linked)
    start = time.perf_counter()
    holders(roots, host=device == "cpu", limit=0.1)
    short = time.perf_counter() - start
    count = sum(one.count for one in found[-1].holders)
    return [
        {
            "measure": f"walk: {found[-1].objects:,} objects, {count:,} storages on {device}, all named",
            "value": f"{seconds:.2f} s{'' if found[-1].complete else ' (stopped)'}",
            "seconds": seconds,
            "target": "<= 2 s",
        },
        {
            "measure": "gc.get_objects() and isinstance alone: tensors without a name",
            "value": f"{bare:.2f} s: ours is {seconds / bare:.1f} x",
            "seconds": bare,
        },
        {
            "measure": f"walk up and down a linked chain of {LINKS:,} dicts",
            "value": f"{chain:.2f} s{'' if linked[-1].complete else ' (stopped)'}",
            "seconds": chain,
        },
        {"measure": "the same with limit=0.1", "value": f"{short:.2f} s", "seconds": short},
        {"measure": "the largest", "value": "; ".join(map(str, named))},
    ]
