"""Words that pick rows answer as torch's do: the same values on every kind, in memory of their own, free to change."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from kinds import KINDS, LEAVES, batched, can_make

from tensordict import TensorDict, lazy_stack

BATCH = (3, 2)
MASK = torch.tensor([[True, False], [False, False], [True, True]])
PICKED = torch.tensor([[2, 0], [1, 1]])


def gathered(x: torch.Tensor) -> torch.Tensor:
    wide = PICKED.reshape(*PICKED.shape, *(1,) * (x.ndim - 2)).expand(*PICKED.shape, *x.shape[2:])
    return x.gather(0, wide)


WORDS: dict[str, tuple[Any, Any]] = {
    "masked_select": (lambda td: td.masked_select(MASK), lambda x: x[MASK]),
    "masked_select_rows": (lambda td: td.masked_select(MASK[:, 0]), lambda x: x[MASK[:, 0]]),
    "index_select": (lambda td: td.index_select(1, torch.tensor([1, 1, 0])), lambda x: x[:, [1, 1, 0]]),
    "gather": (lambda td: td.gather(0, PICKED), gathered),
    "repeat": (lambda td: td.repeat(2, 1), lambda x: torch.cat([x, x])),
    "repeat_once": (lambda td: td.repeat(1, 1), lambda x: x),
    "repeat_interleave": (lambda td: td.repeat_interleave(2, dim=0), lambda x: x.repeat_interleave(2, 0)),
    "tile": (lambda td: td.tile(2), lambda x: torch.cat([x, x], 1)),
    "flip": (lambda td: td.flip(0), lambda x: x.flip(0)),
    "roll": (lambda td: td.roll(1, 0), lambda x: x.roll(1, 0)),
    "roll_all": (lambda td: td.roll(1), lambda x: x.flatten(0, 1).roll(1, 0).unflatten(0, BATCH)),
    "rot90": (lambda td: td.rot90(), lambda x: x.rot90()),
    "rot90_full": (lambda td: td.rot90(4), lambda x: x),
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("kind", KINDS)
def test_picked_rows_are_copies(kind: str, word: str) -> None:
    if not can_make(kind, BATCH):
        pytest.skip(f"{kind} has no batch size {BATCH}")
    source = batched(KINDS[kind](BATCH))
    before, plain = source.clone(), KINDS["dense"](BATCH)
    if not source.is_locked and kind not in ("persistent", "window"):
        source.lock_()
    say, on_leaf = WORDS[word]
    made = say(source)
    for key in LEAVES:
        assert torch.equal(made.get(key), on_leaf(plain.get(key)))
    assert not made.is_locked
    assert not made.is_memmap()
    made.apply_(lambda v: v.fill_(1))
    assert (source == before).all()


@pytest.mark.parametrize("word", WORDS)
def test_rows_of_members_with_shapes_of_their_own_are_copies(word: str) -> None:
    stack = lazy_stack(
        [TensorDict({"x": torch.full((2, n), float(n)), "n": {"y": torch.ones(2)}}, [2]) for n in (1, 2, 3)]
    )
    before = stack.clone()
    numbers = torch.arange(math.prod(BATCH)).reshape(BATCH)
    say, on_leaf = WORDS[word]
    made = say(stack)
    for place in torch.ones_like(on_leaf(numbers)).nonzero().tolist():
        row = int(on_leaf(numbers)[tuple(place)]) // 2 + 1
        assert made[tuple(place)]["x"].tolist() == [row] * row
    made.apply_(lambda v: v.fill_(9))
    assert all(bool((one == two).all()) for one, two in zip(stack.tensordicts, before.tensordicts, strict=True))
