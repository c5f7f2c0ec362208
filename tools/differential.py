"""Run random programs of words on this package and on the published one, and list where the two differ.

    python tools/differential.py --peer PYTHON [--programs 2000] [--seed 0] [--all]

PYTHON is an interpreter whose `import tensordict` is the published package, on the same torch; this file's own
interpreter must import ours. One process a side runs whole programs: a random tree, then one to five lines. Compared
are the result and the tree it came from (kinds, keys, batch sizes, names, device, locks, dtypes, shapes, values), or
the class of the error. A disagreement is cut to its shortest program; those of one cause are listed together.
Differences that `docs/differences.md` explains are counted, and listed with --all. Exit status: 1 if others are left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from explained import check, explained

PRELUDE = """
import numpy, torch
from tensordict import *

def leaf(*shape, start=0, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + start) % 11 - 3).to(dtype).reshape(shape)
"""
PATH = "PYTHONPATH"  # it leads to ours
DTYPES = ["float32", "float32", "float64", "int64", "uint8", "bool", "complex64"]
BATCHES: list[tuple[int, ...]] = [(), (1,), (3,), (2, 3), (2, 3), (1, 2), (2, 1, 2), (0,), (2, 0)]
KEYS = ['"a"', '"b"', '"n"', '("n", "c")', '("n", "new")', '"s"', '"new"', '("x", "y")']
UNARY = "abs neg exp square relu sign tanh isnan isfinite logical_not zero_ neg_ exp_ abs_ clone detach contiguous"
BINARY = "add sub mul div pow maximum minimum clamp_max clamp_min logical_and add_ mul_ sub_ div_ pow_ rsub mod"
COMPARISONS = "== != < <= > >= & | ^ + - * / **"
REDUCTIONS = "sum mean std var prod amax amin nansum nanmean max min logsumexp"
CASTS = "float double int long bool half to_tensordict to_dict numpy unlock_ lock_ is_empty numel auto_batch_size_"


class Writer:
    """Write the lines of one random program; `batch` follows the batch size as far as torch can tell it."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.batch = self.rng.choice(BATCHES)

    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    # ---- trees

    def leaf(self, batch: tuple[int, ...]) -> str:
        shape = (*batch, *self.pick((), (), (2,), (1, 3)))
        args = [*map(str, shape), f"start={self.rng.randrange(9)}", f"dtype=torch.{self.pick(*DTYPES)}"]
        return f"leaf({', '.join(args)})"

    def tree(self, batch: tuple[int, ...], depth: int = 2, names: bool = True) -> str:
        entries = [f'"{key}": {self.leaf(batch)}' for key in "ab" if self.rng.random() < 0.8]
        if depth and self.rng.random() < 0.5:
            wide = self.pick(batch, batch, (*batch, 2))
            entries.append(f'"n": {self.tree(wide, depth - 1, names=False).replace(chr(34) + "a", chr(34) + "c")}')
        if self.rng.random() < 0.15:
            entries.append('"s": "text"')
        options = [f"batch_size={list(batch)}"]
        if names and self.rng.random() < 0.25:
            options.append(f"names={list('xyz'[: len(batch)])}")
        if names and self.rng.random() < 0.2:
            options.append('device="cpu"')
        return f"TensorDict({{{', '.join(entries)}}}, {', '.join(options)})"

    def start(self) -> str:
        if self.batch and self.batch[0] and self.rng.random() < 0.25:
            dim = self.rng.randrange(len(self.batch))
            member = self.tree((*self.batch[:dim], *self.batch[dim + 1 :]), 1)
            later = re.sub(r"start=\d", "start=4", member)
            if self.batch[dim]:
                members = [member] + [later] * (self.batch[dim] - 1)
                return f"td = lazy_stack([{', '.join(members)}], {dim})"
        return f"td = {self.tree(self.batch)}"

    # ---- arguments

    def dim(self) -> int:
        reach = len(self.batch)
        if not reach or self.rng.random() < 0.03:
            return int(self.pick(0, -1, 1))
        return self.rng.randrange(-reach, reach)

    def key(self) -> str:
        return str(self.pick(*KEYS, '"a"', '"b"'))

    def order(self) -> str:
        order = list(range(len(self.batch)))
        self.rng.shuffle(order)
        return ", ".join(map(str, order))

    def item(self, size: int) -> str:
        rows = [self.rng.randrange(size) for _ in range(2)] if size else []
        mask = [self.rng.random() < 0.5 for _ in range(size)]
        one = self.rng.randrange(-size, size) if size else 0
        cut = f"{self.pick('', '0', '1', '-1')}:{self.pick('', '1', '2', '-1')}{self.pick('', '', ':2')}"
        tensors = [f"torch.tensor({rows}, dtype=torch.long)", f"torch.tensor({mask}, dtype=torch.bool)"]
        arrays = [f"numpy.array({rows}, dtype=int)", f"numpy.array({mask}, dtype=bool)"]
        ranks = [f"torch.tensor({[rows, rows[::-1]]}, dtype=torch.long)", *([[rows, rows]] if rows else [])]
        plain = [one, one, cut, cut, ":", "None", "...", rows, mask, f"range({size})", self.pick(True, False)]
        return str(self.pick(*plain, *tensors, *arrays, *ranks))

    def index(self) -> str:
        items = [self.item(size) for size in self.batch[: self.rng.randrange(1, 4)]] or ["...", "None"][
            : self.pick(1, 2)
        ]
        if self.rng.random() < 0.08:
            deep = self.batch[: self.pick(1, 2)]
            return f"(torch.arange({math.prod(deep)}).reshape({list(deep)}) % 2 == 0)"
        return ", ".join(items)

    def value(self) -> str:
        batch = self.pick(self.batch, self.batch, self.batch[-1:])
        return str(
            self.pick("1", "2.0", "0.5", "td", "td.clone()", f"leaf{(*batch,)}".replace(",)", ")"), "torch.tensor(2)")
        )

    def over(self) -> str:
        n = len(self.batch)
        several = tuple(sorted(self.rng.sample(range(n), self.rng.randrange(1, n + 1)))) if n else ()
        dim = self.pick(self.dim(), self.dim(), several, '"feature"', None)
        arguments = [] if dim is None else [f"dim={dim}"]
        arguments += self.pick([], [], ["keepdim=True"]) + self.pick([], [], [], ["reduce=True"])
        return ", ".join(arguments)

    # ---- lines

    def line(self) -> str:
        families: list[Callable[[], str]] = [self.shape, self.shape, self.rows, self.keyed, self.keyed, self.compute]
        families += [self.compute, self.reduce, self.join, self.state]
        line = self.pick(*families)()
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            space = {"td": torch.zeros(self.batch), "torch": torch}
            exec(line, space)
            self.batch = tuple(space["td"].shape)
        return str(line)

    def shape(self) -> str:
        d, e, n = self.dim(), self.dim(), len(self.batch)
        count = math.prod(self.batch)
        low, high = sorted((d % (n or 1), e % (n or 1)))
        words = [f"permute({self.order()})", f"transpose({d}, {e})", f"movedim({d}, {e})", f"unsqueeze({d})"]
        words += [
            f"squeeze({self.pick('', d)})",
            f"flatten({self.pick('', f'{low}, {high}')})",
            "reshape(-1)",
            "view(-1)",
        ]
        words += [f"reshape({count})", f"view({self.pick(1, 2)}, -1)", f"expand(2, {', '.join(map(str, self.batch))})"]
        words += [f"unflatten({d}, (-1, 1))", f"flip({d})", f"roll(1, {d})", f"repeat({', '.join('2' * n)})"]
        words += [
            f"repeat_interleave(2, dim={d})",
            f"swapaxes({d}, {e})",
            f"swapdims({d}, {e})",
            f"atleast_{self.pick(1, 2, 3)}d()",
        ]
        words += [
            f"tile(({', '.join('2' * n)},))",
            f"broadcast_to(({', '.join(map(str, (2, *self.batch)))},))",
            f"rot90({self.pick(1, 2, -1)})",
        ]
        words += [
            f"moveaxis({d}, {e})",
            "fliplr()",
            "flipud()",
            "flatten_keys()",
            "unflatten_keys()",
            f"pad([{self.pick('1, 0', '0, 2', '1, 1, 0, 1')}])",
        ]
        return f"td = td.{self.pick(*words)}"

    def rows(self) -> str:
        index, d = self.index(), self.dim()
        lines = [f"td = td[{index}]"] * 4 + [f"td[{index}] = {self.value()}", f"td[{index}] = td[{index}]"]
        lines += [
            f"td[{index}] = td[{index}].clone().zero_()",
            f"td = td.get_at({self.key()}, ({index},))" if ":" not in index else "td = td[:]",
            f"td = td.update_at_(td[{index}] * 2, ({index},))" if ":" not in index else "td = td[::2]",
            f"td = td.set_at_({self.key()}, {self.pick('1', '0.5')}, ({index},))"
            if ":" not in index
            else "td = td[-1:]",
        ]
        zeros = f"torch.zeros({[min(size, self.pick(1, 2)) for size in self.batch]}, dtype=torch.long)"
        lines += [
            f"td = td.gather({d}, {zeros})",
            f"td = torch.gather(td, {d}, {zeros})",
            f"td = td.where(torch.arange({math.prod(self.batch)}).reshape({list(self.batch)}) % 2 == 0, td * 3)",
            f"td = td.masked_select(torch.arange({math.prod(self.batch)}).reshape({list(self.batch)}) % 2 == 0)",
        ]
        lines += [
            f"td = td.unbind({d})[0]",
            f"td = td.unbind({d})[-1]",
            f"td = td.split({self.pick(1, 2, [1, 1])}, {d})[0]",
        ]
        lines += [
            f"td = td.chunk(2, {d})[-1]",
            f"td = td.gather({d}, torch.zeros({list(self.batch)}, dtype=torch.long))",
        ]
        lines += [
            f"td = td.masked_fill(torch.ones({list(self.batch)}, dtype=torch.bool), 2)",
            "td = len(td)",
            "td = list(td)",
        ]
        lines += [f"td = td.where(torch.ones({list(self.batch)}, dtype=torch.bool), {self.pick('0', 'td * 2', '1.0')})"]
        lines += [
            f"td = td.masked_select(torch.ones({list(self.batch)}, dtype=torch.bool))",
            f"td = td.tensor_split(2, {d})[0]",
        ]
        select = self.pick("index_select(td, {}, torch.tensor([0]))", "select(td, {}, 0)", "narrow(td, {}, 0, 1)")
        lines.append(f"td = torch.{select.format(d)}")
        return str(self.pick(*lines))

    def keyed(self) -> str:
        one, two, value = (
            self.key(),
            self.key(),
            self.pick("1", self.leaf(self.batch), '"word"', "{}", self.tree(self.batch, 0, False)),
        )
        words = [
            f"td[{one}] = {value}",
            f"td = td[{one}]",
            f"td = td.set({one}, {value})",
            f"td = td.set_({one}, {value})",
        ]
        words += [
            f"td = td.get({one})",
            f"td = td.get({one}, {self.pick(None, 1)})",
            f"td = td.pop({one})",
            f"td = td.pop({one}, 1)",
            f"del td[{one}]",
        ]
        words += [
            f"td = td.select({one})",
            f"td = td.select({one}, {two}, strict=False)",
            f"td = td.exclude({one})",
            f"td = td.exclude({one}, {two})",
        ]
        words += [
            f"td = td.rename_key_({one}, {two})",
            f"td = td.rename_key_({one}, {two}, safe=True)",
            f"td = td.setdefault({one}, {value})",
        ]
        words += [
            f"td = td.update({self.tree(self.batch, 1, False)})",
            f"td = td.update_({self.tree(self.batch, 1, False)})",
        ]
        words += [
            f"td = td.update({{{one}: {value}}})",
            f"td = td.replace({{{one}: {value}}})",
            f"td = td.empty({self.pick('', 'recurse=True')})",
        ]
        words += [
            f"td = td.flatten_keys({self.pick('', repr('_'))})",
            "td = td.unflatten_keys()",
            f"td = td.split_keys([{one}], [{two}])",
            f"td = td.split_keys({self.pick(f'[{one}]', f'[{one}], strict=False', f'[{one}], default=None')})",
            "td = td.flatten_keys(" + self.pick("inplace=True", "'-'") + ")",
            f"td = {one} in td.keys(True)",
        ]
        words += [
            "td = sorted(map(str, td.keys(True, True)))",
            "td = sorted(map(str, td.keys(True)))",
            f"td = td.del_({one})",
            f"td = {one} in td",
        ]
        words += [
            f"td = td.create_nested({one})",
            f"td = td.separates({one})",
            "td = td.filter_empty_()",
            f"td = td.get_item_shape({one})",
        ]
        words += [
            "td = td.filter_non_tensor_data()",
            "td = td.to_dict()",
            "td = td.copy()",
            f"td = merge_tensordicts(td, {self.tree(self.batch, 1, False)})",
        ]
        words += [
            f"td = td.stack_tensors({one}, {two}, out_key='z', dim={self.dim()})",
            f"td = td.cat_tensors({one}, {two}, out_key='z', dim={self.dim()})",
        ]
        words += [
            f"td = td.set_at_({one}, {self.pick('1', '0.5')}, {self.dim()})",
            f"td = td.select({one}, inplace=True)",
        ]
        return str(self.pick(*words))

    def compute(self) -> str:
        value, reach = self.value(), len(self.batch)
        words = [f"td = td.{self.pick(*UNARY.split())}()", f"td = td.{self.pick(*BINARY.split())}({value})"]
        words += [f"td = td {self.pick(*COMPARISONS.split())} {value}"] * 2 + [
            f"td = {self.pick(2, 0.5)} {self.pick(*'+-*/')} td"
        ]
        words += [
            f"td = torch.{self.pick('zeros_like', 'ones_like', 'exp', 'abs', 'neg', 'clone')}(td)",
            "td = td.apply(lambda x: x + 1)",
        ]
        words += [
            "td = td.apply(lambda x: x.float().sum(), batch_size=[])",
            "td = td.named_apply(lambda k, x: None if k == 'a' else x)",
            "td = td.apply(lambda x, y: x + y, td)",
            "td = td.apply(lambda x, y: x if y is None else x + y, td.select('a', strict=False), default=None)",
            "td = td.apply(lambda x: x + 1, inplace=True)",
            f"td = td.apply(lambda x: None, filter_empty={self.pick(True, False, None)})",
            "td = td.apply(lambda x: x[..., None], call_on_nested=False)",
            "td = td.named_apply(lambda k, x: x * len(k), nested_keys=True)",
            f"td = td.apply(lambda x: x.unsqueeze(0), batch_size={[1, *self.batch]})",
            f"td = td.apply(lambda x: x[None], batch_size={[1, *self.batch]}, names={['q', *[None] * reach]})",
            "td = td.apply(lambda x: x.clone(), propagate_lock=True)",
        ]
        words += [
            f"td = td.clamp({self.pick('0, 1', 'min=0', 'max=1')})",
            f"td += {value}",
            f"td *= {value}",
            "td = ~td",
            "td = -td",
            "td = abs(td)",
        ]
        words += [
            "td = td.apply_(lambda x: x.zero_())",
            f"td = td.lerp(td + 1, {self.pick(0.5, 1)})",
            "td = td.addcmul(td, td, value=2)",
        ]
        words += [
            f"td = td.add(td.select('a', strict=False), default={self.pick('0.0', repr('intersection'))})",
            f"td = td.fill_({self.key()}, 1)",
        ]
        return str(self.pick(*words))

    def reduce(self) -> str:
        words = [f"{self.pick(*REDUCTIONS.split())}({self.over()})"] * 4 + [
            f"{self.pick('all', 'any')}({self.pick('', self.dim())})"
        ]
        words += [f"{self.pick('cummax', 'cummin', 'softmax')}({self.dim()})", "norm()", f"quantile(0.5, {self.dim()})"]
        return f"td = td.{self.pick(*words)}"

    def join(self) -> str:
        n, d = len(self.batch), self.dim()
        function = self.pick("torch.stack", "torch.stack", "lazy_stack", "maybe_dense_stack", "torch.cat", "torch.cat")
        at = self.rng.randrange(-n - 1, n + 1) if "stack" in function else d
        second = self.pick("td", "td.clone()", "td.exclude('a')", "td * 2", self.tree(self.batch, 1, False))
        return f"td = {function}([td, {second}], {at})"

    def state(self) -> str:
        n = len(self.batch)
        words = [f"td = td.{word}()" for word in CASTS.split()] + [
            f"td.batch_size = {list(self.batch[: self.rng.randrange(n + 1)])}"
        ]
        words += [
            f"td.names = {self.pick(list('uvw'[:n]), None, [None] * n)}",
            "td = td.names",
            "td = td.device",
            "td = td.to('cpu')",
        ]
        words += [
            "td = td.to(torch.float64)",
            "td.lock_()",
            "td.unlock_()",
            "td = td.lock_()",
            "td = td.is_locked",
            "td = td.batch_size",
            "td.clear_device_()",
        ]
        words += [
            f"td = td.rename({', '.join(repr(name) for name in 'pqr'[:n])})",
            "td = td.dtype",
            "td = td.depth",
            "td = td.tolist()",
        ]
        words += [
            f"td = td.new_zeros({self.pick(2, '2, 3')})",
            f"td = td.new_full((2,), {self.pick(1, 0.5)})",
            f"td = td.to_lazystack({self.dim()})",
            "td = td.densify()",
        ]
        words += [
            f"td = td.refine_names({', '.join(self.pick('...', repr(name)) for name in 'x'[:n])})",
            "td = td.bytes()",
            "td = td.sorted_keys",
            "td = td.requires_grad",
        ]
        return str(self.pick(*words))


