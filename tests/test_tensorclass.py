"""tensorclass: fields like those of a dataclass, and the words of a tensordict."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import inspect
import pickle
import subprocess
import sys
import typing
import weakref
from pathlib import Path
from typing import Any, ClassVar, Optional

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    collate,
    from_dataclass,
    is_tensorclass,
    lazy_stack,
    merge_tensordicts,
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
        assert set(got.to_tensordict().get("name").reshape(-1).tolist() if got.batch_size else [got.name]) == {
            "none"
        }, road
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


# ---- definitions


T = typing.TypeVar("T")


class Linked(TensorClass):
    x: Tensor
    next: Linked | None = None


class Box(TensorClass, typing.Generic[T]):
    value: T
    number: int = 0


class IntBox(Box[int]):
    pass


class One(TensorClass):
    a: Tensor


class Two(TensorClass):
    b: Tensor

    def who(self) -> str:
        return "two"


class Joined(One, Two):
    c: Tensor

    def who(self) -> str:
        return "joined, " + super().who()


@dataclasses.dataclass
class Mixin:
    scale: float = 2.0

    def hello(self) -> str:
        return f"scale {self.scale}"


class WithMixin(Mixin, TensorClass):
    x: Tensor | None = None


class Keywords(TensorClass, kw_only=True):
    x: Tensor | None = None
    y: Tensor


class Scaled(TensorClass):
    x: Tensor
    by: dataclasses.InitVar[int] = 2
    hidden: int = dataclasses.field(default=0, repr=False)
    later: Tensor | None = dataclasses.field(init=False, default=None)

    def __post_init__(self, by: int) -> None:
        self.x = self.x * by


def test_a_class_may_refer_to_itself_and_be_generic() -> None:
    linked = Linked(torch.ones(2), Linked(torch.zeros(2)), batch_size=[2])
    assert type((linked + 1)[0].next) is Linked
    assert linked.next.next is None  # type: ignore[union-attr]
    box = Box[Tensor](torch.ones(2), batch_size=[2])
    assert type(box) is type(box[0]) is Box
    assert typing.get_args(Box[int]) == (int,)
    assert type(IntBox(3) + 1) is IntBox
    assert type(pickle.loads(pickle.dumps(box))) is Box


def test_fields_come_from_several_bases_as_python_orders_them() -> None:
    joined = Joined(b=torch.zeros(1), a=torch.ones(1), c=torch.ones(2))
    assert [field.name for field in joined.fields()] == ["b", "a", "c"]
    assert joined.who() == "joined, two"
    assert isinstance(joined.exp(), One)
    mixed = WithMixin(x=torch.ones(2), batch_size=[2])
    assert mixed.hello() == "scale 2.0"
    assert mixed[0].hello() == "scale 2.0"
    assert "batch_size" in repr(mixed)
    assert (mixed == mixed).x.all()  # type: ignore[union-attr]


def test_a_property_of_a_subclass_takes_the_place_of_a_field() -> None:
    class Fixed(Base):
        @property
        def x(self) -> str:  # type: ignore[override]
            return "fixed"

    assert Fixed.from_tensordict(TensorDict({"x": 1})).x == "fixed"


def test_keywords_init_variables_and_hidden_fields() -> None:
    assert Keywords(y=torch.ones(1)).x is None
    with pytest.raises(TypeError, match="positional"):
        Keywords(torch.ones(1))  # type: ignore[misc]
    assert tensorclass(kw_only=True)(type("K", (), {"__annotations__": {"x": int, "y": int}, "x": 1}))(y=2).x == 1
    scaled = Scaled(torch.ones(2), 3)
    assert scaled.x.tolist() == [3.0, 3.0]
    assert scaled.later is None
    assert "hidden" not in repr(scaled)
    assert Scaled.from_tensordict(TensorDict({"x": torch.ones(1)})).x.tolist() == [2.0]
    assert scaled.clone().x.tolist() == [3.0, 3.0]


def test_mutable_defaults_are_refused_and_factories_run_each_time() -> None:
    with pytest.raises(ValueError, match="default_factory"):
        type("Bad", (TensorClass,), {"__annotations__": {"x": list}, "x": []})
    made: Any = type(
        "Good", (TensorClass,), {"__annotations__": {"x": Tensor}, "x": dataclasses.field(default_factory=lambda: [1])}
    )
    assert made().x is not made().x


def test_the_signature_is_that_of_the_fields() -> None:
    names = list(inspect.signature(Child).parameters)
    assert names == ["x", "y", "z", "batch_size", "device", "names", "lock"]
    assert Child.__match_args__ == ("x", "y", "z")
    match Child(torch.ones(1), torch.zeros(1)):
        case Child(x, y, z=2):
            assert x.tolist() == [1.0]
            assert y.tolist() == [0.0]
        case _:
            pytest.fail("a tensorclass should match by position")


def test_dataclasses_replace_keeps_the_batch_size() -> None:
    child = Child(torch.ones(2), torch.zeros(2), batch_size=[2], names=["time"])
    new = dataclasses.replace(child, x=torch.zeros(2))
    assert new.batch_size == (2,)
    assert new.names == ["time"]
    assert new.x.tolist() == [0.0, 0.0]
    assert new.z == 2
    assert dataclasses.asdict(Base(torch.ones(1)))["x"].tolist() == [1.0]


def test_hash_is_refused_and_weak_references_work() -> None:
    sample = Base(torch.ones(1))
    with pytest.raises(TypeError, match="unhashable"):
        hash(sample)
    assert weakref.ref(sample)() is sample


def test_names_that_are_no_fields_are_refused_and_class_attributes_are_not() -> None:
    class Counting(Base):
        limit: ClassVar[int] = 3
        note = "plain"

    sample = Counting(torch.ones(1))
    for name in ("_private", "mean", "keys", "nope"):
        with pytest.raises(AttributeError, match=name):
            setattr(sample, name, 3)
    sample.limit = 4  # type: ignore[misc]
    sample.note = "other"
    assert (sample.limit, Counting.limit, sample.note) == (4, 3, "other")


def test_a_class_with_an_init_may_call_that_of_its_base() -> None:
    class Sized(TensorClass):
        x: Tensor
        y: Tensor | None = None

        def __init__(self, value: Tensor) -> None:
            super().__init__(x=value, batch_size=value.shape)

    class Below(Sized):
        z: Tensor | None = None

    assert Sized(torch.ones(2)).batch_size == (2,)
    assert Below(torch.ones(2)).batch_size == (2,)


# ---- options


class Meta(TensorClass):
    x: Tensor
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    pair: tuple[int, int] = (1, 2)
    tags: list[str] = dataclasses.field(default_factory=list)
    anything: Any = None
    td: TensorDict | None = None


def test_dicts_and_tuples_stay_objects_where_no_tensor_is_annotated() -> None:
    meta = Meta(torch.ones(3), {"a": 1}, anything={"b": torch.ones(1)}, td={"c": torch.ones(3)}, batch_size=[3])
    assert meta.info == meta[0].info == {"a": 1}
    assert meta.pair == (1, 2)
    assert meta.tags == []
    meta.tags = ["a", "b", "c"]
    assert meta[1].tags == "b"
    assert meta.anything["b"].tolist() == [1.0]
    assert type(meta.td) is TensorDict
    assert meta[0].td["c"] == 1
    assert Meta(torch.ones(3)).info == {}


def test_options_in_brackets_and_their_inheritance() -> None:
    class Loose(TensorClass["nocast"]):  # type: ignore[type-arg, name-defined]
        x: Any

    class Looser(Loose):
        y: Any = 1

    assert type(Looser(3).x) is int
    assert type(Looser(3).y) is int
    assert Looser({"a": 1}).x == {"a": 1}
    with pytest.raises(TypeError, match="frosty"):
        TensorClass["frosty"]  # type: ignore[type-arg, name-defined]
    with pytest.raises(TypeError, match="nocast"):
        tensorclass(nocast=True, autocast=True)(type("Bad", (), {"__annotations__": {"x": Tensor}}))
    with pytest.raises(TypeError, match="3"):
        tensorclass(3)  # type: ignore[call-overload]


def test_autocast_reads_unions_with_none_and_says_what_cannot_be_cast() -> None:
    class Auto(TensorClass, autocast=True):
        x: Tensor | None = None
        n: Optional[int] = None  # noqa: UP045
        inner: Inner | None = None
        both: Tensor | str = "s"

    auto = Auto([1, 2], "3", {"y": torch.ones(1)}, 4)
    assert auto.x.tolist() == [1, 2]
    assert auto.n == 3
    assert type(auto.inner) is Inner
    assert auto.both == 4
    assert type(Auto(inner=TensorDict({"y": 1})).inner) is Inner
    with pytest.raises(TypeError, match=r"'n'.*int.*'word'"):
        auto.n = "word"
    assert auto.n == 3


def test_tensor_only_refuses_other_annotations_and_values() -> None:
    class Only(TensorClass, tensor_only=True):
        x: Tensor
        inner: Inner | None = None
        td: Optional[TensorDict] = None  # noqa: UP045

    only = Only(1, td={"a": 1})
    assert only.x == 1
    assert only.td["a"] == 1
    for value in ("text", {"a": 1}):
        with pytest.raises(TypeError, match="'x'"):
            Only(value)
    for hint in (str, Any, "Tensor | str", dict):
        with pytest.raises(TypeError, match="'x'"):
            type("Bad", (TensorClass,), {"__annotations__": {"x": hint}, "__module__": __name__}, tensor_only=True)


def test_cast_filter_chooses_the_leaves_that_words_cast() -> None:
    @tensorclass(cast_filter=lambda key, leaf: key != ("y",) and leaf.is_floating_point())
    class Some:
        x: Tensor
        y: Tensor
        n: Tensor

    some: Any = Some(torch.ones(2), torch.ones(2), torch.arange(2), batch_size=[2])  # type: ignore[call-arg]
    for cast in (some.double(), some.to(torch.float64), some.to("cpu", torch.float64), some.type(torch.float64)):
        assert type(cast) is Some
        assert [cast[name].dtype for name in "xyn"] == [torch.float64, torch.float32, torch.int64]
    assert some.to("cpu").device == torch.device("cpu")


def test_frozen_errors_are_those_of_dataclasses() -> None:
    class Late(TensorClass, frozen=True):
        x: Tensor
        y: Tensor | None = None

        def __post_init__(self) -> None:
            object.__setattr__(self, "y", self.x + 1)

    late = Late(torch.ones(2), batch_size=[2])
    assert late.y.tolist() == [2.0, 2.0]
    for write in (
        lambda: setattr(late, "x", torch.zeros(2)),
        lambda: delattr(late, "x"),
        lambda: late.set("x", torch.zeros(2)),
        lambda: late.update({"x": torch.zeros(2)}),
        lambda: late.rename_key_("x", "y"),
        lambda: late.del_("x"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
            write()
    late[0] = Late(torch.zeros(()))
    assert late.zero_().x.tolist() == [0.0, 0.0]

    class Below(Late):
        z: Tensor | None = None

    with pytest.raises(dataclasses.FrozenInstanceError):
        Below(torch.ones(1)).z = torch.ones(1)


# ---- fields with names of words


class Shadow(TensorClass, shadow=True):
    keys: Tensor
    clone: Tensor
    exp: Tensor
    unbind: Tensor | None = None
    apply: Tensor | None = None
    select: Tensor | None = None
    batch_size: Tensor | None = None


SHADOWED = ("keys", "clone", "exp")


def shadow() -> Shadow:
    data = {name: torch.arange(4.0) + at for at, name in enumerate(SHADOWED)}
    return Shadow.from_tensordict(TensorDict(data, [4]))


def test_a_shadowing_field_hides_the_word_from_users_only(tmp_path: Path) -> None:
    sample = shadow()
    plain = sample.to_tensordict()
    roads: dict[str, tuple[Any, Any]] = {
        "add": (sample + 1, plain + 1),
        "stack": (torch.stack([sample, sample]), torch.stack([plain, plain])),
        "cat": (torch.cat([sample, sample]), torch.cat([plain, plain])),
        "index": (sample[1:3], plain[1:3]),
        "row": (next(iter(sample)), plain[0]),
        "mean": (sample.mean(dim=0), plain.mean(dim=0)),
        "view": (sample.view(2, 2), plain.view(2, 2)),
        "split": (sample.split(2)[1], plain.split(2)[1]),
        "max": (sample.max(dim=0).values, plain.max(dim=0).values),
        "copy": (copy.copy(sample), plain),
        "deepcopy": (copy.deepcopy(sample), plain),
        "pickle": (pickle.loads(pickle.dumps(sample)), plain),
        "memmap": (sample.memmap(tmp_path / "one"), plain),
        "load": (Shadow.load_memmap(tmp_path / "one"), plain),
        "vmap": (torch.vmap(lambda row: row * 2)(sample), plain * 2),
        "lazy": (lazy_stack([sample, sample])[1], plain),
        "loader": (next(iter(DataLoader(sample, batch_size=2))), plain[:2]),  # type: ignore[arg-type]
        "samples": (next(iter(DataLoader([sample[0], sample[1]], batch_size=2))), plain[:2]),  # type: ignore[arg-type]
    }
    for road, (got, want) in roads.items():
        assert type(got) is Shadow, road
        assert got.shape == want.shape, road
        for name in SHADOWED:
            assert torch.equal(getattr(got, name), want[name]), road


def test_words_reach_a_shadowing_class_inside_a_tensordict(tmp_path: Path) -> None:
    td = TensorDict({"s": shadow(), "x": torch.ones(4)}, [4])
    assert td["s"].keys.data_ptr() == td["s", "keys"].data_ptr()
    for road, got in {
        "exp": td.exp(),
        "clone": td.clone(),
        "apply": td.apply(lambda v: v + 1),
        "unbind": td.unbind(0)[1],
        "select": td.select(("s", "clone"), "x"),
        "to": td.to(torch.float64),
        "stack": torch.stack([td, td]),
        "pickle": pickle.loads(pickle.dumps(td)),
        "memmap": td.memmap(tmp_path),
        "load": TensorDict.load_memmap(tmp_path),
        "batch": td.reshape(2, 2),
    }.items():
        assert type(got["s"]) is Shadow, road
        assert got["s"].shape == got.batch_size, road
    assert torch.equal(td.exp()["s"].clone, (torch.arange(4.0) + 1).exp())
    td["s"].keys = torch.zeros(4)
    assert not td["s", "keys"].any()
    assert td.get("s").keys.data_ptr() == td["s", "keys"].data_ptr()


def test_contexts_and_locks_of_a_shadowing_class() -> None:
    sample = shadow().lock_()
    with pytest.raises(RuntimeError, match="'keys'"):
        sample.keys = torch.zeros(4)
    with sample.unlock_():
        sample.keys = torch.zeros(4)
    assert sample.is_locked
    sample.unlock_()
    with sample.view(2, 2) as grid:
        grid.clone = torch.ones(2, 2)
    assert sample.clone.tolist() == [1.0] * 4
    sample[0] = shadow()[3]
    assert sample.keys.tolist() == [3.0, 0.0, 0.0, 0.0]


def test_private_names_are_refused_with_shadow_too() -> None:
    with pytest.raises(AttributeError, match="_inner"):
        type("Bad", (TensorClass,), {"__annotations__": {"_map": Tensor, "_inner": Tensor}}, shadow=True)


# ---- dataclasses


@dataclasses.dataclass
class Part:
    q: Tensor


@dataclasses.dataclass
class Whole:
    x: Tensor
    part: Part
    note: str = "a"

    def __post_init__(self) -> None:
        self.x = self.x + 1

    def doubled(self) -> Tensor:
        return self.x * 2


def whole() -> Whole:
    return Whole(torch.zeros(3, 2), Part(torch.ones(3)))


def test_from_dataclass_keeps_values_methods_and_nesting() -> None:
    made = from_dataclass(whole(), batch_size=[3])
    assert is_tensorclass(made)
    assert isinstance(made, Whole)
    assert made.x.tolist() == [[1.0, 1.0]] * 3  # initialised once
    assert made[0].doubled().tolist() == [2.0, 2.0]
    assert is_tensorclass(made.part)
    assert made[1].part.q == 1
    assert type(from_dataclass(whole())) is type(made) is from_dataclass(Whole)
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made)
    assert again.note == "a"
    assert from_dataclass(whole(), auto_batch_size=True, batch_dims=1).batch_size == (3,)
    assert from_dataclass(whole(), device="cpu").device == torch.device("cpu")
    assert type(torch.stack([made, made]).part) is type(made.part)


def test_from_dataclass_takes_options_and_a_class() -> None:
    frozen = from_dataclass(whole(), frozen=True)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        frozen.x = torch.ones(1)
    assert from_dataclass(Part([1, 2]), nocast=True).q == [1, 2]  # type: ignore[arg-type]
    assert from_dataclass(Part([1, 2]), autocast=True).q.tolist() == [1, 2]  # type: ignore[arg-type]
    assert type(from_dataclass(Part(torch.ones(1)), dest_cls=Quantity)) is Quantity
    with pytest.raises(AttributeError, match="'x'"):
        from_dataclass(whole(), dest_cls=Quantity)
    for bad in (3, {"x": 1}, int, TensorDict({})):
        with pytest.raises(TypeError, match="dataclass"):
            from_dataclass(bad)
    with pytest.raises(TypeError, match="dest_cls"):
        from_dataclass(whole(), dest_cls=TensorDict)


class Quantity(TensorClass):
    q: Tensor


def test_the_method_from_dataclass() -> None:
    td = TensorDict.from_dataclass(whole(), auto_batch_size=True)
    assert type(td) is TensorDict
    assert td["part", "q"].tolist() == [1.0, 1.0, 1.0]
    assert type(Quantity.from_dataclass(Part(torch.ones(1)))) is Quantity
    assert isinstance(TensorDict.from_dataclass(whole(), as_tensorclass=True), Whole)
    with pytest.raises(TypeError, match="as_tensorclass"):
        TensorDict.from_dataclass(Whole)
    assert type(Quantity.from_any(Part(torch.ones(1)))) is Quantity
    assert type(Quantity.from_any(TensorDict({"q": 1}))) is Quantity


# ---- joins and rows


def test_rows_with_other_fields_are_refused_and_change_nothing() -> None:
    sample = Base(torch.zeros(2), batch_size=[2])
    with pytest.raises(TypeError, match="a One to rows of a Base"):
        sample[0] = One(torch.ones(()))
    with pytest.raises(AttributeError, match="'a'"):
        sample[0] = One(torch.ones(())).to_tensordict()
    td = TensorDict({"s": sample}, [2])
    with pytest.raises(AttributeError, match="'a'"):
        td[0] = TensorDict({"s": One(torch.ones(()))})
    assert list(sample.keys()) == ["x"]
    assert sample.x.tolist() == [0.0, 0.0]


class Renamed(Base):
    """The same fields."""


@pytest.mark.parametrize("join", [torch.stack, torch.cat, lazy_stack, collate], ids=lambda one: one.__name__)
def test_a_join_takes_the_class_of_the_first(join: Any) -> None:
    base, same = Base(torch.ones(1), batch_size=[1]), Renamed(torch.ones(1), batch_size=[1])
    assert type(join([base, base])) is Base
    assert type(join([base, same])) is Base
    assert type(join([same, base])) is Renamed
    for other in (One(torch.ones(1), batch_size=[1]), Child(torch.ones(1), torch.ones(1), batch_size=[1])):
        with pytest.raises(TypeError, match=f"Base.*{type(other).__name__}"):
            join([base, other])


def test_none_has_a_place_in_dicts() -> None:
    sample = Counted.from_tensordict(TensorDict({"x": torch.ones(2)}))
    sample.total = None
    assert sample.to_dict()["total"] is None
    assert "total" not in sample.to_dict(retain_none=False)
    assert "total" not in sample.to_tensordict()
    assert sample.to_tensordict(retain_none=True)["total"] is None


# ---- processes and the compiler

SCRIPT = """
import multiprocessing, pickle, sys, torch
from tensordict import TensorClass, tensorclass

