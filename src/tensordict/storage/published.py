"""Files of one block that the published package writes: the leaves, a description in JSON, and its length in 8 bytes.

content --description--> the same tree in the words of `consolidated`, and where its leaves end
"""

from __future__ import annotations

import json
from typing import Any

_OWN = ("cls", "non_tensors", "leaves", "cls_metadata")

Found = dict[str, Any]


def description(content: memoryview, path: str) -> tuple[Found, int] | None:
    """Return what lies in a file, and where the leaves end; None if it is no such file.

    Raises:
        ValueError: the description is malformed, or of a nested tensor.
    """
    end = len(content) - 8 - int.from_bytes(content[-8:], "little")
    if end < 0 or bytes(content[end : end + 8]) != b'{"cls": ':
        return None
    try:
        return _node(json.loads(bytes(content[end:-8]))), end
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path!r}: its description, which the published package wrote, is malformed: {error!r}"
        ) from error


def _node(raw: Found) -> Found:
    said, cls = raw["cls_metadata"], raw["cls"]
    nodes = {key: _value(*value[:2]) for key, value in raw["non_tensors"].items()}
    nodes |= {key: _node(value) for key, value in raw.items() if key not in _OWN}
    if "stack_dim" not in said:
        found = _dense(said, raw["leaves"], nodes)
    elif cls == "NonTensorStack":
        return _column([nodes[str(number)] for number in range(len(nodes))], said["stack_dim"])
    else:
        meta = {"_type": "<class 'tensordict.LazyStackedTensorDict'>", "_tensordict_members": len(nodes), **said}
        found = {"meta": meta, "nodes": [nodes[str(number)] for number in range(len(nodes))]}
    return {"meta": {"_type": cls}, "nodes": [found]} if cls.startswith("<class ") else found


def _dense(said: Found, leaves: Found, nodes: Found) -> Found:
    entries: list[Any] = []
    runs: list[Any] = []
    for key, (dtype, shape, start, stop, padding, *nested) in leaves.items():
        if nested or key.startswith("<NJT_"):
            raise ValueError(f"{key!r} is a part of a nested tensor; save a folder instead")
        entries.append([len(entries), key, {"shape": shape, "dtype": dtype}])
        runs.append([[start, 0, stop - start - padding, None]])
    entries += [[len(entries) + at, key, {"type": "TensorDict"}] for at, key in enumerate(nodes)]
    names = said["names"] if any(said["names"] or ()) else None
    meta = {"_type": "<class 'tensordict.TensorDict'>", "shape": said["batch_size"], "_names": names}
    found = {"meta": {**meta, "_tensordict_keys": entries}, "leaves": runs, "nodes": list(nodes.values())}
    return found if said["device"] is None else {**found, "device": said["device"]}


def _value(value: Any, batch: list[int]) -> Found:
    return {"meta": {"_type": "<class 'tensordict.NonTensorData'>", "data": value}, "batch": batch}


def _column(members: list[Found], dim: int) -> Found:
    if dim:
        raise ValueError(f"a column of objects along dim {dim}; save a folder instead")
    batch = [len(members), *(members[0]["batch"] if members else ())]
    meta = {"_type": "<class 'tensordict.NonTensorStack'>", "data": [m["meta"]["data"] for m in members]}
    return {"meta": {**meta, "stack_dim": 0}, "batch": batch}
