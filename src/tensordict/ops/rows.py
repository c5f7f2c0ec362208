"""Row factories: a family of words that differ only in the word said to each child is a table, not code.

A row makes a method (and its in-place twin), gives it a name, a docstring and a type, and registers the torch function
that does the same. Closures over a name stand where `operator.methodcaller` would, because the compiler traces them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, cast, overload

import torch
from torch import Tensor

from tensordict import errors
from tensordict.aliases import Call
from tensordict.core.core import TORCH, Core, S, implements
from tensordict.ops.fit import PRECISE, Trial

T = TypeVar("T")
R = TypeVar("R", covariant=True)


class UnaryWord(Protocol[R]):
    """A bound word without arguments."""

    def __call__(self) -> R: ...


class Unary(Protocol):
    """A word without arguments that returns its receiver's class."""

    @overload
    def __get__(self, owner: None, kind: type[T]) -> Callable[[T], T]: ...
    @overload
    def __get__(self, owner: T, kind: type[T]) -> UnaryWord[T]: ...


class BinaryWord(Protocol[R]):
    """A bound word of one operand."""

    def __call__(self, other: Any, *, default: Any = None) -> R: ...


class Binary(Protocol):
    """A word of one operand that returns its receiver's class."""

    @overload
    def __get__(self, owner: None, kind: type[T]) -> Callable[..., T]: ...
    @overload
    def __get__(self, owner: T, kind: type[T]) -> BinaryWord[T]: ...


class BinaryInPlaceWord(Protocol[R]):
    """A bound word of one operand that changes its receiver."""

    def __call__(self, other: Any) -> R: ...


class BinaryInPlace(Protocol):
    """A word of one operand that changes its receiver and returns it."""

    @overload
    def __get__(self, owner: None, kind: type[T]) -> Callable[..., T]: ...
    @overload
    def __get__(self, owner: T, kind: type[T]) -> BinaryInPlaceWord[T]: ...


class CastRowWord(Protocol[R]):
    """A bound word that casts leaves."""

    def __call__(self, *, cast_filter: Callable[[Any, Tensor], bool] | None = None) -> R: ...


class CastRow(Protocol):
    """A word that casts leaves and returns its receiver's class."""

    @overload
    def __get__(self, owner: None, kind: type[T]) -> Callable[..., T]: ...
    @overload
    def __get__(self, owner: T, kind: type[T]) -> CastRowWord[T]: ...


class Operator(Protocol):
    """An operator that returns its receiver's class."""

    @overload
    def __get__(self, owner: None, kind: type[T]) -> Callable[[T, Any], T]: ...
    @overload
    def __get__(self, owner: T, kind: type[T]) -> Callable[[Any], T]: ...


class ReductionWord(Protocol[R]):
    """A bound word that reduces rows, or with ``reduce=True`` everything to one tensor."""

    @overload
    def __call__(self, dim: Any = None, keepdim: bool = False, *, reduce: Literal[True], **kwargs: Any) -> Tensor: ...
    @overload
    def __call__(
        self, dim: Any = None, keepdim: bool = False, *, reduce: Literal[False] | None = None, **kwargs: Any
    ) -> R: ...
    def __call__(
        self, dim: Any = None, keepdim: bool = False, *, reduce: bool | None = None, **kwargs: Any
    ) -> R | Tensor: ...


class Reduction(Protocol):
    """A word that reduces rows and returns its receiver's class."""

    @overload
    def __get__(self, owner: None, kind: type[T]) -> Callable[..., Any]: ...
    @overload
    def __get__(self, owner: T, kind: type[T]) -> ReductionWord[T]: ...


def ask(name: str) -> Call:
    """Return the call that says a word without arguments to a child."""
    return lambda v: getattr(v, name)()


def ask_with(name: str) -> Call:
    """Return the call that says a word with one operand to a child."""
    return lambda v, other: getattr(v, name)(other)


def ask_with_tensor(name: str) -> Call:
    """The same for a word that torch gives tensors only: a number becomes a tensor, and promotes dtypes as a number."""

    def call(v: Any, other: Any) -> Any:
        if not isinstance(other, (Tensor, Core)) and isinstance(v, Tensor):
            other = torch.tensor(other, dtype=torch.result_type(v, other), device=v.device)
        return getattr(v, name)(other)

    return call


def at_once(name: str) -> Call | None:
    """Return the kernel of torch that says a word to a list of tensors, if there is one."""
    kernel: Call | None = getattr(torch, f"_foreach_{name}", None)
    return kernel