class Sample(TensorClass):
    x: torch.Tensor
    name: str = "n"

@tensorclass
class Decorated:
    x: torch.Tensor

def work(queue, *samples):
    queue.put([(type(s).__name__, s.x.tolist(), type(s[0]) is type(s)) for s in samples])

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    samples = Sample(torch.arange(2), batch_size=[2]), Decorated(torch.ones(2), batch_size=[2])
    process = context.Process(target=work, args=(queue, *samples))
    process.start()
    assert queue.get() == [("Sample", [0, 1], True), ("Decorated", [1.0, 1.0], True)]
    process.join()
    assert process.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_class_of_the_main_program_reaches_other_processes(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script), method], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_chain_of_words_compiles() -> None:
    def chain(sample: Base) -> Any:
        made = Base(sample.x + 1, batch_size=sample.batch_size)
        made.x = made.x * 2
        return torch.stack([made, sample]).sum(dim=0)[0].x

    sample = Base(torch.arange(4.0), batch_size=[4])
    compiled = torch.compile(chain, backend="eager", fullgraph=True)
    assert compiled(sample) == chain(sample) == 2.0


class Plainly(TensorClass):
    x: Tensor
    n: int = 3


class Casting(TensorClass, autocast=True):
    x: Tensor
    n: int = 3