def program(seed: int, number: int) -> list[str]:
    writer = Writer(f"{seed}:{number}")
    first = writer.start()
    return [first, "root = td", *(writer.line() for _ in range(writer.rng.randrange(1, 6)))]


# ---- a side: runs programs, and describes what they leave


def described(value: Any) -> Any:
    """Return what can be compared of a value, as JSON; a value that cannot be read is known by its error."""
    try:
        return _described(value)
    except Exception as error:
        return {"kind": f"unreadable, {_error(error)}"}


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        flat = value.detach().as_subclass(torch.Tensor).reshape(-1).tolist()
        return {
            "kind": "Tensor",
            "dtype": str(value.dtype),
            "shape": list(value.shape),
            "values": [_number(v) for v in flat],
        }
    if type(value).__name__ in ("NonTensorData", "NonTensorStack"):
        data = value.data if type(value).__name__ == "NonTensorData" else value.tolist()
        return {"kind": type(value).__name__, "batch": list(value.batch_size), "values": repr(data)}
    if type(value).__name__ in ("TensorDict", "LazyStackedTensorDict"):
        return _node(value)
    if isinstance(value, dict):
        return {"kind": "dict", "items": {str(k): described(v) for k, v in value.items()}}
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return {"kind": "sequence", "items": {str(at): described(v) for at, v in enumerate(value)}}
    if type(value).__name__ == "ndarray":
        return described(torch.from_numpy(value.copy()))
    return _number(value) if isinstance(value, (bool, int, float, complex)) else repr(value)


