"""collate: one batch of many samples, dense where shapes match and lazy where they do not."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, default_collate

from tensordict import LazyStackedTensorDict, TensorClass, TensorDict, collate, lazy_stack, pad_sequence

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")


class Image(TensorClass):
    pixels: torch.Tensor


class Twin(Image):
    """The same fields as its base."""


class Labelled(Image):
    label: torch.Tensor


class Sound(TensorClass):
    pixels: torch.Tensor


class Pair(NamedTuple):
    inputs: Any
    target: int


def clouds(*sizes: int) -> list[TensorDict]:
    return [TensorDict({"ids": torch.arange(n), "at": {"points": torch.full((n, 3), float(n))}}) for n in sizes]


def samples(count: int = 3) -> list[TensorDict]:
    return [TensorDict({"x": torch.full((2,), float(i)), "n": {"y": i}}) for i in range(count)]


@pytest.mark.parametrize("join", [collate, default_collate])
def test_equal_shapes_become_one_dense_tensordict(join: Any) -> None:
    batch = join(samples())
    assert type(batch) is TensorDict
    assert batch.batch_size == (3,)
    assert batch["x"].tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert batch["n", "y"].tolist() == [0, 1, 2]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_any_sizes_come_back_as_they_were(sizes: list[int]) -> None:
    items = clouds(*sizes)
    batch = collate(items)
    assert batch.batch_size == (len(sizes),)
    assert isinstance(batch, LazyStackedTensorDict) is (len(set(sizes)) > 1)
    for row, item in zip(batch.unbind(0), items, strict=True):
        assert torch.equal(row["ids"], item["ids"])
        assert torch.equal(row["at", "points"], item["at", "points"])


@pytest.mark.parametrize("join", [collate, default_collate])
def test_different_keys_or_batch_sizes_are_stacked_lazily(join: Any) -> None:
    keys = join([TensorDict({"a": 1, "b": 2}), TensorDict({"a": 3, "c": 4})])
    assert isinstance(keys, LazyStackedTensorDict)
    assert keys["a"].tolist() == [1, 3]
    assert keys[1]["c"] == 4
    sizes = join([TensorDict({"a": torch.zeros(n)}, [n]) for n in (1, 2)])
    assert isinstance(sizes, LazyStackedTensorDict)
    assert [row.batch_size for row in sizes.unbind(0)] == [(1,), (2,)]


@pytest.mark.parametrize("join", [collate, default_collate])
def test_structures_keep_their_form(join: Any) -> None:
    got = join([(item, i) for i, item in enumerate(samples())])
    assert got[0]["n", "y"].tolist() == got[1].tolist() == [0, 1, 2]
    got = join([Pair(item, i) for i, item in enumerate(samples())])
    assert isinstance(got, Pair)
    assert got.inputs.batch_size == (3,)
    assert got.target.tolist() == [0, 1, 2]
    got = join([{"td": item, "deep": {"pair": (item, "s")}} for item in samples()])
    assert sorted(got) == ["deep", "td"]
    assert got["td"].batch_size == got["deep"]["pair"][0].batch_size == (3,)
    assert list(got["deep"]["pair"][1]) == ["s", "s", "s"]
    first, second = join([[item, torch.ones(2)] for item in samples()])
    assert first.batch_size == (3,)
    assert second.shape == (3, 2)
    assert isinstance(join([(item, 0) for item in clouds(1, 2)])[0], LazyStackedTensorDict)


def test_what_holds_no_tensordict_is_collated_as_torch_does() -> None:
    assert torch.equal(collate([torch.ones(2), torch.zeros(2)]), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert collate([1, 2]).tolist() == [1, 2]
    assert collate(["a", "b"]) == ["a", "b"]
    with pytest.raises(RuntimeError):
        collate([(samples()[0], 1), (samples()[0],)])


def test_a_batch_is_returned_as_it_is() -> None:
    batch = TensorDict({"x": torch.arange(3)}, [3])
    assert collate(batch) is batch
    assert default_collate(batch) is batch
    ragged = lazy_stack(clouds(1, 2))
    assert collate(ragged) is ragged


def test_padding_uses_the_number_of_each_key_and_masks_say_where() -> None:
    items = clouds(2, 0, 3)
    batch = collate(items, pad_keys={"ids": -1, ("at", "points"): 7}, mask_key=("info", "mask"))
    assert batch["ids"].tolist() == [[0, 1, -1], [-1, -1, -1], [0, 1, 2]]
    assert batch["ids"].dtype is torch.int64
    assert batch["at", "points"].shape == (3, 3, 3)
    assert (batch["at", "points"][1] == 7).all()
    mask = batch["info", "mask", "ids"]
    assert mask.tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert torch.equal(batch["info", "mask", "at", "points"], mask)
    assert set(items[0].keys()) == {"ids", "at"}
    assert items[0]["at"].batch_size == ()


def test_nested_keys_become_jagged_and_the_rest_is_as_without_them() -> None:
    items = [item.set("n", item["ids"].numel()) for item in clouds(2, 1)]
    batch = collate(items, pad_keys={"ids": 0}, nested_keys=[("at", "points")])
    points = batch["at", "points"]
    assert points.is_nested
    assert [part.shape for part in points.unbind()] == [(2, 3), (1, 3)]
    assert batch["n"].tolist() == [2, 1]
    assert type(batch) is TensorDict


def test_padding_reaches_into_structures_and_tensorclasses() -> None:
    inputs, labels = collate([(item, i) for i, item in enumerate(clouds(1, 2))], pad_keys={"ids": 9})
    assert inputs["ids"].tolist() == [[0, 9], [0, 1]]
    assert labels.tolist() == [0, 1]
    batch = collate([Image(torch.ones(n)) for n in (1, 2)], pad_keys={"pixels": 0})
    assert type(batch) is Image
    assert batch.pixels.tolist() == [[1.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"pad_keys": ["ids"]}, TypeError, "pad_keys"),
        ({"nested_keys": "ids"}, TypeError, "nested_keys"),
        ({"mask_key": "mask"}, ValueError, "needs pad_keys"),
        ({"pad_keys": {"ids": 0}, "nested_keys": ["ids"]}, ValueError, "ids"),
        ({"pad_keys": {"ids": 0}, "mask_key": "at"}, ValueError, "at"),
        ({"pad_keys": {"ids": 0}, "mask_key": "ids"}, ValueError, "ids"),
        ({"pad_keys": {"nope": 0}}, KeyError, "nope"),
        ({"pad_keys": {("at", "nope"): 0}}, KeyError, "nope"),
        ({"nested_keys": [("at", "nope")]}, KeyError, "nope"),
        ({"pad_keys": {"at": 0}}, KeyError, "at"),
        ({"pad_keys": {"ids": 0}, "padding_side": "middle"}, ValueError, "middle"),
        ({"pad_keys": {"ids": 0}, "pad_to_multiple_of": 0}, ValueError, "pad_to_multiple_of"),
        ({"pad_to_multiple_of": 8}, ValueError, "pad_to_multiple_of=8 needs pad_keys"),
        ({"pad_keys": {"ids": 0}, "cat_dim": 0}, ValueError, "one batch dim"),
    ],
)
def test_bad_options_are_errors_that_name_the_key(options: Any, error: type[Exception], words: str) -> None:
    items = clouds(1, 2)
    with pytest.raises(error, match=words):
        collate(items, **options)
    assert [set(item.keys(True)) for item in items] == [{"ids", "at", ("at", "points")}] * 2


def test_padding_fails_when_other_dims_differ_or_there_are_none() -> None:
    with pytest.raises(RuntimeError, match="x"):
        collate([TensorDict({"x": torch.ones(1, n)}) for n in (1, 2)], pad_keys={"x": 0})
    with pytest.raises(RuntimeError, match="x"):
        collate([TensorDict({"x": 1})] * 2, pad_keys={"x": 0})


def through_loader(items: list[Any]) -> Any:
    return next(iter(DataLoader(items, batch_size=len(items))))  # type: ignore[arg-type]


@pytest.mark.parametrize("join", [collate, default_collate, through_loader, torch.stack, lazy_stack])
def test_unrelated_tensorclasses_do_not_mix(join: Any) -> None:
    one = Image(torch.ones(2))
    for other in (Sound(torch.ones(2)), Labelled(torch.ones(2), torch.ones(()))):
        with pytest.raises(TypeError, match=type(other).__name__):
            join([one, other])
        with pytest.raises(TypeError, match=type(other).__name__):
            join([other, one])
    with pytest.raises(TypeError, match="Image"):
        join([one, TensorDict({"pixels": torch.ones(2)})])


@pytest.mark.parametrize("join", [collate, through_loader, torch.stack])
def test_base_and_subclass_with_the_same_fields_take_the_class_of_the_first(join: Any) -> None:
    assert type(join([Image(torch.ones(2)), Twin(torch.ones(2))])) is Image
    assert type(join([Twin(torch.ones(2)), Image(torch.ones(2))])) is Twin


def test_ragged_tensorclasses_keep_their_class() -> None:
    batch = collate([Image(torch.ones(n)) for n in (1, 2)])
    assert type(batch) is Image
    assert batch.batch_size == (2,)
    assert [row.pixels.shape for row in batch.unbind(0)] == [(1,), (2,)]
    assert all(type(row) is Image for row in batch)


def test_a_loader_collates_with_options() -> None:
    join = partial(collate, pad_keys={"ids": 7}, nested_keys=[("at", "points")], mask_key="mask")
    batch = next(iter(DataLoader(clouds(2, 4, 3), batch_size=3, collate_fn=join)))  # type: ignore[arg-type]
    assert batch["ids"].shape == (3, 4)
    assert batch["mask", "ids"].sum(-1).tolist() == [2, 4, 3]
    assert batch["at", "points"].is_nested


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.sampled_from(["left", "right"]), st.integers(1, 4))
def test_padding_on_either_side_and_to_multiples_is_torchs_own(sizes: list[int], side: str, multiple: int) -> None:
    items = clouds(*sizes)
    options: Any = {"padding_side": side, "pad_to_multiple_of": multiple, "mask_key": "mask"}
    batch = collate(items, pad_keys={"ids": -1, ("at", "points"): 7}, **options)
    length = -(-max(sizes) // multiple) * multiple
    for key, fill in (("ids", -1), (("at", "points"), 7)):
        assert batch[key].shape[1] == length
        for row, item, mask in zip(batch[key], items, batch.get("mask").get(key), strict=True):
            more = [length - len(item[key]), 0] if side == "left" else [0, length - len(item[key])]
            assert torch.equal(row, torch.nn.functional.pad(item[key], [0, 0] * (row.ndim - 1) + more, value=fill))
            ones = torch.ones(len(item[key]), dtype=torch.bool)
            assert torch.equal(mask, torch.nn.functional.pad(ones, more, value=False))


def test_samples_that_are_batches_are_concatenated_when_asked() -> None:
    groups = [
        TensorDict(
            {"x": torch.full((rows, 2), float(rows)), "ids": torch.arange(rows * steps).reshape(rows, steps)}, [rows]
        )
        for rows, steps in ((1, 2), (3, 2))
    ]
    whole = collate(groups, cat_dim=0)
    assert type(whole) is TensorDict
    assert torch.equal(whole["ids"], torch.cat([group["ids"] for group in groups]))
    assert collate(groups).batch_size == (2, -1)
    groups[1] = groups[1].exclude("ids").set("ids", torch.arange(9).reshape(3, 3))
    ragged = collate(groups, cat_dim=0)
    assert isinstance(ragged, LazyStackedTensorDict)
    rows = [[0, 1], [0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [row["ids"].tolist() for row in ragged] == rows
    padded = collate(groups, pad_keys={"ids": -1}, mask_key="mask", padding_side="left", cat_dim=0)
    assert padded["ids"].tolist() == [[-1, 0, 1], *rows[1:]]
    assert padded["mask", "ids"].tolist() == [[False, True, True], *[[True] * 3] * 3]
    assert padded["x"].shape == (4, 2)
    nested = collate(groups, nested_keys=["ids"], cat_dim=0)
    assert [row.tolist() for row in nested["ids"].unbind(0)] == rows
    wide = [TensorDict({"x": torch.ones(2, n)}, [2, n]) for n in (1, 2)]
    assert collate(wide, cat_dim=1).batch_size == (2, 3)


def test_nested_leaves_of_samples_that_are_batches_are_concatenated() -> None:
    for layout in (torch.jagged, torch.strided):
        make = partial(torch.nested.as_nested_tensor, layout=layout)
        groups = [TensorDict({"x": make([torch.ones(n) for n in sizes])}, [len(sizes)]) for sizes in ((1, 2), (3,))]
        batch = collate(groups, cat_dim=0)
        assert [len(row) for row in batch["x"].unbind(0)] == [1, 2, 3]
        assert batch["x"].layout is layout


class Frozen(TensorClass["frozen"]):  # type: ignore[type-arg]
    """A frozen class with a padded field, below which there may be another one."""

    ids: torch.Tensor
    label: torch.Tensor
    more: Any = None


@pytest.mark.parametrize("options", [{"pad_keys": {"ids": 9}}, {"nested_keys": ["ids"]}], ids=["pad", "nest"])
def test_samples_of_a_frozen_class_are_padded(options: Any) -> None:
    samples = [Frozen(torch.arange(n), torch.tensor(n)) for n in (1, 2)]
    batch = collate(samples, **options)
    assert type(batch) is Frozen and batch.label.tolist() == [1, 2]
    first = [0, 9] if "pad_keys" in options else [0]
    assert [row.tolist() for row in batch.ids.unbind()] == [first, [0, 1]]
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.set("ids", torch.zeros(2))
    with pytest.raises(AttributeError, match="no field 'mask'"):
        collate(samples, pad_keys={"ids": 0}, mask_key="mask")


def test_a_frozen_class_is_padded_and_replaced_at_any_depth() -> None:
    samples = [Frozen(torch.arange(n), torch.tensor(n), Frozen(torch.ones(n), torch.tensor(0))) for n in (1, 2)]
    for batch in (pad_sequence(samples), collate(samples, pad_keys={"ids": 0, ("more", "ids"): 0})):
        assert (batch.ids.tolist(), batch.more.ids.tolist()) == ([[0, 0], [0, 1]], [[1, 0], [1, 1]])
        with pytest.raises(dataclasses.FrozenInstanceError):
            batch.more.set("ids", torch.zeros(2))
    changed = samples[0].replace(label=torch.tensor(5))
    assert type(changed) is Frozen and (changed.label, samples[0].label) == (5, 1)
    with pytest.raises(AttributeError, match="no field"):
        samples[0].replace(none=1)
