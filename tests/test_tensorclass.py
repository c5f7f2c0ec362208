"""tensorclass: fields like those of a dataclass, and the words of a tensordict."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import typing
from pathlib import Path
from typing import Any, ClassVar, Optional

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tensordict import (
    LazyStackedTensorDict,
    TensorClass,
    TensorDict,
    is_tensorclass,
    lazy_stack,
    tensorclass,
)


class Inner(TensorClass):
    y: Tensor


class Sample(TensorClass):
    """A sample."""

    image: Tensor
    label: Tensor
    inner: Inner
    name: str = "none"
    extra: Optional[Tensor] = None  # noqa: UP045
    tag: str = dataclasses.field(default_factory=lambda: "t")
    counter: ClassVar[int] = 7

    @property
    def size(self) -> int:  # type: ignore[override]
        return int(self.image.shape[-1])

    @classmethod
    def blank(cls, count: int) -> Sample:
        return cls(torch.zeros(count, 2), torch.arange(count), Inner(torch.ones(count)), batch_size=[count])

    @staticmethod
    def number() -> int:
        return 3

    def scaled(self, by: float) -> Sample:
        return self * by


class Base(TensorClass):
    x: Tensor

    def describe(self) -> str:
        return f"x of {self.x.shape[-1]}"


class Child(Base):
    y: Tensor
    z: int = 2

    def describe(self) -> str:
        return super().describe() + ", and y"


@tensorclass
class Decorated:
    x: Tensor
    name: str = "none"

    def double(self) -> Any:
        return self * 2  # type: ignore[operator]


class Frozen(TensorClass, frozen=True):
    x: Tensor


class Cast(TensorClass, autocast=True):
    x: Tensor
    n: int
    name: str
    inner: Inner


class NoCast(TensorClass, nocast=True):
    x: Any
    n: Any


class Counted(TensorClass):
    x: Tensor
    total: Optional[Tensor] = None  # noqa: UP045

    def __post_init__(self) -> None:
        self.total = self.x.sum(-1)


def test_fields_are_bound_as_python_binds_arguments() -> None:
    by_place = Base(torch.ones(2))
    by_name = Base(x=torch.ones(2))
    assert torch.equal(by_place.x, by_name.x)
    child = Child(torch.ones(2), y=torch.zeros(2))
    assert child.z == 2
    assert Child(torch.ones(2), torch.zeros(2), 5).z == 5
    for call in (
        lambda: Base(),
        lambda: Base(torch.ones(2), torch.ones(2)),
        lambda: Base(torch.ones(2), x=torch.ones(2)),
        lambda: Base(torch.ones(2), nope=1),
    ):
        with pytest.raises(TypeError, match="Base"):
            call()


def test_defaults_factories_and_class_variables() -> None:
    one, two = Sample.blank(2), Sample.blank(2)
    assert one.name == "none"
    assert one.extra is None
    assert one.tag == "t"
    assert Sample.counter == one.counter == 7
    one.extra = torch.ones(2, 3)
    assert two.extra is None
    assert one.extra.shape == (2, 3)
    one.extra = None
    assert one.extra is None


def test_methods_properties_and_super_are_kept() -> None:
    sample = Sample.blank(3)
    assert type(sample) is Sample
    assert sample.size == 2
    assert Sample.number() == 3
    assert sample.scaled(2.0).inner.y.tolist() == [2.0, 2.0, 2.0]
    assert type(sample.scaled(2.0).inner) is Inner
    assert Child(torch.ones(2), torch.ones(2)).describe() == "x of 2, and y"
    assert Sample.__doc__ == "A sample."
    assert Decorated(torch.ones(2)).double().x.tolist() == [2.0, 2.0]  # type: ignore[attr-defined]


def test_post_init_runs_once_on_construction() -> None:
    counted = Counted(torch.ones(3, 2), batch_size=[3])
    assert counted.total.tolist() == [2.0, 2.0, 2.0]
    assert counted[0].total.tolist() == 2.0
    counted.x = torch.zeros(3, 2)
    assert (counted + 0).total.tolist() == [2.0, 2.0, 2.0]


def test_it_is_a_dataclass_to_the_standard_library() -> None:
    sample = Sample.blank(2)
    assert dataclasses.is_dataclass(Sample)
    assert dataclasses.is_dataclass(sample)
    names = ["image", "label", "inner", "name", "extra", "tag"]
    assert [field.name for field in dataclasses.fields(sample)] == names
    assert [field.name for field in Sample.fields()] == names
    assert [field.name for field in Child.fields()] == ["x", "y", "z"]
    assert set(typing.get_type_hints(Child)) >= {"x", "y", "z"}
    assert is_tensorclass(Sample)
    assert is_tensorclass(sample)
    assert is_tensorclass(Decorated)
    assert not is_tensorclass(TensorDict)
    assert not is_tensorclass(3)


def test_inheritance_adds_and_overrides_fields() -> None:
    class Again(Base):
        x: Tensor = torch.ones(1)

    assert Again().x.tolist() == [1.0]
    assert isinstance(Child(torch.ones(2), torch.ones(2)), Base)
    with pytest.raises(TypeError):
        Base()


def test_unknown_fields_and_attributes_are_errors() -> None:
    sample = Base(torch.ones(2))
    with pytest.raises(AttributeError, match="nope"):
        sample.nope = torch.ones(2)
    with pytest.raises(AttributeError, match="nope"):
        _ = sample.nope  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="nope"):
        sample["nope"] = torch.ones(2)
    with pytest.raises((AttributeError, KeyError), match="nope"):
        sample.set("nope", torch.ones(2))
    assert list(sample.keys()) == ["x"]
    with pytest.raises(KeyError, match="nope"):
        Base.from_tensordict(TensorDict({"nope": 1}))


@pytest.mark.parametrize("word", ["keys", "mean", "batch_size", "device", "map", "clone"])
def test_a_field_named_like_a_word_is_refused(word: str) -> None:
    with pytest.raises(AttributeError, match=word):
        type("Bad", (TensorClass,), {"__annotations__": {word: Tensor}})


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="frosty"):

        class Bad(TensorClass, frosty=True):  # type: ignore[call-arg]
            x: Tensor


def test_wrong_batch_sizes_name_the_field_and_change_nothing() -> None:
    with pytest.raises(RuntimeError, match="'y'"):
        Child(x=torch.ones(3, 2), y=torch.ones(2), batch_size=[3])
    sample = Base(torch.ones(3), batch_size=[3])
    with pytest.raises(RuntimeError, match="'x'"):
        sample.x = torch.ones(2)
    assert sample.x.shape == (3,)


def test_a_frozen_class_refuses_assignment_and_survives_copies() -> None:
    frozen = Frozen(torch.arange(3), batch_size=[3])
    with pytest.raises((dataclasses.FrozenInstanceError, RuntimeError)):
        frozen.x = torch.ones(3)
    for again in (
        frozen[:],
        copy.copy(frozen),
        copy.deepcopy(frozen),
        pickle.loads(pickle.dumps(frozen)),
        frozen.clone(),
    ):
        assert type(again) is Frozen
        assert again.x.tolist() == [0, 1, 2]
        with pytest.raises((dataclasses.FrozenInstanceError, RuntimeError)):
            again.x = torch.ones(3)
    batches = list(DataLoader(frozen, batch_size=2, num_workers=1, multiprocessing_context="fork"))
    assert [batch.x.tolist() for batch in batches] == [[0, 1], [2]]
    assert (frozen + 1).x.tolist() == [1, 2, 3]


def test_a_locked_one_refuses_new_values_and_takes_writes_in_place() -> None:
    sample = Base(torch.zeros(3), batch_size=[3]).lock_()
    with pytest.raises(RuntimeError, match="'x'"):
        sample.x = torch.ones(3)
    sample.x.fill_(1)
    sample[0] = Base(torch.tensor(5.0))
    assert sample.x.tolist() == [5.0, 1.0, 1.0]
    with sample.unlock_():
        sample.x = torch.zeros(3)
    assert sample.is_locked
    assert sample.x.sum() == 0


def test_autocast_casts_to_the_annotation_and_nocast_to_nothing() -> None:
    cast = Cast(x=[1.0, 2.0], n="3", name=5, inner={"y": torch.ones(2)})
    assert torch.equal(cast.x, torch.tensor([1.0, 2.0]))
    assert cast.n == 3
    assert type(cast.n) is int
    assert cast.name == "5"
    assert type(cast.inner) is Inner
    plain = NoCast(x=[1, 2], n=3)
    assert plain.x == [1, 2]
    assert plain.n == 3
    assert type(plain.n) is int
    assert isinstance(NoCast(x=torch.ones(1), n=None).x, Tensor)
    assert isinstance(Base(x=3).x, Tensor)


def test_nested_classes_keep_their_class_through_every_road(tmp_path: Path) -> None:
    sample = Sample.blank(4)
    roads = {
        "index": sample[1:3],
        "mask": sample[torch.tensor([True, False, True, True])],
        "clone": sample.clone(),
        "stack": torch.stack([sample, sample]),
        "cat": torch.cat([sample, sample]),
        "split": sample.split(2)[0],
        "unbind": sample.unbind(0)[0],
        "reshape": sample.reshape(2, 2),
        "add": sample + 1,
        "to": sample.to(torch.float64),
        "pickle": pickle.loads(pickle.dumps(sample)),
        "deepcopy": copy.deepcopy(sample),
        "memmap": sample.memmap(tmp_path),
        "load": Sample.load_memmap(tmp_path),
        "lazy": lazy_stack([sample, sample]),
        "shared": sample.clone().share_memory_(),
        "loader": next(iter(DataLoader(sample, batch_size=2))),
        "samples": next(iter(DataLoader(list(sample), batch_size=2))),  # type: ignore[arg-type]
    }
    for road, got in roads.items():
        assert type(got) is Sample, road
        assert type(got.inner) is Inner, road
        assert set(got.get("name").reshape(-1).tolist() if got.batch_size else [got.name]) == {"none"}, road
        assert got.inner.batch_size == got.batch_size, road
    assert roads["mask"].label.tolist() == [0, 2, 3]
    assert roads["stack"].batch_size == (2, 4)
    assert roads["samples"].label.tolist() == [0, 1]
    assert roads["to"].image.dtype is torch.float64
    assert isinstance(roads["lazy"][0], Sample)


def test_iteration_len_and_assignment_by_index() -> None:
    sample = Sample.blank(3)
    assert len(sample) == 3
    assert [row.label.item() for row in sample] == [0, 1, 2]
    sample[1] = Sample(torch.ones(2), torch.tensor(9), Inner(torch.tensor(5.0)))
    assert sample.label.tolist() == [0, 9, 2]
    assert sample.inner.y.tolist() == [1.0, 5.0, 1.0]
    sample[:] = sample[0]
    assert sample.label.tolist() == [0, 0, 0]
    other = Base(torch.ones(3), batch_size=[3])
    other[other.x > 0] = Base(torch.tensor(2.0))
    assert other.x.tolist() == [2.0, 2.0, 2.0]


def test_keys_and_attributes_say_the_same() -> None:
    sample = Sample.blank(2)
    assert sample["image"] is sample.image
    assert torch.equal(sample["inner", "y"], sample.inner.y)
    assert torch.equal(sample.get(("inner", "y")), sample.inner.y)
    sample["label"] = torch.tensor([5, 6])
    assert sample.label.tolist() == [5, 6]
    sample.set("label", torch.tensor([7, 8]))
    assert sample.label.tolist() == [7, 8]
    sample.update({"label": torch.tensor([1, 2])})
    assert sample.label.tolist() == [1, 2]
    sample.set_("label", torch.tensor([3, 4]))
    assert sample.label.tolist() == [3, 4]


def test_from_and_to_tensordict() -> None:
    td = TensorDict({"image": torch.zeros(2, 2), "label": torch.arange(2), "inner": {"y": torch.ones(2)}}, [2])
    base = Base.from_tensordict(TensorDict({"x": torch.ones(2)}, [2]))
    assert base.batch_size == (2,)
    sample = Sample.from_tensordict(td)
    assert sample.label.tolist() == [0, 1]
    back = Sample.blank(2).to_tensordict()
    assert type(back) is TensorDict
    assert type(back["inner"]) is TensorDict
    assert back["label"].tolist() == [0, 1]
    back["label"].zero_()
    plain = base.to_tensordict()
    plain["x"].zero_()
    assert base.x.tolist() == [1.0, 1.0]
    assert Base.from_tensordict(TensorDict({}), {"x": torch.ones(1)}).x.tolist() == [1.0]


def test_equality_is_by_field() -> None:
    one = Base(torch.tensor([1.0, 2.0]), batch_size=[2])
    two = Base(torch.tensor([1.0, 3.0]), batch_size=[2])
    assert (one == two).x.tolist() == [True, False]
    assert (one != two).x.tolist() == [False, True]
    assert (one == one.clone()).all()
    assert not (one == two).all()
    assert (one == 1).x.tolist() == [True, False]


def test_the_repr_names_the_class_and_its_fields() -> None:
    text = repr(Sample.blank(2))
    for word in ("Sample", "image", "label", "Inner", "name", "batch_size"):
        assert word in text
    assert "f32[2]" in text or "2, 2" in text


def test_a_torch_function_keeps_the_class() -> None:
    one = Base(torch.ones(2, 3), batch_size=[2, 3])
    assert type(torch.stack([one, one], 1)) is Base
    assert type(torch.unbind(one, 1)[0]) is Base
    assert type(torch.zeros_like(one)) is Base
    assert torch.cat([one, one], 1).batch_size == (2, 6)


def test_stacks_of_ragged_classes_are_lazy_and_give_members_back() -> None:
    batch = lazy_stack([Base(torch.ones(n)) for n in (1, 3)])
    assert type(batch) is Base
    assert isinstance(batch._inner, LazyStackedTensorDict)
    assert [row.x.shape for row in batch] == [(1,), (3,)]
    with pytest.raises(RuntimeError, match="shape"):
        _ = batch.x


def test_decorated_classes_pickle_and_load(tmp_path: Path) -> None:
    one = Decorated(torch.arange(3), "a", batch_size=[3])  # type: ignore[call-arg]
    again = pickle.loads(pickle.dumps(one))
    assert type(again) is Decorated
    assert again.name == "a"
    one.memmap(tmp_path)  # type: ignore[attr-defined]
    assert type(TensorDict.load_memmap(tmp_path)) is Decorated
    with_options = tensorclass(frozen=True)(type("Made", (), {"__annotations__": {"x": Tensor}}))
    with pytest.raises((dataclasses.FrozenInstanceError, RuntimeError)):
        with_options(torch.ones(1)).x = 1


def test_a_class_that_is_not_defined_loads_as_a_tensordict(tmp_path: Path) -> None:
    Base(torch.ones(3), batch_size=[3]).memmap(tmp_path)
    meta = tmp_path / "meta.json"
    meta.write_text(meta.read_text().replace("Base", "Gone"))
    back = TensorDict.load_memmap(tmp_path)
    assert type(back) is TensorDict
    assert back["x"].tolist() == [1.0, 1.0, 1.0]


def test_classes_nest_in_tensordicts_and_come_out_as_they_were() -> None:
    td = TensorDict({"b": Base(torch.ones(2, 3), batch_size=[2])}, [2])
    assert type(td["b"]) is Base
    assert type(td[0]["b"]) is Base
    assert td["b", "x"].shape == (2, 3)
    assert type((td * 2)["b"]) is Base
    assert type(torch.stack([td, td])["b"]) is Base
    td[0] = TensorDict({"b": Base(torch.zeros(3))})
    assert td["b"].x[:, 0].tolist() == [0.0, 1.0]


class Numbered(TensorClass):
    x: Tensor
    n: int = 3


def test_a_number_stands_for_all_rows_where_the_field_is_no_tensor(tmp_path: Path) -> None:
    rows = Numbered(torch.ones(2), batch_size=[2])
    assert rows.n == rows[0].n == rows[:1].n == 3
    rows.n = 4
    assert type(rows.n) is int
    assert type(rows.memmap(tmp_path).n) is int
    assert Numbered.load_memmap(tmp_path).n == 4
    assert torch.stack([Numbered(torch.ones(1)), Numbered(torch.ones(1), 5)]).n.tolist() == [3, 5]
    with pytest.raises(RuntimeError, match="'x'"):
        rows.x = 3
    assert rows.x.tolist() == [1.0, 1.0]


def test_deleting_a_field_makes_it_none() -> None:
    sample = Numbered(torch.ones(2))
    del sample.n
    assert sample.n is None
    assert list(sample.keys()) == ["x"]


def test_keys_cannot_become_something_else_than_fields() -> None:
    sample = Child(torch.ones(2), torch.zeros(2))
    with pytest.raises(AttributeError, match="nope"):
        sample.rename_key_("x", "nope")
    assert sample.x.tolist() == [1.0, 1.0]
    assert set(sample.keys()) == {"x", "y", "z"}
    sample.rename_key_("x", "y")
    assert sample.x is None
    assert sample.y.tolist() == [1.0, 1.0]
    with pytest.raises(AttributeError, match="inner"):
        Sample.blank(2).flatten_keys()


def test_fields_without_a_default_come_first() -> None:
    with pytest.raises(TypeError, match="'y'"):
        type("Bad", (TensorClass,), {"__annotations__": {"x": Tensor, "y": Tensor}, "x": 3})
    fields = {"x": 3, "y": dataclasses.field(kw_only=True)}
    made = type("Good", (TensorClass,), {"__annotations__": {"x": Tensor, "y": Tensor}, **fields})
    assert made(y=torch.ones(1)).y.tolist() == [1.0]
    with pytest.raises(TypeError, match="positional"):
        made(3, torch.ones(1))


class Doubled(TensorClass):
    x: Tensor

    def __init__(self, value: Tensor) -> None:
        self.x = value * 2
        self.batch_size = value.shape[:1]


@dataclasses.dataclass
class Plain:
    x: Tensor
    y: int = 3
    z: Any = dataclasses.field(default_factory=lambda: torch.ones(2))


def test_a_class_may_have_an_init_of_its_own() -> None:
    sample = Doubled(torch.ones(2, 3))
    assert sample.batch_size == (2,)
    assert sample[0].x.tolist() == [2.0, 2.0, 2.0]
    assert type(pickle.loads(pickle.dumps(sample))) is Doubled
    assert Doubled.from_tensordict(TensorDict({"x": torch.ones(1)})).x.tolist() == [1.0]


def test_dataclasses_and_subclasses_can_be_decorated() -> None:
    made: Any = tensorclass(Plain)
    sample = made(torch.ones(2, 3), batch_size=[2])
    assert sample[0].x.shape == (3,)
    assert sample.y == 3
    assert (sample == sample).x.all()
    assert "batch_size" in repr(sample)

    @tensorclass
    class More(Decorated):
        y: Tensor | None = None

        def double(self) -> Any:
            return super().double()

    more: Any = More
    assert [field.name for field in dataclasses.fields(more)] == ["x", "name", "y"]
    assert more(torch.ones(2), y=torch.ones(2)).double().y.tolist() == [2.0, 2.0]