def _child(node: Any, key: str) -> Any:
    try:
        return described(node.get(key))
    except Exception as error:
        return {"kind": f"unreadable, {_error(error)}"}


def _number(value: Any) -> str:
    if isinstance(value, complex) and math.isfinite(abs(value)):
        size = 10.0 ** math.floor(math.log10(abs(value) or 1))  # digits of the whole, not of each part
        return f"{round(value.real / size, 3) + 0}+{round(value.imag / size, 3) + 0}i * {size:.3g}"
    return f"{value + 0:.4g}" if isinstance(value, (float, complex)) else repr(value)


def _node(node: Any) -> dict[str, Any]:
    return {
        "kind": type(node).__name__,
        "batch": list(node.batch_size),
        "names": [str(name) for name in node.names],
        "device": str(node.device),
        "locked": node.is_locked,
        "items": {key: _child(node, key) for key in node.keys()},  # noqa: SIM118  it iterates over rows
    }


def _error(error: BaseException) -> str:
    """Return the built-in class of an error: more special ones differ between packages."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")


def outcome(lines: list[str]) -> Any:
    """Run a program and return what it leaves; an error counts with the tree as it was left."""
    space: dict[str, Any] = {}
    exec(PRELUDE, space)
    at, before = -1, None
    try:
        for line in lines:
            at += 1
            before = described(space.get("root"))
            exec(line, space)
            if type(space["td"]).__name__ not in ("TensorDict", "LazyStackedTensorDict"):
                break  # what the next words do to a tensor or a string is not asked
    except Exception as error:
        after = described(space.get("root"))
        return {"kind": _error(error), "at": at, "kept": after == before, "items": {"root": after}}
    return {
        "kind": "done",
        "at": len(lines) - 1,
        "items": {"td": described(space["td"]), "root": described(space.get("root"))},
    }


def serve() -> None:
    """Answer each line of JSON (a list of programs) with a line of JSON (their outcomes)."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps([outcome(lines) for lines in json.loads(line)]), flush=True)