_ARITHMETIC = {
    kernel
    for name in "add sub mul div".split()
    for kernel in (getattr(torch, f"_foreach_{name}"), getattr(torch, f"_foreach_{name}_"))
}


def with_number(many: Call | None, number: Any) -> Call | None:
    """Return a kernel for lists with a number as its operand.

    Torch converts a number to a tensor again for each leaf; of arithmetic on the CPU, it is done once for each dtype.
    """
    if many is None:
        return None
    if many not in _ARITHMETIC or type(number) not in (int, float) or abs(number) >= 2**53:
        return lambda leaves: many(leaves, number)

    def call(leaves: list[Tensor]) -> Any:
        dtypes = {v.dtype for v in leaves}
        if not (dtypes <= PRECISE and all([v.is_cpu for v in leaves])):
            return many(leaves, number)
        made = {dtype: torch.tensor(number, dtype=dtype) for dtype in dtypes}
        return many(leaves, [made[v.dtype] for v in leaves])

    return call


def dress(method: Any, name: str, doc: str, two: bool = False) -> Any:
    """Give a method its name and docstring, and register the torch function of that name, of one operand or `two`."""
    method.__name__ = name
    method.__qualname__ = f"TensorCollection.{name}"
    method.__doc__ = inspect.cleandoc(doc)
    function = getattr(torch, name, None)
    if callable(function):
        TORCH.setdefault(function, either_first(function, method) if two else method)
    return method


def register(*names: str) -> None:
    """Register the torch functions that do what the method of the same name does."""
    for name in names:
        implements(getattr(torch, name))(_said(name))


def _said(name: str) -> Call:
    return lambda node, *args, **kwargs: getattr(node, name)(*args, **kwargs)


def either_first(function: Any, method: Any) -> Any:
    """Return what a torch function of two operands does when one of them, not always the first, is a node."""

    def call(one: Any, other: Any, **kwargs: Any) -> Any:
        if isinstance(one, Core):
            return method(one, other, **kwargs)
        return pair(other, lambda v, o: function(o, v, **kwargs), one)

    return call


def unary(name: str, value: str, start: str = "[0.25, 0.5]") -> tuple[Unary, Unary]:
    """Return a word for a function of each element, and its in-place twin."""
    say, say_ = ask(name), ask(name + "_")
    many, many_ = at_once(name), at_once(name + "_")

    def word(self: Core) -> Core:
        return self._map(say, many)

    def word_(self: Core) -> Core:
        return in_place(self, say_, (), many_)

    example = f"""
    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> x = torch.tensor({start})
        >>> td = TensorDict({{"x": x.clone()}}, [2])
    """
    equal = f'torch.equal({{}}["x"], x.{name}())\n        True'
    dress(word, name, f"Return {value} of each element.\n{example}    >>> {equal.format(f'td.{name}()')}\n    ")
    dress(
        word_,
        name + "_",
        f"Store {value} of each element in place; return self.\n{example}    >>> {equal.format(f'td.{name}_()')}\n    ",
    )
    return cast(Unary, word), cast(Unary, word_)


def predicate(name: str, value: str, start: str = "[0.25, 0.5]") -> Unary:
    """Return a word for a function of each element that has no in-place twin."""
    say = ask(name)

    def word(self: Core) -> Core:
        return self._map(say)

    dress(
        word,
        name,
        f"""Return {value}.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> x = torch.tensor({start})
            >>> torch.equal(TensorDict({{"x": x}}, [2]).{name}()["x"], x.{name}())
            True
        """,
    )
    return cast(Unary, word)


def align(value: Tensor, ndim: int) -> Tensor:
    """Return a tensor that lines up with the batch dims of a child with ``ndim`` dims or more."""
    return value.reshape(*value.shape, *(1,) * (ndim - value.ndim)) if ndim > value.ndim else value


def spread(value: Tensor, node: Core) -> Tensor:
    """Return a tensor that broadcasts against the batch dims of a node, with exactly that many dims.

    Raises:
        ShapeMismatch: if it does not broadcast to the batch size.
    """
    batch = node._meta.batch
    lead = len(batch) - value.ndim
    if lead < 0 or any(size not in (1, to) for size, to in zip(value.shape, batch[lead:], strict=True)):
        raise errors.ShapeMismatch(
            f"a tensor of shape {list(value.shape)} does not broadcast to the batch size {list(batch)}"
        )
    return value.reshape(*(1,) * lead, *value.shape) if lead else value


