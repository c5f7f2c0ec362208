"""What is measured: one row of the table per case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A statement on a tensordict `td` and the same on the plain dict `d` of its leaves; `setup` makes both."""

    name: str
    setup: str
    statement: str
    plain: str


COMMON = """
import tempfile, torch
from tensordict import TensorDict
_ = torch.manual_seed(0)
"""
IMAGES = (
    COMMON
    + """
d = {"image": torch.randint(0, 256, (4000, 3, 64, 64), dtype=torch.uint8), "label": torch.arange(4000)}
td = TensorDict(d, batch_size=[4000])
order = torch.randperm(4000).split(64)
"""
)
LEAVES = (
    COMMON
    + """
d = {f"leaf{i}": torch.rand(1000, 4) for i in range(8)}
td = TensorDict(d, batch_size=[1000])
rows = torch.randperm(1000)[:64]
"""
)
# The files of the folder stay open when it is gone, so the memory-mapped leaves live as long as the worker needs them.
ON_DISK = """
folder = tempfile.TemporaryDirectory()
td = td.memmap(folder.name)
"""
SMALL = (
    COMMON
    + """
d = {f"leaf{i}": torch.rand(3, 4) for i in range(8)}
td = TensorDict(d, batch_size=[3, 4])
eight, eight_plain = [td.clone() for _ in range(8)], [dict(d) for _ in range(8)]
some = ["leaf1", "leaf3", "leaf5"]
leaf = torch.rand(3, 4)
"""
)
EPOCH = "for rows in order: td[rows]"
EPOCH_PLAIN = "for rows in order: {k: v[rows] for k, v in d.items()}"

CASES = [
    Case("one shuffled epoch of images, in memory", IMAGES, EPOCH, EPOCH_PLAIN),
    Case("one shuffled epoch of images, memory-mapped", IMAGES + ON_DISK, EPOCH, EPOCH_PLAIN),
    Case("64 random rows of 8 leaves", LEAVES, "td[rows]", "{k: v[rows] for k, v in d.items()}"),
    Case("`td[3]`, 8 memory-mapped leaves", LEAVES + ON_DISK, "td[3]", "{k: v[3] for k, v in d.items()}"),
    Case("`td[3]`, 8 leaves", LEAVES, "td[3]", "{k: v[3] for k, v in d.items()}"),
    Case("`td[1:3]`", SMALL, "td[1:3]", "{k: v[1:3] for k, v in d.items()}"),
    Case("`td + 1`", SMALL, "td + 1", "{k: v + 1 for k, v in d.items()}"),
    Case("`td.exp()`", SMALL, "td.exp()", "{k: v.exp() for k, v in d.items()}"),
    Case("`td.clone()`", SMALL, "td.clone()", "{k: v.clone() for k, v in d.items()}"),
    Case("`td.reshape(12)`", SMALL, "td.reshape(12)", "{k: v.reshape(12) for k, v in d.items()}"),
    Case("`td.unsqueeze(0)`", SMALL, "td.unsqueeze(0)", "{k: v.unsqueeze(0) for k, v in d.items()}"),
    Case(
        "`torch.stack` of 8",
        SMALL,
        "torch.stack(eight)",
        "{k: torch.stack([one[k] for one in eight_plain]) for k in eight_plain[0]}",
    ),
    Case("`td.select` of 3 keys", SMALL, "td.select(*some)", "{k: d[k] for k in some}"),
    Case('`td["leaf1"]`', SMALL, 'td["leaf1"]', 'd["leaf1"]'),
    Case('`td["leaf1"] = leaf`', SMALL, 'td["leaf1"] = leaf', 'd["leaf1"] = leaf'),
]