class Side:
    """The process of one side."""

    def __init__(self, python: str) -> None:
        command, pipe = [python, __file__, "--serve"], subprocess.PIPE
        environment = {name: value for name, value in os.environ.items() if python == sys.executable or name != PATH}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def send(self, programs: list[list[str]]) -> None:
        assert self.process.stdin is not None
        print(json.dumps(programs), file=self.process.stdin, flush=True)

    def receive(self) -> list[Any]:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.wait()} while it ran programs")
        found: list[Any] = json.loads(answer)
        return found


# ---- the comparison


def differences(ours: Any, theirs: Any) -> Iterator[str]:
    """Yield what differs between two descriptions, without saying where in the tree."""
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        if ours != theirs:
            shown = [one["kind"] if isinstance(one, dict) else "value" for one in (ours, theirs)]
            yield "value" if shown == ["value", "value"] else f"kind: {shown[0]}, published {shown[1]}"
        return
    if ours["kind"] != theirs["kind"]:
        yield f"kind: {ours['kind']}, published {theirs['kind']}"
        return
    for aspect in ("batch", "names", "device", "locked", "dtype", "shape", "values"):
        if ours.get(aspect) != theirs.get(aspect):
            yield aspect
    mine, other = ours.get("items", {}), theirs.get("items", {})
    if mine.keys() != other.keys():
        yield f"keys: {sorted(mine.keys() - other.keys())} more, {sorted(other.keys() - mine.keys())} fewer"
    for key in mine.keys() & other.keys():
        yield from differences(mine[key], other[key])


