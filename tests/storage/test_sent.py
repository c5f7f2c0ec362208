"""What is pickled of a tensordict is what it was, by every protocol, and in memory of its own."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from tensordict import TensorDict

PROTOCOLS = [2, 3, 4, 5]


def leaves() -> dict[str, Tensor]:
    base = torch.arange(24.0).view(4, 6)
    return {
        "plain": base.clone(),
        "part": base[1:3].expand(2, 6)[:1].expand(4, 6),
        "column": base[:, 1],
        "turned": torch.arange(8).view(2, 4).t(),
        "conjugate": torch.tensor([1 + 2j, 3 - 1j, 0j, 1j]).conj(),
        "half": torch.ones(4, 2, dtype=torch.bfloat16),
        "empty": torch.zeros(4, 0),
        "flag": torch.tensor([True, False, True, True]),
        "weight": torch.ones(4, requires_grad=True),
        "sparse": torch.eye(4).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(n) for n in range(4)], layout=torch.jagged),
    }


def equal(one: Tensor, other: Tensor) -> bool:
    if one.is_nested:
        return all(map(torch.equal, one.unbind(), other.unbind()))
    dense = one.to_dense() if one.is_sparse else one
    return torch.equal(dense, other.to_dense() if other.is_sparse else other)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_leaf_comes_back(protocol: int) -> None:
    td = TensorDict({**leaves(), "n": {"plain": torch.ones(4)}, "s": "word"}, [4])
    got = pickle.loads(pickle.dumps(td, protocol))
    assert list(got.keys()) == list(td.keys())
    assert (got["s"], got["n", "plain"].tolist()) == ("word", [1.0] * 4)
    for key, leaf in leaves().items():
        assert (got[key].dtype, got[key].requires_grad) == (leaf.dtype, leaf.requires_grad), key
        assert equal(got[key], leaf), key


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_comes_back_has_memory_of_its_own_and_no_more_than_it_needs(protocol: int) -> None:
    big = torch.zeros(1000, 100)
    td = TensorDict({"rows": big[:2], "whole": torch.ones(2)}, [2])
    sent = pickle.dumps(td, protocol)
    got = pickle.loads(sent)
    assert protocol < 3 or len(sent) < 3000
    got["rows"] += 1
    got["whole"] += 1
    assert (td["rows"].sum().item(), td["whole"].tolist()) == (0.0, [1.0, 1.0])
    assert (got["rows"].sum().item(), got["whole"].tolist()) == (200.0, [2.0, 2.0])
    assert pickle.loads(sent)["whole"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("layout", [None, "rows"])
def test_a_block_stays_one_block_but_for_torch_save(protocol: int, layout: str | None) -> None:
    td = TensorDict({"x": torch.arange(3), "n": {"y": torch.ones(3, 2)}}, [3]).consolidate(layout=layout)
    got = pickle.loads(pickle.dumps(td, protocol))
    assert got.is_consolidated() is (protocol > 2)
    assert (got["x"].tolist(), got["n", "y"].tolist()) == ([0, 1, 2], [[1.0, 1.0]] * 3)
    part: Any = pickle.loads(pickle.dumps(td[:2], protocol))
    assert not part.is_consolidated()
    assert part["x"].tolist() == [0, 1]


def test_torch_loads_weights_only_what_torch_saved() -> None:
    td = TensorDict({"x": torch.arange(3), "n": {"y": torch.ones(3)}, "w": ["a", "b", "c"] * 1}, [3])
    file = io.BytesIO()
    torch.save(td, file)
    file.seek(0)
    got = torch.load(file, weights_only=True)
    assert (got["x"].tolist(), got["n", "y"].tolist(), got["w"]) == ([0, 1, 2], [1.0] * 3, td["w"])