@pytest.mark.parametrize(
    "make",
    [
        lambda x: Plainly(x, batch_size=[4]).replace(n=4),
        lambda x: Casting(x, 2.0, batch_size=[4]),
        lambda x: Frozen(x, batch_size=[4]),
        lambda x: Shadow(x, x, x).auto_batch_size_(),
        lambda x: Meta(x, {"a": 1}, batch_size=[4]),
        lambda x: Base.from_tensordict(TensorDict({"x": x}, [4])),
    ],
)
def test_every_kind_of_class_is_made_in_a_compiled_function(make: Any) -> None:
    def call(x: Tensor) -> Any:
        made = make(x)
        return type(made), (made + 1)[1:].batch_size

    assert torch.compile(call, backend="eager", fullgraph=True)(torch.arange(4.0)) == call(torch.arange(4.0))


def test_a_frozen_class_lets_words_but_not_users_set_its_batch() -> None:
    class Still(TensorClass, frozen=True):
        x: torch.Tensor

    still = Still(torch.ones(2, 3), batch_size=[2])
    for name, value in (("batch_size", [2, 3]), ("names", ["a"]), ("device", "cpu"), ("x", torch.ones(2, 3))):
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(still, name, value)
    assert still.batch_size == (2,) and still.names == [None]
    assert still.clone().auto_batch_size_().batch_size == (2, 3)
    assert still.rename_("t").names == ["t"]
    td = TensorDict({"still": still.clone()}, [2])
    td.batch_size = [2]