def compared(ours: Any, theirs: Any) -> list[str]:
    """Return what differs between two outcomes; of errors, who has changed the tree before it raised one."""
    found = set(differences(ours, theirs))
    if ours["kind"] == theirs["kind"] != "done" and found:
        found = {"after an error: theirs changed"}
    if not ours.get("kept", True):
        found.add("after an error: ours changed")
    return sorted(found)


class Pair:
    """Both sides."""

    def __init__(self, peer: str) -> None:
        self.ours, self.theirs = Side(sys.executable), Side(peer)

    def compare(self, programs: list[list[str]]) -> list[list[str]]:
        """Return for each program what differs; nothing if a side fails before the last line: that is another cause."""
        return [
            compared(*pair) if min(one["at"] for one in pair) == len(lines) - 1 else []
            for lines, pair in zip(programs, self.run(programs), strict=True)
        ]

    def run(self, programs: list[list[str]]) -> list[tuple[Any, Any]]:
        self.ours.send(programs)
        self.theirs.send(programs)
        return list(zip(self.ours.receive(), self.theirs.receive(), strict=True))

    def cut(self, programs: list[list[str]]) -> list[list[str]]:
        """Return the programs up to the line at which the first of the two sides fails."""
        ends = [min(one["at"] for one in pair) for pair in self.run(programs)]
        return [lines[: end + 1] for lines, end in zip(programs, ends, strict=True)]

    def shortest(self, lines: list[str], found: list[str]) -> list[str]:
        """Return the program without the lines and entries that do not matter for the difference."""
        while True:
            candidates = list(shorter(lines))
            for candidate, still in zip(candidates, self.compare(candidates) if candidates else [], strict=True):
                if still == found:
                    lines = candidate
                    break
            else:
                return lines


