"""Builders for the entries of a snapshot file."""


def event(action, address, size, time, frames=(), **fields):
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": time,
        "frames": list(frames),
    } | fields


def block(address, size, requested, state="active_allocated", frames=()):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": list(frames)}


def segment(address, size, blocks, **fields):
    return {"device": 0, "address": address, "total_size": size, "stream": 0, "blocks": blocks, **fields}


def frame(file, line, name):
    return {"filename": file, "line": line, "name": name}


def free_events(address, size, time):
    return [event("free_requested", address, size, time), event("free_completed", address, size, time + 1)]


def group_totals(groups):
    return {group.label: (group.bytes, group.count) for group in groups}