def test_get_gives_what_the_attribute_gives() -> None:
    @tensorclass
    class Named:
        x: torch.Tensor
        name: str = "none"
        extra: object = None

    one = Named(torch.zeros(2), "a", batch_size=[2])
    column = Named(torch.zeros(2), NonTensorStack("a", "b"), batch_size=[2])
    held = NonTensorData(1)
    assert (one.get("name"), one.get(("name",)), column.get("name")) == ("a", "a", ["a", "b"])
    assert one.get("missing") is None and one.get("missing", held) is held
    assert one.get("x") is one.x
    assert isinstance(TensorDict({"n": one}, [2]).get(("n", "name")), NonTensorData)
    assert [type(value) for value in one.values()][:2] == [torch.Tensor, NonTensorData]


class Usual(TensorClass):
    """A class, a subclass of it, another one with its fields, and one with others."""

    x: torch.Tensor


class Wider(Usual):
    y: torch.Tensor | None = None


class Likewise(TensorClass):
    x: torch.Tensor


class Unlike(TensorClass):
    x: torch.Tensor
    z: torch.Tensor | None = None


@pytest.mark.parametrize("lazy", [False, True])
def test_rows_take_values_of_their_own_class_or_one_that_fits(lazy: bool) -> None:
    def make(kind: Any, value: float) -> Any:
        rows = [kind(torch.full((2,), value)) for _ in range(3)]
        return lazy_stack(rows) if lazy else torch.stack(rows)

    for kind in (Usual, Wider, Likewise):
        whole = make(Usual, 0.0)
        whole[1] = make(kind, 1.0)[0]
        whole[[2]] = make(kind, 2.0)[:1]
        assert type(whole) is Usual and whole.x[:, 0].tolist() == [0.0, 1.0, 2.0]
    for mine, theirs in ((Usual, Unlike), (Wider, Usual), (Unlike, Usual)):
        whole = make(mine, 0.0)
        with pytest.raises(TypeError, match=f"a {theirs.__name__} to rows of a {mine.__name__}"):
            whole[0] = make(theirs, 1.0)[0]
        assert not whole.x.any()
    whole = make(Usual, 0.0)
    whole[0] = make(Unlike, 1.0)[0].to_tensordict().select("x")
    assert whole.x[:, 0].tolist() == [1.0, 0.0, 0.0]


