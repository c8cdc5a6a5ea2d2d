"""Curves, peaks and live allocations, computed slowly from the dicts of a file, for comparison with the columns."""

from __future__ import annotations

MEMORY = ("alloc", "free_requested", "free_completed")


def ordered(trace):
    if all("time_us" in event for event in trace):
        return sorted(trace, key=lambda event: event["time_us"])
    return list(trace)


def replay(raw, device):
    """Return the curve (starting with event -1), the peak, the live sets and the counts of gaps of a device."""
    traces = raw.get("device_traces", [])
    trace = ordered(traces[device]) if device < len(traces) else []
    blocks = [
        block
        for segment in raw.get("segments", [])
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] != "inactive"
    ]
    closing = last_action(raw, trace, {block["address"] for block in blocks})
    live = at_first(trace, blocks)
    curve = [sum(size for size, _ in live.values())]
    sets = [dict(live)]
    missing = orphans = 0
    for event in trace:
        address = event.get("addr")
        if event["action"] == "alloc":
            missing += address in live
            live[address] = (event["size"], event.get("frames"))
        elif event["action"] in MEMORY:
            if address not in live:
                orphans += 1
            elif event["action"] == closing:
                del live[address]
        curve.append(sum(size for size, _ in live.values()))
        sets.append(dict(live))
    peak = max(curve)
    at_end = {block["address"] for block in blocks}
    return {
        "curve": curve,
        "peak": (peak, curve.index(peak) - 1),
        "sets": sets,
        "missing_frees": missing,
        "frees_without_allocation": orphans,
        "only_in_segments": len(at_end - set(live)),
        "only_in_events": len(set(live) - at_end) if "segments" in raw else 0,
        "reserved": reserved(raw, device, trace),
    }


def at_first(trace, blocks):
    live = {}
    touched = set()
    for event in trace:
        if event["action"] in MEMORY and event["addr"] not in touched:
            touched.add(event["addr"])
            if event["action"] != "alloc":
                live[event["addr"]] = (event["size"], None)
    for block in blocks:
        if block["address"] not in touched:
            live[block["address"]] = (block["requested_size"], block.get("frames"))
    return live


def last_action(raw, trace, at_end):
    """Return the action that ends an allocation: ``free_completed``, or ``free_requested`` if it is not recorded."""
    if any(event["action"] == "free_completed" for event in trace):
        return "free_completed"
    requested = set()
    for event in trace:
        if event["action"] == "free_requested":
            requested.add(event["addr"])
        elif event["action"] == "alloc" and event["addr"] in requested:
            return "free_requested"
    return "free_requested" if "segments" in raw and requested - at_end else "free_completed"


def reserved(raw, device, trace):
    change = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    steps = [change.get(event["action"], 0) * event["size"] for event in trace]
    end = sum(segment["total_size"] for segment in raw.get("segments", []) if segment["device"] == device)
    curve = [end]
    for step in reversed(steps):
        curve.insert(0, curve[0] - step)
    return curve


def live_of(snapshot, device, event):
    allocations = snapshot.timeline(device).allocations
    rows = allocations.live(event)
    return {int(allocations.address[row]): int(allocations.size[row]) for row in rows}
