"""A decoder for the format of `ipygpumem.snapshot.export.encode`, equivalent to the JavaScript of the viewer."""

from __future__ import annotations

import json
import zlib

import numpy as np

MAGIC = b"ipgmsnap"


def decode(data):
    """Return the header and the columns of an encoded snapshot or profile."""
    assert data.startswith(MAGIC)
    begin = len(MAGIC) + 4
    position = begin + int.from_bytes(data[len(MAGIC) : begin], "little")
    header = json.loads(zlib.decompress(data[begin:position]))
    for frame in header.get("frames", ()):
        frame[::2] = header["strings"][frame[0]], header["strings"][frame[2]]
    columns = {}
    for description in header["columns"]:
        columns[description["name"]] = unpack(description, data[position : position + description["bytes"]])
        position += description["bytes"]
    return header, columns


def unpack(description, packed):
    shape = description["width"], description["count"]
    if len(packed) < shape[0] * shape[1]:
        packed = zlib.decompress(packed)
    planes = np.frombuffer(packed, np.uint8).reshape(shape)
    values = np.ascontiguousarray(planes.T).view(f"<i{description['width']}").reshape(-1).astype(np.int64)
    if description["coding"] == "delta":
        values = np.cumsum(values) + int(description["first"])
    elif description["coding"] == "dict":
        values = np.asarray(description["values"], np.int64)[values]
    return values
