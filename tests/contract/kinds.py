"""The same data as every kind of container, so that one table of words can run over all of them."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    PersistentTensorDict,
    TensorClass,
    TensorDict,
    TypedTensorDict,
    UnbatchedTensor,
)
from tensordict.kinds.nontensor import Pool
from tensordict.meta import Meta
from tensordict.storage.strings import Strings

_files, _folder = itertools.count(), tempfile.TemporaryDirectory()


class Point(TensorClass):
    """A tensorclass with the leaves of the data."""

    x: torch.Tensor
    n: torch.Tensor
    inner: Any
    word: Any = "w"


class Keys(TypedTensorDict):
    """A typed tensordict with the leaves of the data."""

    x: torch.Tensor
    n: torch.Tensor
    inner: TensorDict
    word: Any = "w"


def dense(batch: tuple[int, ...]) -> TensorDict:
    """Return a float leaf, an int leaf with a feature dim, a nested node and one string, all different in every row."""
    rows = torch.arange(math.prod(batch)).reshape(batch)
    x = rows.double() / 8 + 0.125
    n = torch.stack([rows, rows + 100], -1)
    inner = {"y": (n.unsqueeze(-1) + torch.arange(3) * 1000).double() / 4096 + 0.25, "b": n + 1}
    return TensorDict({"x": x, "n": n, "inner": inner, "word": "w"}, batch)


def _lazy(dim: int) -> Callable[[tuple[int, ...]], Any]:
    def make(batch: tuple[int, ...]) -> Any:
        return LazyStackedTensorDict(*(row.clone() for row in dense(batch).unbind(dim)), stack_dim=dim)

    return make


def grid(batch: tuple[int, ...]) -> LazyStackedTensorDict:
    """Return the data as a lazy stack of lazy stacks."""
    rows = [LazyStackedTensorDict(*row.clone().unbind(0)) for row in dense(batch).unbind(0)]
    return LazyStackedTensorDict(*rows)


def uneven(batch: tuple[int, ...]) -> LazyStackedTensorDict:
    """Return the data as a lazy stack whose first member has keys of its own, of shapes of their own."""
    stack = _lazy(0)(batch)
    stack.tensordicts[0].set("own", torch.ones(*batch[1:], 5)).set(("inner", "own"), torch.ones(*batch[1:], 2))
    return stack  # type: ignore[no-any-return]


def nested(batch: tuple[int, ...]) -> TensorDict:
    """Return the data in one node that holds a lazy stack, and more: a tensorclass, a wider node, non-tensors."""
    td = dense(batch)
    inner = (
        LazyStackedTensorDict(*(row.clone() for row in td["inner"].unbind(0)), stack_dim=0)
        if batch and batch[0]
        else td["inner"]
    )
    td["inner"] = inner
    td["point"] = tensorclass(batch)
    td["wide"] = TensorDict({"n": td["n"].clone()}, (*batch, 2))
    td["one"] = NonTensorData({"any": "object"}, batch)
    td["about"] = MetaData("all rows")
    td["scale"] = UnbatchedTensor(torch.tensor([0.5, 2.0]))
    if batch and math.prod(batch):
        texts = list(map(str, range(math.prod(batch))))
        td["column"] = NonTensorStack(*texts).reshape(batch)
        td["text"] = strings([None if text == "1" else text + "é" for text in texts]).reshape(batch)
    return td


def strings(values: list[Any]) -> NonTensorStack:
    """Return a column in the form of long ones, however short it is."""
    return NonTensorStack._of(Pool([], Strings.of(values)), None, Meta((len(values),)))


def tensorclass(batch: tuple[int, ...]) -> Point:
    return Point.from_tensordict(dense(batch))


def _class_of(make: Callable[[tuple[int, ...]], Any], kind: Any = Point) -> Callable[[tuple[int, ...]], Any]:
    return lambda batch: kind.from_tensordict(make(batch))


def tensorclass_of_lazy(batch: tuple[int, ...]) -> Point:
    return Point.from_tensordict(_lazy(0)(batch))


def mapped(batch: tuple[int, ...]) -> TensorDict:
    return dense(batch).memmap_()


def shared(batch: tuple[int, ...]) -> TensorDict:
    return dense(batch).share_memory_()


def consolidated(batch: tuple[int, ...]) -> TensorDict:
    return dense(batch).consolidate()


def side_by_side(batch: tuple[int, ...]) -> TensorDict:
    """Return the data with the leaves of each row side by side in memory."""
    return dense(batch).consolidate(layout="rows")


def one_file(batch: tuple[int, ...]) -> TensorDict:
    """Return the data as it is mapped from one file."""
    path = f"{_folder.name}/{next(_files)}.tdb"
    dense(batch).consolidate(path)
    return TensorDict.from_consolidated(path)


def batched(node: Any) -> Any:
    """Return a node without its unbatched tensor, for words that need a value for each row, or the value of one."""
    return node.exclude("scale") if "scale" in node.keys() else node  # noqa: SIM118


def persistent(batch: tuple[int, ...]) -> PersistentTensorDict:
    """Return the data in an HDF5 file."""
    return dense(batch).to_h5(f"{_folder.name}/{next(_files)}.h5")


def window(batch: tuple[int, ...]) -> Any:
    """Return the data as rows of a larger dataset in an HDF5 file."""
    rows = dense((batch[0] + 2, *batch[1:]))
    rows[1:-1] = dense(batch)
    return persistent(rows.batch_size).update(rows)[1:-1]


KINDS: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "dense": dense,
    "lazy0": _lazy(0),
    "lazy1": _lazy(1),
    "grid": grid,
    "uneven": uneven,
    "nested": nested,
    "tensorclass": tensorclass,
    "tensorclass_of_lazy": tensorclass_of_lazy,
    "mapped": mapped,
    "shared": shared,
    "consolidated": consolidated,
    "one_file": one_file,
    "side_by_side": side_by_side,
    "tensorclass_of_mapped": _class_of(mapped),
    "tensorclass_of_shared": _class_of(shared),
    "typed": _class_of(dense, Keys),
    "persistent": persistent,
    "window": window,
}
"""Every kind by name; each maker takes a batch size (lazy kinds need a size of at least one along their dim)."""


def can_make(kind: str, batch: tuple[int, ...]) -> bool:
    dim = {"lazy0": 0, "lazy1": 1, "grid": 1, "uneven": 0, "tensorclass_of_lazy": 0}.get(kind)
    if kind == "side_by_side":
        return len(batch) > 0
    if dim is None:
        return not kind.endswith(("mapped", "shared")) or math.prod(batch) > 0
    return len(batch) > dim and batch[dim] > 0 and (kind != "grid" or batch[0] > 0)


def node_class(node: Any) -> str:
    """Return the class of a node, through the facade of a tensorclass."""
    return type(node._inner if isinstance(node, (TensorClass, TypedTensorDict)) else node).__name__


STORED = ("persistent", "window")
"""Kinds whose values are read when they are asked for: words that compute give dense nodes."""

LEAVES = ("x", "n", ("inner", "y"), ("inner", "b"))


def held(node: Any, key: str) -> Any:
    """Return the child that a node holds at a key: a non-tensor as a node, also where `get` gives the object."""
    return dict(node.items())[key]


def assert_same(got: Any, want: Any, word: str) -> None:
    """Assert that two nodes agree in batch size, names and in the values, shapes and dtypes of the common leaves."""
    assert got.batch_size == want.batch_size, word
    assert got.names == want.names, word
    for key in LEAVES:
        one, two = got.get(key), want.get(key)
        assert one.dtype == two.dtype, (word, key)
        assert one.shape == two.shape, (word, key)
        assert torch.equal(torch.as_tensor(one), two) or torch.allclose(one, two, equal_nan=True), (word, key)
    assert got.get("inner").batch_size == want.get("inner").batch_size, word
    assert held(got, "word").shape == held(want, "word").shape, word