class Hiding(TensorClass, shadow=True):
    """A class that hides words, and a method that a parent must not lose."""

    data: torch.Tensor
    get: torch.Tensor | None = None

    def doubled(self) -> torch.Tensor:
        return self.data * 2


HELD_READS: dict[str, Any] = {
    "item": lambda td: td["h"],
    "nested item": lambda td: td["n", "h"],
    "get": lambda td: td.get("h"),
    "nested get": lambda td: td.get(("n", "h")),
    "values": lambda td: next(iter(td.values())),
    "items": lambda td: dict(td.items())["h"],
    "deep items": lambda td: dict(td.items(True))["n", "h"],
    "pop": lambda td: td.pop("h"),
    "popitem": lambda td: td.select("h").popitem()[1],
    "setdefault": lambda td: td.setdefault("h", None),
    "a row": lambda td: td[:]["h"],
}


@pytest.mark.parametrize("read", HELD_READS)
@pytest.mark.parametrize("make", [lambda td: td, lambda td: lazy_stack(list(td.unbind(0))), lambda td: td.memmap()])
def test_a_parent_gives_back_an_instance_that_hides_words(make: Any, read: str) -> None:
    one = Hiding(torch.arange(2.0), batch_size=[2])
    td = make(TensorDict({"h": one, "n": {"h": one}}, [2]))
    found = HELD_READS[read](td.unlock_() if read.startswith("pop") else td)
    assert type(found) is Hiding
    assert found.doubled().tolist() == [0.0, 2.0]


