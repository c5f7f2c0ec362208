"""Unbatched tensors: a leaf that all rows share, whatever the batch size."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tensordict import TensorClass, TensorDict, UnbatchedTensor, collate, default_is_leaf, is_non_tensor, lazy_stack

SCALE = torch.tensor([1.0, 2.0, 3.0])


def batch(scale: Tensor = SCALE) -> TensorDict:
    return TensorDict({"x": torch.arange(8.0).reshape(2, 4), "n": {"u": UnbatchedTensor(scale.clone())}}, [2, 4])


def unbatched(td: Any, want: Tensor = SCALE) -> None:
    """Assert that a node still holds an unbatched tensor, with the batch size of the node."""
    got = td["n", "u"]
    assert type(got) is UnbatchedTensor
    assert torch.equal(got, want)
    assert got.batch_size == td.batch_size == td.get(("n", "u")).batch_size


MOVES: dict[str, Callable[[Any], Any]] = {
    "row": lambda td: td[1],
    "slice": lambda td: td[:, 1:3],
    "rows": lambda td: td[torch.tensor([1, 0, 1])],
    "mask": lambda td: td[torch.ones(2, 4, dtype=torch.bool)],
    "reshape": lambda td: td.reshape(8),
    "view": lambda td: td.view(-1),
    "transpose": lambda td: td.transpose(0, 1),
    "unsqueeze": lambda td: td.unsqueeze(1),
    "expand": lambda td: td.expand(3, 2, 4),
    "flip": lambda td: td.flip(0),
    "roll": lambda td: td.roll(1, 0),
    "pad": lambda td: td.pad([0, 1, 0, 0]),
    "gather": lambda td: td.gather(0, torch.zeros(1, 4, dtype=torch.long)),
    "unbind": lambda td: td.unbind(1)[2],
    "split": lambda td: td.split(1)[1],
    "stack": lambda td: torch.stack([td, td.clone()], 1),
    "cat": lambda td: torch.cat([td, td.clone()], 1),
    "collate": lambda td: collate([td, td.clone()]),
    "lazy": lambda td: lazy_stack([td, td.clone()]),
    "loader": lambda td: next(iter(DataLoader(td, batch_size=2))),
    "sum": lambda td: td.sum(0),
    "max": lambda td: td.max(1).values,
    "clone": lambda td: td.clone(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "select": lambda td: td.select(("n", "u")),
    "flat keys": lambda td: td.flatten_keys().unflatten_keys(),
    "dict": lambda td: TensorDict(td.to_dict(), td.batch_size),
    "state": lambda td: TensorDict(td.state_dict(flatten=False), td.batch_size),
    "update": lambda td: TensorDict({}, td.batch_size).update(td),
    "apply": lambda td: td.apply(lambda v: v),
    "named": lambda td: td.named_apply(lambda name, v: v),
    "share": lambda td: td.share_memory_(),
    "memmap": lambda td: td.memmap_(),
    "filter": lambda td: td.filter_non_tensor_data(),
}


@pytest.mark.parametrize("word", MOVES)
def test_words_on_dims_change_the_batch_size_only(word: str) -> None:
    unbatched(MOVES[word](batch()))


COMPUTED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "number": (lambda td: td + 1, lambda u: u + 1),
    "itself": (lambda td: td * td, lambda u: u * u),
    "word": (lambda td: td.exp(), torch.exp),
    "torch": (torch.exp, torch.exp),
    "equal": (lambda td: td == td, lambda u: u == u),
    "dtype": (lambda td: td.to(torch.float64), lambda u: u.double()),
    "apply": (lambda td: td.apply(lambda v: v - 1), lambda u: u - 1),
    "default": (lambda td: td.apply(lambda v, o: v - o, td, default=None), lambda u: u - u),
    "feature": (lambda td: td.sum(dim="feature"), lambda u: u.sum()),
    "in place": (lambda td: td.clone().mul_(2), lambda u: u * 2),
    "zero": (lambda td: td.clone().zero_(), torch.zeros_like),
}


@pytest.mark.parametrize("word", COMPUTED)
def test_words_that_compute_are_said_to_it(word: str) -> None:
    ours, torchs = COMPUTED[word]
    unbatched(ours(batch()), torchs(SCALE))


def test_by_itself_it_is_a_tensor() -> None:
    u = UnbatchedTensor([1.0, 2.0], batch_size=[5])
    assert isinstance(u, Tensor)
    assert u.batch_size == (5,)
    assert u.shape == (2,)
    assert type(u + 1) is type(torch.exp(u)) is type(u[0]) is UnbatchedTensor
    assert type(u * torch.tensor(2.0)) is UnbatchedTensor
    # beside a value for each row the result has rows, so that an index must reach them
    assert type(u * torch.ones(3, 2)) is type(torch.ones(3, 2) @ u) is type(torch.cat([torch.ones(1), u])) is Tensor
    assert default_is_leaf(UnbatchedTensor)
    assert not is_non_tensor(u)
    data = u.as_subclass(Tensor)
    data[0] = 7
    assert u.tolist() == TensorDict({"u": u}, [9])["u"].tolist() == [7, 2]
    u.batch_size = [2, 2]
    assert u.batch_size == (2, 2)


def test_it_is_a_leaf_and_not_a_non_tensor() -> None:
    td = batch()
    assert set(td.keys(True, True)) == {"x", ("n", "u")}
    assert {type(value) for value in td.values(True, True)} == {Tensor, UnbatchedTensor}
    assert [type(value) for value in td["n"].values()] == [type(v) for _, v in td["n"].items()] == [UnbatchedTensor]
    assert not td.is_non_tensor(("n", "u"))
    assert td.non_tensor_items(True) == ()
    assert "u: f32[3]" in repr(td)
    assert td.to_dict(convert_tensors=True)["n"]["u"] == [1, 2, 3]
    assert td[0, 0].numpy()["n"]["u"].tolist() == td[0, 0].tolist()["n"]["u"].tolist() == [1, 2, 3]
    td["n", "u"] = UnbatchedTensor(torch.zeros(9, 9))
    assert td["n", "u"].shape == (9, 9)


def test_unequal_ones_are_joined_to_a_value_for_each_row() -> None:
    one, two = batch(), batch(SCALE + 1)
    for got in (torch.stack([one, two]), collate([one, two]), lazy_stack([one, two])):
        assert type(got["n", "u"]) is Tensor
        assert torch.equal(got["n", "u"], torch.stack([SCALE, SCALE + 1]).reshape(2, 1, 1, 3).expand(2, 2, 4, 3))
        assert torch.equal(got[1, 0, 0]["n", "u"], SCALE + 1)
    got = torch.cat([one, two])
    assert torch.equal(got[1, 0]["n", "u"], SCALE) and torch.equal(got[2, 0]["n", "u"], SCALE + 1)
    with pytest.raises(RuntimeError, match=r"'u'.*shapes: \[\[3\], \[5\]\]"):
        torch.stack([one, batch(torch.ones(5))])
    assert type(collate([one, batch(torch.ones(5))])).__name__ == "LazyStackedTensorDict"


def test_a_row_assignment_changes_that_row_only() -> None:
    td = batch()
    td[0] = batch()[1]
    unbatched(td)
    td[1, 2] = batch(SCALE * 0)[0, 0]
    assert type(td["n", "u"]) is Tensor
    want = SCALE.expand(2, 4, 3).clone()
    want[1, 2] = 0
    assert torch.equal(td["n", "u"], want)
    td = batch()
    td[:] = batch(SCALE * 2)
    td.update_(batch(SCALE * 2))
    before = td.clone()
    with pytest.raises(RuntimeError, match=r"unbatched tensor of shape \[3\]"):
        td[0] = batch(torch.ones(5))[0] + 1
    assert (td == before).all()


def test_a_value_for_each_row_beside_it_gives_one_for_each_row() -> None:
    td, rows = batch(), torch.arange(8.0).reshape(2, 4)
    assert torch.equal((td * rows)["n", "u"], SCALE * rows[..., None])
    mask = rows > 3
    assert torch.equal(td.where(mask, td + 1)["n", "u"], torch.where(mask[..., None], SCALE, SCALE + 1))
    before = td.clone()
    with pytest.raises(TypeError, match="one for all rows"):
        td.mul_(rows)
    assert (td == before).all()


def test_vmap_and_gradients_pass_through() -> None:
    td = TensorDict({"x": torch.ones(4, 3), "u": UnbatchedTensor(SCALE)}, [4])
    assert torch.equal(torch.vmap(lambda row: row["x"] * row["u"])(td), SCALE.expand(4, 3))
    weight = SCALE.clone().requires_grad_()
    (TensorDict({"u": UnbatchedTensor(weight)}, [4])[:2] * 2)["u"].sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2, 2]


# ---- files and processes


def test_it_is_saved_once_and_mapped(tmp_path: Path) -> None:
    saved = batch().memmap(tmp_path)
    assert (tmp_path / "n" / "u" / "data.memmap").stat().st_size == 12
    for mode in ("r", "r+"):
        td = TensorDict.load_memmap(tmp_path, mode=mode)
        unbatched(td)
        unbatched(td[0])
        unbatched(pickle.loads(pickle.dumps(td)))
    saved.mul_(2)
    unbatched(td, SCALE * 2)
    with pytest.raises(RuntimeError, match="cannot have another one where it is stored"):
        td[0] = batch(SCALE * 5)[0]
    unbatched(td, SCALE * 2)
    with pytest.raises(PermissionError):
        TensorDict.load_memmap(tmp_path, mode="r")[0] = batch(SCALE * 5)[0]
    like = batch().memmap_like(tmp_path / "like")
    unbatched(like, SCALE * 0)


def test_it_is_shared_with_other_processes() -> None:
    td = batch().share_memory_()
    other = pickle.loads(ForkingPickler.dumps(td))
    other.mul_(3)
    unbatched(td, SCALE * 3)
    file = io.BytesIO()
    torch.save(batch(), file)
    file.seek(0)
    unbatched(torch.load(file))


class Model(TensorClass):
    x: Tensor
    scale: Tensor


def test_a_field_can_be_one() -> None:
    model = Model(x=torch.zeros(4, 2), scale=UnbatchedTensor(SCALE), batch_size=[4])
    assert type(model[1:].scale) is UnbatchedTensor
    assert torch.equal(torch.stack([model, model]).scale, SCALE)