def rows_of(mask: Tensor, node: Core) -> Tensor:
    """Return a mask with the dims of the batch: over the leading dims, as in an index, or else broadcast to them."""
    batch = node._meta.batch
    if tuple(mask.shape) == batch[: mask.ndim]:
        return align(mask, len(batch))
    return spread(mask, node)


def pair(self: S, say: Call, other: Any, many: Call | None = None) -> S:
    """Say a word with an operand to each child: a node is paired by key, a tensor lines up with the batch dims."""
    if isinstance(other, dict):
        other = self._dense_kind(other, self._meta.batch)
    if isinstance(other, Core):
        return self._zip(say, (other,), many)
    if isinstance(other, Tensor):
        return self._zip(say, (spread(other, self),)) if other.ndim else self._map(lambda v: say(v, other))
    return self._map(lambda v: say(v, other), with_number(many, other))


def in_place(self: S, call: Call, others: tuple[Any, ...] = (), many: Call | None = None) -> S:
    """Say a call that changes values to each child, once it is seen that all can hear it."""
    if many is None or not self._each_at_once(many, others):
        self._match(Trial(call, PRECISE if many is not None else ()), others)
        self._each(call, others, many)
    return self


def pair_(self: S, say: Call, other: Any, many: Call | None = None) -> S:
    """Say a word with an operand to each child, in place."""
    if isinstance(other, Core):
        return in_place(self, say, (other,), many)
    if isinstance(other, Tensor) and other.ndim:
        return in_place(self, say, (spread(other, self),))

    def call(v: Any) -> Any:
        return say(v, other)

    plain = isinstance(other, (int, float))
    return in_place(self, call, (), with_number(many, other) if plain else None)


def paired_with_default(self: S, say: Call, other: Any, default: Any) -> S:
    """Pair by key where both sides have it; a key of one side only is paired with the default."""
    if not isinstance(other, Core):
        return pair(self, say, other)
    mine, theirs = list(self._keys()), list(other._keys())
    children = {}
    for key in dict.fromkeys((*mine, *theirs)):
        if key in mine and key in theirs:
            one, two = self._get(key), other._get(key)
            below = isinstance(one, Core) and not one._is_non_tensor
            children[key] = paired_with_default(one, say, two, default) if below else say(one, two)
        elif default != "intersection":
            one, two = (self._get(key), default) if key in mine else (default, other._get(key))
            children[key] = _with_default(say, one, two)
    return self._like(children, self._meta)


def _with_default(say: Call, one: Any, two: Any) -> Any:
    """Say a word where one side is the default, as a tensor or node like the other side."""
    if isinstance(one, (Tensor, Core)):
        return say(one, two)
    return say(two._map(lambda v: torch.full_like(v, one)) if isinstance(two, Core) else torch.full_like(two, one), two)


def binary(name: str, value: str, example: str = "", say: Call | None = None) -> Binary:
    """Return a word for a function of each element and an operand; `say` tells how, if not by the word itself."""
    say = ask_with(name) if say is None else say
    many = at_once(name)

    def word(self: Core, other: Any, *, default: Any = None) -> Any:
        if default is not None:
            return paired_with_default(self, say, other, default)
        return pair(self, say, other, many)

    return cast(Binary, dress(word, name, _binary_doc(name, f"Return {value}", example, default=True), two=True))


def binary_(name: str, value: str, example: str = "", say: Call | None = None) -> BinaryInPlace:
    """Return a word that stores a function of each element and an operand in place."""
    say = ask_with(name) if say is None else say
    many = at_once(name)

    def word(self: Core, other: Any) -> Any:
        return pair_(self, say, other, many)

    return cast(BinaryInPlace, dress(word, name, _binary_doc(name, f"Store {value} in place; return self", example)))


def _binary_doc(name: str, sentence: str, example: str, default: bool = False) -> str:
    start, operand, result = (example or _EXAMPLE).split(" | ")
    extra = 'default: used for a key that only one side has; "intersection" leaves such keys out.' if default else ""
    return f"""{sentence}.

    Args:
        other: a number, a tensor that broadcasts against the batch dims, or a tensordict with the same keys.
        {extra}

    Raises:
        KeyError: if the keys of the two tensordicts differ and there is no default.
        RuntimeError: if shapes do not broadcast.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> TensorDict({{"x": torch.tensor({start})}}, [2]).{name}({operand})["x"]
        tensor({result})
    """.replace("        \n\n    Raises", "\n    Raises")


_EXAMPLE = "[1.0, 3.0] | 2.0 | [2., 6.]"