def shorter(lines: list[str]) -> Iterator[list[str]]:
    """Yield the programs with one line or one part of the tree less."""
    for at in range(2, len(lines)):
        if len(lines) > 3:
            yield [*lines[:at], *lines[at + 1 :]]
    first = lines[0]
    for pattern in (r'"\w+": leaf\([^)]*\)(, )?', r", names=\[[^\]]*\]", r', device="cpu"', r'(, )?"s": "text"'):
        for match in re.finditer(pattern, first):
            yield [first[: match.start()] + first[match.end() :], *lines[1:]]
    for match in re.finditer(r'(, )?"n": TensorDict\(\{[^{}]*\}, [^()]*\)', first):
        yield [first[: match.start()] + first[match.end() :], *lines[1:]]
    for match in re.finditer(r"dtype=torch\.(?!float32)\w+", first):
        yield [first[: match.start()] + "dtype=torch.float32" + first[match.end() :], *lines[1:]]


def word_of(line: str) -> str:
    """Return the word that a line is about."""
    found = re.match(r"td = (?:td|torch)\.(\w+)|td = (\w+)\(|td\.(\w+)", line)
    if found:
        return next(filter(None, found.groups()))
    operator = re.match(r"td (?:= \S+ )?(\S+) ", line)
    if "[" in line[:10]:
        kind = "key" if re.search(r'td\[\(?"', line) else "index"
        return f"write {kind}" if line.startswith("td[") else f"read {kind}"
    return operator.group(1) if operator else line


