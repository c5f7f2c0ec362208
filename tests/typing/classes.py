"""Every shape of a class with fields, as type checkers see it: fields, constructor and words."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Generic, Optional, TypeVar

import torch
from torch import Tensor
from typing_extensions import assert_type

from tensordict import TensorClass, TensorDict, TypedTensorDict, tensorclass

T = TypeVar("T")


class Inner(TensorClass):
    y: Tensor


class Outer(TensorClass):
    x: Tensor
    inner: Inner
    maybe: Tensor | None = None
    old: Optional[Tensor] = None  # noqa: UP045
    note: str = "none"
    tags: list[str] = dataclasses.field(default_factory=list)
    count: ClassVar[int] = 3

    @property
    def twice(self) -> Tensor:
        return self.x * 2

    def scaled(self, by: float) -> Outer:
        return self * by

    @classmethod
    def blank(cls, n: int) -> Outer:
        return cls(torch.zeros(n), Inner(torch.zeros(n)), batch_size=[n])


class More(Outer, kw_only=True):
    z: Tensor
    weight: float = 1.0


class Loose(TensorClass, nocast=True):
    payload: Any


@tensorclass(frozen=True)
class Frozen:
    payload: Any


class Other(TensorClass):
    w: Tensor


class Both(Inner, Other):
    v: Tensor


class Box(TensorClass, Generic[T]):
    value: T
    number: int = 0


class Node(TensorClass):
    x: Tensor
    next: Node | None = None


@tensorclass
class Decorated:
    x: Tensor
    note: str = "none"


@tensorclass(autocast=True, kw_only=True)
class WithOptions:
    x: Tensor


class State(TypedTensorDict):
    x: Tensor
    note: str = "none"


class Longer(State):
    y: Tensor


def check() -> None:
    outer = Outer(torch.zeros(2), Inner(torch.zeros(2)), note="a", batch_size=[2])
    assert_type(outer.inner.y, Tensor)
    assert_type(outer.maybe, Tensor | None)
    assert_type(outer.old, Optional[Tensor])  # noqa: UP045
    assert_type(outer.note, str)
    assert_type(outer.tags, list[str])
    assert_type(Outer.count, int)
    assert_type(outer.scaled(2.0), Outer)
    assert_type(Outer.blank(2)[0].inner, Inner)
    assert_type(outer.clone().reshape(2, 1).inner[0].y, Tensor)
    more = More(torch.zeros(2), Inner(torch.zeros(2)), z=torch.zeros(2), device="cpu", batch_size=[2])
    assert_type(more.weight, float)
    assert_type(more[0].to("cpu"), More)
    assert_type(Loose(3).payload, Any)
    both = Both(w=torch.ones(1), y=torch.ones(1), v=torch.ones(1), batch_size=[1])
    assert_type(both.exp().w, Tensor)
    box = Box(torch.ones(2), batch_size=[2])
    assert_type(box.value, Tensor)
    assert_type(Box[str]("a").value, str)
    assert_type(Node(torch.ones(1), Node(torch.ones(1))).next, Node | None)
    assert_type(Decorated(torch.ones(1), "a").note, str)
    assert_type(WithOptions(x=torch.ones(1)).x, Tensor)
    state = State(x=torch.zeros(2), batch_size=[2], names=["time"])
    assert_type(state.x, Tensor)
    assert_type((state + 1)[0].note, str)
    assert_type(State.from_tensordict(TensorDict({"x": torch.zeros(2)})), State)
    assert_type(Longer(y=torch.zeros(2), x=torch.zeros(2)).view(1).y, Tensor)
    assert_type(state.batch_size, torch.Size)


def refused() -> None:
    Outer(torch.zeros(2))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    More(torch.zeros(2), Inner(torch.zeros(2)), torch.zeros(2))  # type: ignore[call-arg]  # pyright: ignore
    State(torch.zeros(2))  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    State(x="a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    State(y=torch.zeros(2))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    WithOptions(torch.zeros(2))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Frozen(3).payload = 4  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
