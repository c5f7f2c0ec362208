"""Time lazy stacks, and stacking and collating samples: this package, the published one and plain dicts, in one run.

    python benchmarks/ragged.py [--peer PYTHON] [--quick] [--only WORD]

64 samples of 8 leaves, of one (`clouds`) and of two (`texts`). The last column of the second table is this package over
the plain dict comprehension.
"""

from __future__ import annotations

import sys

from cases import COMMON, Case
from ops import run_cases
from run import Times

SAMPLES = (
    COMMON
    + """
from tensordict import lazy_stack
try:
    from tensordict import collate
except ImportError:
    from torch.utils.data import default_collate as collate
shapes = [(3, 4), (16,), (), (2, 2), (8,), (1,), (4, 4), (32,)]
plain = [{f"leaf{i}": torch.rand(shape) for i, shape in enumerate(shapes)} for _ in range(64)]
samples = [TensorDict(d) for d in plain]
d = plain[0]
lazy, stacked = lazy_stack(samples), {k: torch.stack([e[k] for e in plain]) for k in d}
rows = torch.randperm(64)[:16]
picked = rows.tolist()
"""
)
RAGGED = (
    COMMON
    + """
from tensordict import lazy_stack, pad_sequence
sizes = torch.randint(1, 50, (64,)).tolist()
plain = [{f"leaf{i}": torch.rand(n, 4) for i in range(8)} for n in sizes]
samples = [TensorDict(d) for d in plain]
lazy, d = lazy_stack(samples), plain[0]
points = [{"points": torch.rand(n, 3)} for n in sizes]
tokens = [{"tokens": torch.rand(n), "label": torch.rand(())} for n in sizes]
clouds, texts = (lazy_stack([TensorDict(e) for e in rows]) for rows in (points, tokens))
pad = torch.nn.utils.rnn.pad_sequence
"""
)
STACKED = "{k: torch.stack([e[k] for e in plain]) for k in d}"
ROWS = [
    ("torch.stack(samples)", SAMPLES, STACKED),
    ("collate(samples)", SAMPLES, STACKED),
    ("lazy_stack(samples)", SAMPLES, "list(plain)"),
    ("lazy.abs()", SAMPLES, "[{k: v.abs() for k, v in e.items()} for e in plain]"),
    ("clouds.abs()", RAGGED, "[{k: v.abs() for k, v in e.items()} for e in points]"),
    ("texts.abs()", RAGGED, "[{k: v.abs() for k, v in e.items()} for e in tokens]"),
    ("lazy + 1", SAMPLES, "[{k: v + 1 for k, v in e.items()} for e in plain]"),
    ("lazy[3]", SAMPLES, "plain[3]"),
    ("lazy[3:9]", SAMPLES, "plain[3:9]"),
    ("lazy[rows]", SAMPLES, "[plain[row] for row in rows.tolist()]"),
    ("lazy.__getitems__(picked)", SAMPLES, "[plain[row] for row in picked]"),
    ("lazy.get('leaf1')", SAMPLES, "torch.stack([e['leaf1'] for e in plain])"),
    ("lazy['leaf1']", SAMPLES, "torch.stack([e['leaf1'] for e in plain])"),
    ("lazy.contiguous()", SAMPLES, STACKED),
    ("list(lazy.keys())", SAMPLES, "list(d)"),
    ("lazy.unbind(0)", SAMPLES, "tuple(plain)"),
    ("lazy.unsqueeze(0)", SAMPLES, "[{k: v.unsqueeze(0) for k, v in e.items()} for e in plain]"),
    ("lazy[3] = samples[4]", SAMPLES, "for k, v in plain[3].items(): v.copy_(plain[4][k])"),
    ("lazy.get('leaf1', as_list=True)", RAGGED, "[e['leaf1'] for e in plain]"),
    ("lazy.get('leaf1', as_padded_tensor=True)", RAGGED, "pad([e['leaf1'] for e in plain], batch_first=True)"),
    ("pad_sequence(samples)", RAGGED, "{k: pad([e[k] for e in plain], batch_first=True) for k in d}"),
]
CASES = [Case(f"`{statement}`", setup, statement, plain) for statement, setup, plain in ROWS]


def summary(found: dict[str, Times]) -> list[str]:
    """Return this over the plain dict, and the published one over this, of every row."""
    lines = ["| | published ÷ this | this ÷ plain dict |", "|---|--:|--:|"]
    for name, times in found.items():
        ratio = f"{times['published'] / times['this']:.2f}" if "published" in times else "-"
        lines.append(f"| {name} | {ratio} | {times['this'] / times['plain']:.2f} |")
    return lines


if __name__ == "__main__":
    sys.exit(run_cases(CASES, summary, __doc__))
