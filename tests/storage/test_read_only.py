"""What was opened with mode="r" stays as it is: files, and values too, by whatever road a write comes.

A write is refused where it can be seen to come. Where it cannot (raw memory), it stays in the process.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tensordict import MemoryMappedTensor, NonTensorData, NonTensorStack, PersistentTensorDict, TensorDict, lazy_stack

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
ROWS = [torch.arange(4.0).view(2, 2), torch.arange(6.0).view(3, 2)]


def content() -> TensorDict:
    values = {
        "x": torch.arange(6.0).view(2, 3),
        "jagged": torch.nested.nested_tensor(ROWS, layout=torch.jagged),
        "strided": torch.nested.nested_tensor(ROWS),
        "texts": NonTensorStack("a", "b"),
        "n": {"y": torch.ones(2)},
    }
    return TensorDict(values, [2])


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def values(td: Any) -> list[Any]:
    rows = [[row.tolist() for row in td[key].unbind()] for key in ("jagged", "strided")]
    return [td["x"].tolist(), td["n", "y"].tolist(), td["texts"], *rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    content().memmap(path)
    return path


def through(word: str) -> Callable[[Any], Any]:
    return lambda td: getattr(td.exclude("jagged", "strided"), word)().zero_()


LEAVES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda x: x.add_(1),
    "item": lambda x: x.__setitem__(0, 7),
    "out": lambda x: torch.add(torch.zeros(2, 3), 5, out=x),
    "out of several": lambda x: torch.max(torch.zeros(2, 3), 0, out=(x[0], torch.zeros(3, dtype=torch.long))),
    "view": lambda x: x.view(-1).zero_(),
    "reshape": lambda x: x.reshape(3, 2)[0].zero_(),
    "transpose": lambda x: x.t().zero_(),
    "detach": lambda x: x.detach().zero_(),
    "data": lambda x: x.data.zero_(),
    "select": lambda x: x.select(0, 0).zero_(),
    "narrow": lambda x: x.narrow(0, 0, 1).zero_(),
    "tensor_split": lambda x: x.tensor_split(2)[0].zero_(),
    "other dtype": lambda x: x.view(torch.int32).zero_(),
    "row": lambda x: next(iter(x)).zero_(),
    "inplace=True": lambda x: torch.nn.functional.threshold(x, 9.0, 1.0, inplace=True),
    "dropout": lambda x: torch.nn.functional.dropout(x, 1.0, inplace=True),
    "foreach": lambda x: torch._foreach_zero_([x]),
    "init": lambda x: torch.nn.init.zeros_(x),
    "index_put_": lambda x: torch.index_put_(x, (torch.tensor([0]),), torch.zeros(3)),
    "numpy": lambda x: x.numpy().__setitem__(0, 7),
    "asarray": lambda x: np.asarray(x).__setitem__(0, 7),
    "array of a view": lambda x: x[1:].view(-1).numpy().__setitem__(0, 7),
    "pickled": lambda x: pickle.loads(pickle.dumps(x)).zero_(),
}
NESTED: dict[str, Callable[[Any], Any]] = {
    "in place": lambda n: n.zero_(),
    "row": lambda n: n[0].zero_(),
    "unbind": lambda n: n.unbind()[0].zero_(),
    "elements": lambda n: n.values().zero_(),
    "detach": lambda n: n.detach().zero_(),
    "pickled": lambda n: pickle.loads(pickle.dumps(n)).values().zero_(),
}
NODES: dict[str, Callable[[Any], Any]] = {
    "zero_": lambda td: td.zero_(),
    "set_": lambda td: td.set_("x", torch.zeros(2, 3)),
    "update_": lambda td: td.update_({"x": torch.zeros(2, 3)}),
    "item": lambda td: td.__setitem__(0, td[1].clone()),
    "apply_": lambda td: td.apply_(lambda v: v + 1),
    "apply": lambda td: td.apply(lambda v: v.zero_()),
    "apply with others": lambda td: td.apply(lambda v, w: v.zero_(), td),
    "named_apply": lambda td: td.named_apply(lambda key, v: v.zero_()),
    "text": lambda td: td.get("texts").__setitem__(0, "z"),
    "row of texts": lambda td: td[0].set_("texts", "z"),
    "all texts": lambda td: td.get("texts").update_(NonTensorStack("y", "z")),
    "nested": lambda td: td["n"].zero_(),
    "value": lambda td: next(iter(td.values())).zero_(),
    "item of items": lambda td: dict(td.items())["x"].zero_(),
    "to_dict": lambda td: td.to_dict()["x"].zero_(),
    "numpy": lambda td: td.select("x").numpy()["x"].__setitem__(0, 7),
    "flatten_keys": lambda td: td.flatten_keys().zero_(),
    "select": lambda td: td.select("x").zero_(),
    "split_keys": lambda td: td.split_keys(["x"])[0].zero_(),
    "expand": lambda td: td.exclude("jagged", "strided").expand(1, 2).zero_(),
    "lazy stack": lambda td: lazy_stack([td[0], td[1]]).zero_(),
    "out": lambda td: torch.stack([td.select("x")[0].clone()] * 2, out=td.select("x")),
    "state": lambda td: td.load_state_dict(td.clone().zero_().state_dict()),
    "pickled": lambda td: pickle.loads(pickle.dumps(td)).zero_(),
    **{word: through(word) for word in ("detach", "copy", "cpu", "contiguous", "as_tensor", "flatten")},
    "data": lambda td: td.data.zero_(),
    "clone(False)": lambda td: td.clone(False).zero_(),
    "to": lambda td: td.to("cpu").zero_(),
}


@pytest.mark.parametrize("write", LEAVES)
def test_a_leaf_refuses(write: str, folder: Path) -> None:
    td, before = TensorDict.load_memmap(folder, mode="r"), files(folder)
    with pytest.raises((RuntimeError, ValueError), match=r"mode='r'|read-only"):
        LEAVES[write](td["x"])
    assert values(td) == values(content())
    assert files(folder) == before


@pytest.mark.parametrize("key", ["jagged", "strided"])
@pytest.mark.parametrize("write", NESTED)
def test_a_nested_leaf_refuses(write: str, key: str, folder: Path) -> None:
    td, before = TensorDict.load_memmap(folder, mode="r"), files(folder)
    with pytest.raises(RuntimeError, match="mode='r'"):
        NESTED[write](td[key])
    assert values(td) == values(content())
    assert files(folder) == before


@pytest.mark.parametrize("write", NODES)
def test_a_node_refuses(write: str, folder: Path) -> None:
    td, before = TensorDict.load_memmap(folder, mode="r"), files(folder)
    with pytest.raises((RuntimeError, PermissionError, ValueError), match=r"mode='r'|read-only"):
        NODES[write](td)
    assert values(td) == values(content())
    assert files(folder) == before


def test_what_is_written_to_raw_memory_stays_in_the_process(folder: Path) -> None:
    before = files(folder)
    td = TensorDict.load_memmap(folder, mode="r")
    td["x"].untyped_storage().fill_(3)
    np.from_dlpack(td["x"])[0] = 7
    torch.from_dlpack(td["x"]).zero_()
    assert files(folder) == before
    assert values(TensorDict.load_memmap(folder, mode="r")) == values(content())


def test_keys_can_be_given_other_values_which_are_not_in_the_file(folder: Path) -> None:
    before = files(folder)
    td = TensorDict.load_memmap(folder, mode="r")
    td["x"] = torch.zeros(2, 3)
    td["x"].add_(1)
    del td["n"]
    assert td["x"].sum() == 6
    assert files(folder) == before


def test_computing_with_it_gives_values_that_can_be_written(folder: Path) -> None:
    td = TensorDict.load_memmap(folder, mode="r")
    x, rows = td["x"], td["jagged"]
    for made in (x + 1, x.clone(), x[[0]], x.to(torch.float64), x.sum(0), x.max(0).values, copy.deepcopy(x)):
        assert type(made) is Tensor
        made.zero_()
    for made in (rows + 1, rows.clone(), copy.deepcopy(rows), torch.nested.to_padded_tensor(rows, 0.0)):
        made.zero_()
    assert x.numpy(force=True).sum() == 15
    array = x.numpy().astype(np.float64)
    array[0] = 7
    assert x.numpy().copy().flags.writeable
    plain = td.exclude("texts")
    for node in (plain.clone(), plain.select("x", "n") + 1, plain.select("x").to(torch.float64), plain[[0, 1]]):
        assert node.zero_().select("x").sum(reduce=True) == 0
    assert values(td) == values(content())
    total = torch.zeros(2, 3, requires_grad=True)
    (total * x).sum().backward()
    assert torch.equal(total.grad, content()["x"])  # type: ignore[arg-type]


def test_views_that_may_not_be_written_know_their_file(folder: Path) -> None:
    leaf = TensorDict.load_memmap(folder, mode="r")["x"]
    for view in (leaf.view(-1), leaf.t(), leaf.detach(), *leaf.tensor_split(2)):
        assert isinstance(view, MemoryMappedTensor)
        assert view.filename == leaf.filename
        assert os.path.samefile(view.filename, folder / "x.memmap")


@pytest.mark.parametrize("key", ["jagged", "strided"])
def test_nested_leaves_compute_as_plain_ones(key: str, folder: Path) -> None:
    rows, plain = TensorDict.load_memmap(folder, mode="r")[key], content()[key]
    assert rows.layout is plain.layout
    assert [row.tolist() for row in (rows * 2).unbind()] == [row.tolist() for row in (plain * 2).unbind()]
    received = pickle.loads(pickle.dumps(rows))
    assert [row.tolist() for row in received.unbind()] == [row.tolist() for row in plain.unbind()]
    if key == "jagged":
        compiled = torch.compile(lambda v: v.sin() + 1, backend="eager", fullgraph=True)
        assert torch.equal(compiled(rows).values(), compiled(plain).values())


@pytest.mark.parametrize("mode", ["r+", None])
def test_other_modes_write_through(mode: str | None, tmp_path: Path) -> None:
    content().memmap(tmp_path)
    td = TensorDict.load_memmap(tmp_path, mode=mode)
    td["x"].view(-1)[0] = 8
    td["jagged"].values()[0, 0] = 8
    td["strided"][0][0, 0] = 8
    td["x"].numpy()[1, 1] = 8
    td.detach()["n", "y"].fill_(8)
    back = TensorDict.load_memmap(tmp_path, mode="r")
    assert back["x"].tolist() == [[8, 1, 2], [3, 8, 5]]
    assert back["jagged"][0][0, 0] == back["strided"][0][0, 0] == 8
    assert back["n", "y"].tolist() == [8, 8]


STORED: dict[str, Callable[[Any], Any]] = {
    "set_": lambda td: td.set_("x", torch.zeros(2, 3)),
    "set": lambda td: td.set("x", torch.zeros(2, 3)),
    "new key": lambda td: td.set("z", torch.zeros(2)),
    "item": lambda td: td.__setitem__(0, TensorDict({"x": torch.zeros(3)})),
    "window": lambda td: td[0].set_("x", torch.zeros(3)),
    "rows": lambda td: td[[0, 1]].update_({"x": torch.zeros(2, 3)}),
    "zero_": lambda td: td.zero_(),
    "add_": lambda td: td.add_(1),
    "number": lambda td: td.__setitem__(0, 5),
    "text": lambda td: td.set("name", NonTensorData("z", [2])),
    "rename": lambda td: td.rename_key_("x", "z"),
    "delete": lambda td: td.del_("x"),
    "nested": lambda td: td["n"].set_("y", torch.zeros(2)),
}


@pytest.mark.parametrize("backend", ["h5", "zarr"])
@pytest.mark.parametrize("write", STORED)
def test_files_of_arrays_refuse(write: str, backend: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{backend}"
    td = content().exclude("jagged", "strided").set("name", "run")
    PersistentTensorDict.from_dict(td, path, backend=backend).close()
    before = files(tmp_path)
    stored = PersistentTensorDict(filename=path, mode="r", backend=backend)
    with pytest.raises(PermissionError, match="mode='r'"):
        STORED[write](stored)
    stored["x"].zero_()  # what was read is memory of its own
    assert stored["x"].tolist() == td["x"].tolist()
    stored.close()
    assert files(tmp_path) == before
