"""Time the container operations: this package, the published one and the plain dict comprehension, in one run.

    python benchmarks/ops.py [--peer PYTHON] [--quick] [--only WORD]

Eight leaves of 1024 x 4 floats. Besides the table, prints the geometric mean of published ÷ this, the rows on which
this package is the slower one, and those whose overhead over the plain dict is above a third of the published one's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

from cases import COMMON, Case
from run import HEAD, Times, Worker, measure, row

SETUP = (
    COMMON
    + """
d = {f"leaf{i}": torch.rand(1024, 4) for i in range(8)}
td = TensorDict(d, batch_size=[1024])
eight = [td.clone() for _ in range(8)]
eight_plain = [{k: v.clone() for k, v in d.items()} for _ in range(8)]
other, other_plain = td.clone(), {k: v.clone() for k, v in d.items()}
nested = TensorDict({"a": d, "b": {"c": d}}, batch_size=[1024])
nested_plain = {"a": dict(d), "b": {"c": dict(d)}}
other_nested = nested.clone()
pairs = [(v, w) for v, w in zip([*d.values(), *d.values()], other_nested.values(True, True))]
grid = td.unsqueeze(0)
rows, picked, mask = torch.randperm(1024)[:64], torch.randperm(1024)[:64].tolist(), torch.arange(1024) % 2 == 0
leaf, one = d["leaf1"], td[3].clone()
few, flat = td[:8], nested.flatten_keys(".")
"""
)


def each(call: str) -> str:
    """Return the comprehension that does the same to the plain dict."""
    return "{k: " + call + " for k, v in d.items()}"


OPS = [
    ("td[3]", each("v[3]")),
    ("td[1:3]", each("v[1:3]")),
    ("td[rows]", each("v[rows]")),
    ("td.__getitems__(picked)", each("v[torch.tensor(picked)]")),
    ("td[mask]", each("v[mask]")),
    ("td[3] = one", "for k, v in d.items(): v[3] = other_plain[k][3]"),
    ("td[rows] = other[rows]", "for k, v in d.items(): v[rows] = other_plain[k][rows]"),
    ("td + 1", each("v + 1")),
    ("td + other", each("v + other_plain[k]")),
    ("td.add_(other)", "for k, v in d.items(): v.add_(other_plain[k])"),
    ("nested.zero_()", "for v, _ in pairs: v.zero_()"),
    ("nested.add_(other_nested)", "for v, w in pairs: v.add_(w)"),
    ("nested.lerp_(other_nested, 0.5)", "for v, w in pairs: v.lerp_(w, 0.5)"),
    ("nested.update_(other_nested)", "for v, w in pairs: v.copy_(w)"),
    ("td.exp()", each("v.exp()")),
    ("td == other", each("v == other_plain[k]")),
    ("td.clone()", each("v.clone()")),
    ("td.detach()", each("v.detach()")),
    ("td.double()", each("v.double()")),
    ("td.to('cpu')", each("v.to('cpu')")),
    ("td.reshape(512, 2)", each("v.reshape(512, 2, 4)")),
    ("td.view(-1)", each("v.view(1024, 4)")),
    ("td.unsqueeze(0)", each("v.unsqueeze(0)")),
    ("grid.squeeze(0)", each("v.squeeze(0)")),
    ("grid.permute(1, 0)", "{k: v.permute(1, 0, 2) for k, v in grid.items()}"),
    ("grid.transpose(0, 1)", "{k: v.transpose(0, 1) for k, v in grid.items()}"),
    ("td.expand(2, 1024)", each("v.expand(2, 1024, 4)")),
    ("few.unbind(0)", "[dict(zip(d, row)) for row in zip(*(v[:8].unbind(0) for v in d.values()))]"),
    ("td.split(256)", "[dict(zip(d, part)) for part in zip(*(v.split(256) for v in d.values()))]"),
    ("torch.stack(eight)", "{k: torch.stack([e[k] for e in eight_plain]) for k in d}"),
    ("torch.cat(eight)", "{k: torch.cat([e[k] for e in eight_plain]) for k in d}"),
    ("td.sum(0)", each("v.sum(0)")),
    ("td.where(mask, 0)", each("v.where(mask.unsqueeze(-1), 0)")),
    ("td.gather(0, rows)", each("v.gather(0, rows.unsqueeze(-1).expand(64, 4))")),
    ("td.apply(lambda v: v + 1)", each("v + 1")),
    ("TensorDict(d, batch_size=[1024])", "dict(d)"),
    ("td.copy()", "dict(d)"),
    ("td.empty()", "{}"),
    ("td['leaf1']", "d['leaf1']"),
    ("td.get('leaf1')", "d.get('leaf1')"),
    ("nested['b', 'c', 'leaf1']", "nested_plain['b']['c']['leaf1']"),
    ("td['leaf1'] = leaf", "d['leaf1'] = leaf"),
    ("td.update({'leaf1': leaf})", "d.update({'leaf1': leaf})"),
    ("td.update_(other)", "for k, v in d.items(): v.copy_(other_plain[k])"),
    ("td.select('leaf1', 'leaf2')", "{k: d[k] for k in ('leaf1', 'leaf2')}"),
    ("td.exclude('leaf1')", "{k: v for k, v in d.items() if k != 'leaf1'}"),
    ("list(td.keys())", "list(d)"),
    ("list(td.items())", "list(d.items())"),
    ("list(nested.keys(True, True))", "[(a, b) for a in nested_plain for b in nested_plain[a]]"),
    ("nested.flatten_keys('.')", "{f'{a}.{b}': v for a, e in nested_plain.items() for b, v in e.items()}"),
    ("td.to_dict()", "dict(d)"),
    ("'leaf1' in td", "'leaf1' in d"),
    ("len(td)", "len(d['leaf1'])"),
    ("td.batch_size", "d['leaf1'].shape"),
    ("nested.lock_().unlock_()", "None"),
    ("td.shape", "d['leaf1'].shape[:1]"),
    ("td.device", "d['leaf1'].device"),
    ("td.ndim", "1"),
    ("td.numel()", "d['leaf1'].shape[0]"),
    ("td.is_locked", "False"),
    ("td.is_empty()", "not d"),
    ("isinstance(td, TensorDict)", "isinstance(d, dict)"),
    ("td.set('leaf1', leaf)", "d['leaf1'] = leaf"),
    ("nested['b', 'c', 'leaf1'] = leaf", "nested_plain['b']['c']['leaf1'] = leaf"),
    ("td['x'] = td.pop('leaf1'); td['leaf1'] = td.pop('x')", "d['x'] = d.pop('leaf1'); d['leaf1'] = d.pop('x')"),
    ("td.rename_key_('leaf1', 'x').rename_key_('x', 'leaf1')", "d['x'] = d.pop('leaf1'); d['leaf1'] = d.pop('x')"),
    ("list(td.values())", "list(d.values())"),
    ("td.cpu()", each("v.cpu()")),
    ("td.data", each("v.data")),
    ("td.contiguous()", each("v.contiguous()")),
    ("td.to_tensordict()", each("v.clone()")),
    ("td.clone(False)", "dict(d)"),
    ("nested.clone(False)", "{k: dict(v) for k, v in nested_plain.items()}"),
    ("td.named_apply(lambda k, v: v)", each("v")),
    ("grid[:, 3]", "{k: v[:, 3] for k, v in grid.items()}"),
    ("flat.unflatten_keys('.')", "{k: v for k, v in flat.items()}"),
    ("td.flatten()", "{k: v.flatten(0, 0) for k, v in d.items()}"),
    ("td.auto_batch_size_(1)", "{tuple(v.shape[:1]) for v in d.values()}"),
]
CASES = [Case(f"`{statement}`", SETUP, statement, plain) for statement, plain in OPS]


def summary(found: dict[str, Times]) -> list[str]:
    """Return the geometric mean and the rows that miss what is wanted."""
    both = {name: times for name, times in found.items() if "published" in times}
    if not both:
        return []
    ratios = {name: times["published"] / times["this"] for name, times in both.items()}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    slower = [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio < 1]
    heavy = [
        f"{name} {(times['this'] - times['plain']) / (times['published'] - times['plain']):.2f}"
        for name, times in both.items()
        if times["published"] > times["plain"]
        and 3 * (times["this"] - times["plain"]) > times["published"] - times["plain"]
    ]
    return [
        f"{len(both)} operations, geometric mean of published ÷ this: {mean:.2f}",
        f"slower than the published package: {', '.join(slower) or 'none'}",
        f"overhead above a third of the published one: {', '.join(heavy) or 'none'}",
    ]


def run_cases(cases: list[Case], conclude: Callable[[dict[str, Times]], list[str]], text: str | None) -> int:
    """Print a row for each case, and then what is concluded of all of them."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter that imports the published package")
    parser.add_argument("--quick", action="store_true", help="run each statement once, to see that all of them work")
    parser.add_argument("--only", metavar="WORD", default="", help="only the rows with this text in their name")
    options = parser.parse_args()
    pythons = {"this": sys.executable} | ({"published": options.peer} if options.peer else {})
    workers = {side: Worker(python) for side, python in pythons.items()}
    found: dict[str, Times] = {}
    print(*HEAD, sep="\n", flush=True)
    try:
        for case in cases:
            if options.only in case.name:
                found[case.name] = measure(case, workers, 1 if options.quick else 9)
                print(row(case.name, found[case.name]), flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    print("", *conclude(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_cases(CASES, summary, __doc__))
