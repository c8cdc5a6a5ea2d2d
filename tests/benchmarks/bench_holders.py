"""The search for ten thousand tensors among a million objects, compared with a loop over `gc.get_objects()`."""

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
    """Create a million objects without tensors and ten thousand tensors in different places, as in a large notebook."""
    objects = [{"number": [i], "text": str(i)} for i in range(OBJECTS)]
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(500))).to(device)
    results = [{"logits": torch.ones(16, device=device), "step": i} for i in range(TENSORS - 2000)]
    loss = model(torch.ones(4, 16, device=device)).sum()
    return {"objects": objects, "model": model, "results": results, "loss": loss}


def _chain(torch, device):
    """Create a linked list whose last node refers to a tensor, the worst case for a breadth-first search."""
    link = {"tensor": torch.ones(16, device=device)}
    for _ in range(LINKS):
        link = {"next": link}
    return link


def _plain_loop(torch):
    """Run the usual loop over `gc.get_objects()`, which finds tensors without their names."""
    return [obj for obj in gc.get_objects() if isinstance(obj, torch.Tensor)]


def run():
    import torch

    from ipygpumem.features.holders.collect import holders
    from ipygpumem.features.holders.reference_graph import SearchRoot

    device = "cuda" if _gpu() else "cpu"
    space = _fill(torch, device)
    roots = [SearchRoot("", space, "variable", "names")]
    holders(roots, host=device == "cpu")
    results = [holders(roots, host=device == "cpu") for _ in range(5)]
    seconds = statistics.median(result.seconds for result in results)
    samples = []
    for _ in range(5):
        start = time.perf_counter()
        _plain_loop(torch)
        samples.append(time.perf_counter() - start)
    loop_seconds = statistics.median(samples)
    largest = results[-1].largest(3)
    space.clear()
    gc.collect()
    space["chain"] = _chain(torch, device)
    chain_results = [holders(roots, host=device == "cpu") for _ in range(3)]
    chain = statistics.median(result.seconds for result in chain_results)
    start = time.perf_counter()
    holders(roots, host=device == "cpu", limit=0.1)
    short = time.perf_counter() - start
    count = sum(holder.count for holder in results[-1].holders)
    return [
        {
            "measure": f"search: {results[-1].objects:,} objects, {count:,} storages on {device}, all with names",
            "value": f"{seconds:.2f} s{'' if results[-1].complete else ' (stopped)'}",
            "seconds": seconds,
            "target": "<= 2 s",
        },
        {
            "measure": "only gc.get_objects() and isinstance: tensors without names",
            "value": f"{loop_seconds:.2f} s: the search takes {seconds / loop_seconds:.1f} x as long",
            "seconds": loop_seconds,
        },
        {
            "measure": f"search through a chain of {LINKS:,} dicts",
            "value": f"{chain:.2f} s{'' if chain_results[-1].complete else ' (stopped)'}",
            "seconds": chain,
        },
        {"measure": "the same with limit=0.1", "value": f"{short:.2f} s", "seconds": short},
        {"measure": "the largest holders", "value": "; ".join(map(str, largest))},
    ]