def reason(word: str, what: str, programs: list[list[str]]) -> str | None:
    """Return the sentences that explain all that differs in all programs of one cause, or None."""
    found = [explained(word, part, "\n".join(lines)) for lines in programs for part in what.split("; ")]
    return None if None in found else " | ".join(sorted({why for why in found if why}))


def parted(sides: Pair, lines: list[str]) -> str | None:
    """Return why the sides had parted before the last line of a program, if that is explained."""
    for end in range(3, len(lines)):
        (found,) = sides.compare([lines[:end]])
        if found:
            return reason(word_of(lines[end - 1]), "; ".join(found), [lines[:end]])
    return None


def known_of(sides: Pair, cause: tuple[str, str], programs: list[list[str]]) -> str | None:
    """Return why all programs of a cause differ, by the last line or an earlier one, or None."""
    why = {reason(*cause, [lines]) or parted(sides, lines) for lines in programs}
    return None if None in why else " | ".join(sorted(filter(None, why)))


def search(arguments: argparse.Namespace) -> int:
    """Compare random programs, print the causes, and return how many are not explained."""
    sides, groups, counts = Pair(arguments.peer), defaultdict(list), Counter[tuple[str, str]]()
    for start in range(0, arguments.programs, 200):
        programs = sides.cut([program(arguments.seed, at) for at in range(start, min(start + 200, arguments.programs))])
        for lines, found in zip(programs, sides.compare(programs), strict=True):
            if not found:
                continue
            short = sides.shortest(lines, found)
            cause = word_of(short[-1]), "; ".join(found)
            counts[cause] += 1
            groups[cause].append(short)
    known = {cause: known_of(sides, cause, groups[cause]) for cause in counts}
    for cause, count in sorted(counts.items()):
        if known[cause] is None or arguments.all:
            print(f"\n{count} x {cause[0]} -- {cause[1]}" + (f"  [{known[cause]}]" if known[cause] else ""))
            odd = [lines for lines in groups[cause] if known_of(sides, cause, [lines]) is None] or groups[cause]
            print("    " + "\n    ".join(min(odd, key=lambda lines: len("".join(lines)))))
    left = sum(why is None for why in known.values())
    print(f"\n{arguments.programs} programs: {counts.total()} differ, from {len(counts)} causes, {left} not explained")
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peer", help="the interpreter that imports the published package")
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="list explained differences too")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return 0
    if arguments.peer is None:
        parser.error("--peer is needed: the interpreter that imports the published package")
    check()
    return int(search(arguments) > 0)


if __name__ == "__main__":
    sys.exit(main())