def test_a_users_function_is_called_with_instances_that_hide_words() -> None:
    td = TensorDict({"h": Hiding(torch.arange(2.0), batch_size=[2]), "x": torch.zeros(2)}, [2])
    made = td.apply(lambda v: v.doubled() if isinstance(v, Hiding) else v + 1, call_on_nested=True)
    assert (made["h"].tolist(), made["x"].tolist()) == ([0.0, 2.0], [1.0, 1.0])
    both = td.apply(lambda v, w: v.data + w.data, td, call_on_nested=True, is_leaf=None)
    assert both["h"].tolist() == [0.0, 2.0]
    assert td.named_apply(lambda key, v: v.data * 3, call_on_nested=True)["h"].tolist() == [0.0, 3.0]


def test_classes_of_tensordicts_take_types_of_keys_and_values() -> None:
    class Holder(TensorClass):
        parts: TensorDict[str, Hiding]  # type: ignore[type-arg]

    holder = Holder(TensorDict({"h": Hiding(torch.ones(2))}))
    assert type(holder.parts["h"]) is Hiding
    assert TensorDict[str, torch.Tensor].__origin__ is TensorDict  # type: ignore[misc]


def test_instances_that_hide_words_are_merged() -> None:
    one = TensorDict({"h": Hiding(torch.ones(2), batch_size=[2])}, [2])
    two = TensorDict({"h": Hiding(torch.zeros(2), torch.ones(2), batch_size=[2]), "x": torch.zeros(2)}, [2])
    merged = merge_tensordicts(one, two)
    assert type(merged["h"]) is Hiding
    assert (merged["h"].data.tolist(), merged["h"].get.tolist()) == ([1.0, 1.0], [1.0, 1.0])
    assert one["h"].get is None


@tensorclass
class Readable:
    """A decorated class, whose words a reader finds in it."""

    x: torch.Tensor

    def doubled(self) -> torch.Tensor:
        """Return twice the value.

        >>> Readable(torch.ones(1)).doubled()
        tensor([2.])
        """
        return self.x * 2

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        return (type(self).__name__, super().sum(*args, **kwargs))  # type: ignore[misc]

    @property
    def half(self) -> torch.Tensor:
        return self.x / 2

    @classmethod
    def ones(cls) -> Any:
        return cls(torch.ones(2))

    @staticmethod
    def three() -> int:
        return 3


def test_a_decorated_class_has_its_words() -> None:
    assert {"doubled", "half", "ones", "three"} <= vars(Readable).keys()
    found = doctest.DocTestFinder().find(Readable, "Readable", globs={"Readable": Readable, "torch": torch})
    assert [test.name for test in found if test.examples] == ["Readable.doubled"]
    assert doctest.DocTestRunner().run(found[1] if not found[0].examples else found[0]).failed == 0
    one = Readable.ones()
    assert type(one) is Readable and one.half.tolist() == [0.5, 0.5] and one.three() == 3
    name, total = one.sum()
    assert name == "Readable" and total.x == 2.0
