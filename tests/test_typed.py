"""TypedTensorDict: a tensordict whose keys a class declares."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import NotRequired

from tensordict import (
    TensorClass,
    TensorDict,
    TensorDictBase,
    TypedTensorDict,
    is_tensor_collection,
    is_tensorclass,
    lazy_stack,
)


class State(TypedTensorDict):
    x: Tensor
    y: Tensor
    limit: ClassVar[int] = 3

    @property
    def twice(self) -> Tensor:
        return self.x * 2

    def shifted(self) -> State:
        return self + 1


class Longer(State):
    z: NotRequired[Tensor]
    note: str = "none"
    maybe: Tensor | None = None


class Nested(TypedTensorDict):
    state: State
    data_: TensorDict
    anything: Any = None


class Twin(TypedTensorDict):
    x: Tensor
    y: Tensor


class Same(State):
    """The same keys."""


def state() -> State:
    return State(x=torch.arange(3.0), y=torch.ones(3, 2), batch_size=[3])


def test_keys_are_keywords_or_one_mapping() -> None:
    data = {"x": torch.arange(3.0), "y": torch.ones(3)}
    for made in (
        State(**data, batch_size=[3]),
        State(data, batch_size=[3]),  # type: ignore[misc, arg-type, call-arg]
        State(TensorDict(data, [3])),  # type: ignore[misc, arg-type, call-arg]
        State.from_dict(data, batch_size=[3]),
        State.from_any(TensorDict(data, [3])),
        State.from_tensordict(TensorDict(data, [3])),
    ):
        assert type(made) is State
        assert made.batch_size == (3,)
        assert made.x.tolist() == made["x"].tolist() == made.get("x").tolist() == [0.0, 1.0, 2.0]
    made = State(**data, batch_size=[3], device="cpu", names=["time"], lock=True)
    assert (made.device, made.names, made.is_locked) == (torch.device("cpu"), ["time"], True)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: State(x=torch.ones(1)), "'y'"),
        (lambda: State(x=torch.ones(1), y=torch.ones(1), z=torch.ones(1)), r"'z'.*\['x', 'y'\]"),
        (lambda: State(torch.ones(1), torch.ones(1)), "keywords"),
        (lambda: State(x="text", y=torch.ones(1)), "'x'.*'text'"),
        (lambda: State(x=None, y=torch.ones(1)), "'x'.*None"),
        (lambda: State(x=TensorDict({}), y=torch.ones(1)), "'x'"),
        (lambda: Nested(state=torch.ones(1), data_={}), "'state'"),
        (lambda: Nested(state={"x": 1}, data_={}), "'y'"),
        (lambda: Nested(state=TensorDict({"x": 1}), data_={}), "State.*'y'"),
        (lambda: State.from_tensordict(TensorDict({"x": 1})), r"\['y'\]"),
        (lambda: State.from_tensordict(TensorDict({"x": 1, "y": "text"})), "'y'.*text"),
    ],
)
def test_what_does_not_fit_is_refused_on_construction(make: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()


def test_what_does_not_fit_is_refused_when_it_is_set() -> None:
    made = state()
    for key_error in (
        lambda: made.set("z", torch.ones(3)),
        lambda: made.update({"z": torch.ones(3), "x": torch.zeros(3)}),
        lambda: setattr(made, "z", torch.ones(3)),
        lambda: made.rename_key_("x", "z"),
        lambda: made.__setitem__("z", torch.ones(3)),
    ):
        with pytest.raises(KeyError, match="'z'"):
            key_error()
    for value in ("text", None, TensorDict({}, [3])):
        with pytest.raises(TypeError, match="'x'"):
            made.x = value  # type: ignore[assignment]
    with pytest.raises(TypeError, match="'x'"):
        made.set("x", "text")
    with pytest.raises(RuntimeError, match="'x'"):
        made.x = torch.ones(2)
    assert made.x.tolist() == [0.0, 1.0, 2.0]
    made.x = torch.zeros(3)
    made["x"] = made.x + 1
    assert made.get("x").tolist() == [1.0, 1.0, 1.0]


def test_optional_keys_and_inheritance() -> None:
    longer = Longer(x=torch.ones(2), y=torch.ones(2), batch_size=[2])
    assert longer.note == "none"
    assert Longer.__required_keys__ == {"x", "y"}
    assert Longer.__optional_keys__ == {"z", "note", "maybe"}
    assert "z" not in longer
    assert longer.get("z") is None
    with pytest.raises(AttributeError, match="'z'"):
        _ = longer.z
    longer.z = torch.ones(2)
    assert longer[0].z == 1
    assert isinstance(longer, State)
    assert longer.twice.tolist() == [2.0, 2.0]
    assert type(longer.shifted()) is Longer
    assert Longer.limit == 3


def test_nested_schemas_are_read_as_their_class() -> None:
    inner = {"x": torch.ones(2), "y": torch.ones(2)}
    made = Nested(state=inner, data_={"a": torch.ones(2)}, batch_size=[2])  # type: ignore[arg-type]
    assert type(made.state) is State
    assert made["state", "x"].tolist() == [1.0, 1.0]
    around = Nested.from_tensordict(TensorDict({"state": inner, "data_": {}}, [2]))
    assert type(around.state) is type(around[0].state) is State
    around.state.x = torch.zeros(2)
    assert around["state", "x"].tolist() == [0.0, 0.0]
    with pytest.raises(TypeError, match="'y'"):
        Nested.from_tensordict(TensorDict({"state": {"x": 1}, "data_": {}}))


def test_from_tensordict_shares_and_may_skip_the_check() -> None:
    td = TensorDict({"x": torch.ones(2), "y": torch.ones(2)}, [2])
    made = State.from_tensordict(td)
    made.x = torch.zeros(2)
    assert td["x"].tolist() == [0.0, 0.0]
    td["z"] = torch.ones(2)
    with pytest.raises(KeyError, match="'z'"):
        State.from_tensordict(td)
    loose = State.from_tensordict(td.exclude("y"), check=False)
    assert (loose + 1)["z"].tolist() == [2.0, 2.0]
    assert list(loose.select("x").keys()) == ["x"]
    ragged = lazy_stack([TensorDict({"x": torch.ones(n), "y": torch.ones(1)}) for n in (1, 2)])
    assert State.from_tensordict(ragged)[1].x.shape == (2,)


def test_words_return_the_class(tmp_path: Path) -> None:
    made = state()
    roads = {
        "row": made[0],
        "slice": made[:2],
        "mask": made[made.x > 0],
        "add": made + 1,
        "sum": made.sum(dim=0),
        "equal": made == made,
        "to": made.to(torch.float64),
        "view": made.view(3, 1),
        "unbind": made.unbind(0)[0],
        "apply": made.apply(lambda v: v),
        "stack": torch.stack([made, made]),
        "cat": torch.cat([made, made]),
        "lazy": lazy_stack([made, made]),
        "member": lazy_stack([made, made])[0],
        "copy": copy.copy(made),
        "deepcopy": copy.deepcopy(made),
        "pickle": pickle.loads(pickle.dumps(made)),
        "memmap": made.memmap(tmp_path),
        "load": State.load_memmap(tmp_path),
        "shared": made.clone().share_memory_(),
        "loader": next(iter(DataLoader(made, batch_size=2))),
        "samples": next(iter(DataLoader(list(made), batch_size=2))),  # type: ignore[arg-type]
        "inside": TensorDict({"s": made}, [3])[1:]["s"],
        "vmap": torch.vmap(lambda row: row * 2)(made),
        "compile": torch.compile(lambda s: (s + 1)[0], backend="eager", fullgraph=True)(made),
        "part": made.select("x"),
        "replace": made.replace({"x": torch.zeros(3)}),
    }
    wrong = {road: type(got).__name__ for road, got in roads.items() if type(got) is not State}
    assert not wrong
    assert type(made.to_tensordict()) is type(TensorDict(made)) is TensorDict
    assert (made.memmap(tmp_path / "again").is_memmap(), roads["shared"].is_shared()) == (True, True)


def test_it_is_a_tensordict_and_no_tensorclass() -> None:
    made = state()
    assert isinstance(made, TensorDictBase)
    assert is_tensor_collection(made)
    assert not is_tensorclass(made)
    assert "State" in repr(made)
    assert {**made}.keys() == {"x", "y"}
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)


def test_joins_take_tensordicts_with_the_keys_but_no_unrelated_schema() -> None:
    made = state()
    assert type(torch.stack([made, made.to_tensordict()])) is State
    assert type(torch.stack([made.to_tensordict(), made])) is TensorDict
    same = Same.from_tensordict(made.to_tensordict())
    assert type(torch.cat([same, made])) is Same
    twin = Twin.from_tensordict(made.to_tensordict())
    with pytest.raises(TypeError, match=r"State.*Twin"):
        torch.stack([made, twin])
    with pytest.raises(KeyError, match="different keys"):
        torch.stack([made, made.to_tensordict().set("z", torch.ones(3))])

    class Typed(TensorClass):
        x: Tensor
        y: Tensor

    with pytest.raises(TypeError, match=r"State.*Typed"):
        torch.stack([made, Typed.from_tensordict(made.to_tensordict())])


def test_options_and_names_of_words() -> None:
    with pytest.raises(AttributeError, match="'items'"):
        type("Bad", (TypedTensorDict,), {"__annotations__": {"items": Tensor}})

    class Shadow(TypedTensorDict, shadow=True):
        items: Tensor

    shadow = Shadow(items=torch.ones(2), batch_size=[2])
    assert TensorDict({"s": shadow}, [2])[0]["s"].items == 1
    assert type(shadow + 1) is Shadow

    class Frozen(TypedTensorDict, frozen=True):  # type: ignore[misc]
        x: Tensor

    with pytest.raises(AttributeError, match="frozen"):
        Frozen(x=torch.ones(1)).x = torch.ones(1)
    with pytest.raises(TypeError, match="total"):
        type("Bad", (TypedTensorDict,), {"__annotations__": {"x": Tensor}}, total=False)
