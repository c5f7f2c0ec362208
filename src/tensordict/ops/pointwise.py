"""Functions of each element: every word is a row."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from tensordict.aliases import Call
from tensordict.core.core import Core, S, implements
from tensordict.core.facts import Facts
from tensordict.ops.join import into
from tensordict.ops.rows import (
    Operator,
    align,
    ask_with,
    ask_with_tensor,
    at_once,
    binary,
    binary_,
    either_first,
    in_place,
    pair,
    pair_,
    paired_with_default,
    predicate,
    register,
    rows_of,
    spread,
    unary,
)

if TYPE_CHECKING:
    from typing_extensions import Self


def _operator(name: str, call: Call, kernel: str = "") -> Operator:
    """Return an operator method: the same as the word, without options."""
    many = at_once(kernel) if kernel else None

    def method(self: Core, other: Any) -> Any:
        return pair(self, call, other, many)

    method.__name__ = name
    method.__qualname__ = f"TensorCollection.{name}"
    return cast(Operator, method)


def _in_place(name: str, call: Call, kernel: str = "") -> Operator:
    many = at_once(kernel) if kernel else None

    def method(self: Core, other: Any) -> Any:
        return pair_(self, call, other, many)

    method.__name__ = name
    method.__qualname__ = f"TensorCollection.{name}"
    return cast(Operator, method)


def _swapped(call: Call) -> Call:
    return lambda v, other: call(other, v)


def _with(kernel: Call, number: Any) -> Call | None:
    """Return a kernel for lists that gets a number as well."""
    return (lambda *leaves: kernel(*leaves, number)) if isinstance(number, (int, float)) else None


_zero_all = at_once("zero_")
_LESS, _MORE = "[1.0, 3.0] | 2.0 | [1., 2.]", "[1.0, 3.0] | 2.0 | [2., 3.]"
_REST = "[1.0, 3.0] | 2.0 | [1., 1.]"
_TRUTH, _EITHER = "[0.0, 3.0] | 2.0 | [False,  True]", "[0.0, 3.0] | 2.0 | [True, True]"
_ONE = "[0.0, 3.0] | 2.0 | [ True, False]"


class Pointwise(Facts):
    """Requires: `_map`, `_zip`, `_each`. Gives: pointwise words, operators, comparisons, logic."""

    abs, abs_ = unary("abs", "the absolute value", "[-1.0, 2.0]")
    acos, acos_ = unary("acos", "the inverse cosine, in radians,")
    asin, asin_ = unary("asin", "the inverse sine, in radians,")
    atan, atan_ = unary("atan", "the inverse tangent, in radians,")
    ceil, ceil_ = unary("ceil", "the smallest integer that is not less")
    cos, cos_ = unary("cos", "the cosine, of radians,")
    cosh, cosh_ = unary("cosh", "the hyperbolic cosine")
    erf, erf_ = unary("erf", "the error function")
    erfc, erfc_ = unary("erfc", "the complementary error function")
    exp, exp_ = unary("exp", "the exponential")
    expm1, expm1_ = unary("expm1", "the exponential minus one")
    floor, floor_ = unary("floor", "the largest integer that is not greater")
    frac, frac_ = unary("frac", "the fractional part")
    lgamma, lgamma_ = unary("lgamma", "the logarithm of the absolute value of the gamma function")
    log, log_ = unary("log", "the natural logarithm")
    log10, log10_ = unary("log10", "the logarithm to base 10")
    log1p, log1p_ = unary("log1p", "the natural logarithm of one plus the value")
    log2, log2_ = unary("log2", "the logarithm to base 2")
    neg, neg_ = unary("neg", "the negative")
    reciprocal, reciprocal_ = unary("reciprocal", "the reciprocal")
    relu, relu_ = unary("relu", "the positive part", "[-1.0, 2.0]")
    round, round_ = unary("round", "the nearest integer")
    rsqrt, rsqrt_ = unary("rsqrt", "the reciprocal of the square root")
    sigmoid, sigmoid_ = unary("sigmoid", "the logistic function")
    sign, sign_ = unary("sign", "the sign", "[-1.0, 2.0]")
    sin, sin_ = unary("sin", "the sine, of radians,")
    sinh, sinh_ = unary("sinh", "the hyperbolic sine")
    sqrt, sqrt_ = unary("sqrt", "the square root")
    square, square_ = unary("square", "the square")
    tan, tan_ = unary("tan", "the tangent, of radians,")
    tanh, tanh_ = unary("tanh", "the hyperbolic tangent")
    trunc, trunc_ = unary("trunc", "the integer part")

    isfinite = predicate("isfinite", "whether each element is finite")
    isinf = predicate("isinf", "whether each element is infinite")
    isnan = predicate("isnan", "whether each element is not a number")
    isneginf = predicate("isneginf", "whether each element is negative infinity")
    isposinf = predicate("isposinf", "whether each element is positive infinity")
    isreal = predicate("isreal", "whether each element has no imaginary part")
    logical_not = predicate("logical_not", "whether each element is zero or False")

    clamp_max = binary("clamp_max", "the smaller of each element and an upper bound", _LESS)
    clamp_max_ = binary_("clamp_max_", "the smaller of each element and an upper bound", _LESS)
    clamp_min = binary("clamp_min", "the greater of each element and a lower bound", _MORE)
    clamp_min_ = binary_("clamp_min_", "the greater of each element and a lower bound", _MORE)
    div = binary("div", "each element divided by an operand", "[1.0, 3.0] | 2.0 | [0.5000, 1.5000]")
    div_ = binary_("div_", "each element divided by an operand", "[1.0, 3.0] | 2.0 | [0.5000, 1.5000]")
    maximum = binary("maximum", "the greater of each element and an operand", _MORE, ask_with_tensor("maximum"))
    maximum_ = binary_("maximum_", "the greater of each element and an operand", _MORE, ask_with("clamp_min_"))
    minimum = binary("minimum", "the smaller of each element and an operand", _LESS, ask_with_tensor("minimum"))
    minimum_ = binary_("minimum_", "the smaller of each element and an operand", _LESS, ask_with("clamp_max_"))
    mod = binary("mod", "the remainder of each element divided by an operand", _REST, operator.mod)
    mul, mul_ = binary("mul", "the product of each element and an operand"), binary_("mul_", "the product")
    pow = binary("pow", "each element to the power of an operand", "[1.0, 3.0] | 2.0 | [1., 9.]")
    pow_ = binary_("pow_", "each element to the power of an operand", "[1.0, 3.0] | 2.0 | [1., 9.]")
    logical_and = binary("logical_and", "whether both are non-zero", _TRUTH, ask_with_tensor("logical_and"))
    logical_or = binary("logical_or", "whether either is non-zero", _EITHER, ask_with_tensor("logical_or"))
    logical_xor = binary("logical_xor", "whether exactly one is non-zero", _ONE, ask_with_tensor("logical_xor"))
    bitwise_and = binary("bitwise_and", "the bits that each element and an operand share", "[5, 6] | 3 | [1, 2]")

    __mul__ = __rmul__ = _operator("__mul__", operator.mul, "mul")
    __add__ = __radd__ = _operator("__add__", operator.add, "add")
    __sub__, __rsub__ = _operator("__sub__", operator.sub, "sub"), _operator("__rsub__", _swapped(operator.sub))
    __truediv__ = _operator("__truediv__", operator.truediv, "div")
    __rtruediv__ = _operator("__rtruediv__", _swapped(operator.truediv))
    __floordiv__ = _operator("__floordiv__", operator.floordiv)
    __mod__ = _operator("__mod__", operator.mod)
    __pow__, __rpow__ = _operator("__pow__", operator.pow, "pow"), _operator("__rpow__", _swapped(operator.pow))
    __and__ = __rand__ = _operator("__and__", operator.and_)
    __or__ = __ror__ = _operator("__or__", operator.or_)
    __xor__ = __rxor__ = _operator("__xor__", operator.xor)
    __lt__, __le__ = _operator("__lt__", operator.lt), _operator("__le__", operator.le)
    __gt__, __ge__ = _operator("__gt__", operator.gt), _operator("__ge__", operator.ge)
    __eq__: Operator = _operator("__eq__", operator.eq)  # type: ignore[assignment]
    __ne__: Operator = _operator("__ne__", operator.ne)  # type: ignore[assignment]

    __iadd__ = _in_place("__iadd__", operator.iadd, "add_")
    __isub__ = _in_place("__isub__", operator.isub, "sub_")
    __imul__ = _in_place("__imul__", operator.imul, "mul_")
    __itruediv__ = _in_place("__itruediv__", operator.itruediv, "div_")
    __ipow__ = _in_place("__ipow__", operator.ipow)

    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Self:
        return self._map(operator.neg)

    def __abs__(self) -> Self:
        return self._map(operator.abs)

    def __invert__(self) -> Self:
        return self._map(operator.invert)

    def __bool__(self) -> bool:
        raise RuntimeError(
            f"the truth value of a {type(self).__name__} is ambiguous: use `.is_empty()`, `len(td.keys())`, "
            f"or `(a == b).all()`"
        )

    def add(self, other: Any, *, alpha: float | None = None, default: Any = None) -> Self:
        """Return the sum of each element and an operand.

        Args:
            other: a number, a tensor that broadcasts against the batch dims, or a tensordict with the same keys.
            alpha: multiplies the operand.
            default: used for a key that only one side has.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, [2]).add(1, alpha=2)["x"]
            tensor([3., 3.])
        """
        return _weighted(self, "add", other, alpha, default)

    def sub(self, other: Any, *, alpha: float | None = None, default: Any = None) -> Self:
        """Return each element minus an operand.

        Args:
            other: a number, a tensor that broadcasts against the batch dims, or a tensordict with the same keys.
            alpha: multiplies the operand.
            default: used for a key that only one side has.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, [2]).sub(1)["x"]
            tensor([0., 0.])
        """
        return _weighted(self, "sub", other, alpha, default)

    def add_(self, other: Any, *, alpha: float | None = None) -> Self:
        """Add an operand to each element in place; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, [2]).add_(1)["x"]
            tensor([2., 2.])
        """
        return pair_(self, _scaled("add_", alpha), other, at_once("add_") if alpha is None else None)

    def sub_(self, other: Any, alpha: float | None = None) -> Self:
        """Subtract an operand from each element in place; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, [2]).sub_(1)["x"]
            tensor([0., 0.])
        """
        return pair_(self, _scaled("sub_", alpha), other, at_once("sub_") if alpha is None else None)

    def rsub(self, other: Any, *, alpha: float | None = None, default: Any = None) -> Self:
        """Return an operand minus each element.

        Args:
            other: a number, a tensor that broadcasts against the batch dims, or a tensordict with the same keys.
            alpha: multiplies the element.
            default: used for a key that only one side has.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, [2]).rsub(3)["x"]
            tensor([2., 2.])
        """
        scaled = self if alpha is None else pair(self, operator.mul, alpha)
        if default is not None:
            return paired_with_default(scaled, _swapped(operator.sub), other, default)
        return pair(scaled, _swapped(operator.sub), other)

    def addcmul(self, other1: Any, other2: Any, *, value: float = 1) -> Self:
        """Return each element plus a number times the product of two operands.

        Args:
            other1: a tensordict with the same keys.
            other2: likewise.
            value: the number.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.ones(2)}, [2])
            >>> td.addcmul(td, td, value=2)["x"]
            tensor([3., 3.])
        """
        return self._zip(lambda v, a, b: v.addcmul(a, b, value=value), (other1, other2))

    def addcmul_(self, other1: Any, other2: Any, *, value: float = 1) -> Self:
        """Add a number times the product of two operands to each element in place; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.ones(2)}, [2])
            >>> td.addcmul_(td.clone(), td.clone(), value=2)["x"]
            tensor([3., 3.])
        """
        many = _with(torch._foreach_addcmul_, value)
        return in_place(self, lambda v, a, b: v.addcmul_(a, b, value=value), (other1, other2), many)

    def addcdiv(self, other1: Any, other2: Any, value: float = 1) -> Self:
        """Return each element plus a number times the quotient of two operands.

        Args:
            other1: a tensordict with the same keys.
            other2: likewise.
            value: the number.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.ones(2)}, [2])
            >>> td.addcdiv(td, td * 2, value=2)["x"]
            tensor([2., 2.])
        """
        return self._zip(lambda v, a, b: v.addcdiv(a, b, value=value), (other1, other2))

    def addcdiv_(self, other1: Any, other2: Any, *, value: float = 1) -> Self:
        """Add a number times the quotient of two operands to each element in place; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.ones(2)}, [2])
            >>> td.addcdiv_(td.clone(), td * 2, value=2)["x"]
            tensor([2., 2.])
        """
        many = _with(torch._foreach_addcdiv_, value)
        return in_place(self, lambda v, a, b: v.addcdiv_(a, b, value=value), (other1, other2), many)

    def clamp(self, min: Any = None, max: Any = None, *, out: Any = None) -> Self:
        """Return each element, not less than ``min`` and not more than ``max``.

        Args:
            min: a number, a tensor, a tensordict, or None.
            max: likewise.
            out: a tensordict that the result is written to.

        Raises:
            RuntimeError: if both are None.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([-1.0, 2.0])}, [2]).clamp(0, 1)["x"]
            tensor([0., 1.])
        """
        if min is None and max is None:
            raise RuntimeError("clamp needs min, max or both, got neither")
        low = self if min is None else pair(self, lambda v, m: v.clamp(min=m), min)
        return into(out, low if max is None else pair(low, lambda v, m: v.clamp(max=m), max))  # type: ignore[no-any-return]

    def lerp(self, end: Any, weight: Any) -> Self:
        """Return the linear interpolation from each element to that of ``end``.

        Args:
            end: a tensordict with the same keys.
            weight: a number, or a tensordict with the same keys.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.zeros(2)}, [2])
            >>> td.lerp(td + 1, 0.5)["x"]
            tensor([0.5000, 0.5000])
        """
        if isinstance(weight, Core):
            return self._zip(lambda v, e, w: v.lerp(e, w), (end, weight))
        return self._zip(lambda v, e: v.lerp(e, weight), (end,))

    def lerp_(self, end: Any, weight: Any) -> Self:
        """Interpolate each element towards that of ``end`` in place; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.zeros(2)}, [2])
            >>> td.lerp_(td + 1, 0.5)["x"]
            tensor([0.5000, 0.5000])
        """
        if isinstance(weight, Core):
            return in_place(self, lambda v, e, w: v.lerp_(e, w), (end, weight))
        many = _with(torch._foreach_lerp_, weight)
        return in_place(self, lambda v, e: v.lerp_(e, weight), (end,), many)

    def where(
        self, condition: Tensor, other: Any, *, out: Any = None, pad: Any = None, update_batch_size: bool = False
    ) -> Self:
        """Return each element where a condition on the rows holds, else that of ``other``.

        Args:
            condition: a bool tensor over the leading batch dims, or one that broadcasts against the batch dims.
            other: a number, a tensor that broadcasts against the batch dims, or a tensordict with the same keys.
            out: a tensordict that the result is written to.
            pad: a number that stands for the value of a key that only one side has.
            update_batch_size: ``out`` takes the values and the batch size of the result, instead of copies.

        Raises:
            KeyError: if the keys of the two tensordicts differ and there is no ``pad``.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.ones(2)}, [2])
            >>> td.where(torch.tensor([True, False]), 0)["x"]
            tensor([1., 0.])
        """
        wide = rows_of(condition, self)
        if pad is not None and isinstance(other, Core):
            result = paired_with_default(self, lambda v, o: v.where(align(wide, v.ndim), o), other, pad)
        elif not wide.ndim:
            result = pair(self, lambda v, o: v.where(wide, o), other)
        elif isinstance(other, Core) or (isinstance(other, Tensor) and other.ndim):
            operand = other if isinstance(other, Core) else spread(other, self)
            result = self._zip(lambda v, c, o: v.where(c, o), (wide, operand))
        else:
            result = self._zip(lambda v, c: v.where(c, other), (wide,))
        if update_batch_size and out is not None:
            return out.update(result, update_batch_size=True)  # type: ignore[no-any-return]
        return into(out, result)  # type: ignore[no-any-return]

    def zero_(self) -> Self:
        """Set every element to zero in place; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, [2]).zero_()["x"]
            tensor([0., 0.])
        """
        return in_place(self, lambda v: v.zero_(), (), _zero_all)

    def masked_fill(self, mask: Tensor, value: float) -> Self:
        """Return each element, replaced by a number in the rows of a mask.

        Args:
            mask: a bool tensor over the leading batch dims, or one that broadcasts against the batch dims.
            value: the number.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.ones(2, 2)}, [2])
            >>> td.masked_fill(torch.tensor([True, False]), 0)["x"]
            tensor([[0., 0.],
                    [1., 1.]])
        """
        return pair(self, lambda v, m: v.masked_fill(m, value), rows_of(mask, self))

    def masked_fill_(self, mask: Tensor, value: float) -> Self:
        """Set each element to a number in the rows of a mask, in place; return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, [2]).masked_fill_(torch.tensor([True, False]), 0)["x"]
            tensor([0., 1.])
        """
        return pair_(self, lambda v, m: v.masked_fill_(m, value), rows_of(mask, self))


def _scaled(name: str, alpha: float | None) -> Call:
    if alpha is None:
        return lambda v, other: getattr(v, name)(other)
    return lambda v, other: getattr(v, name)(other, alpha=alpha)


def _weighted(self: S, name: str, other: Any, alpha: float | None, default: Any) -> S:
    from_rows = _scaled(name, alpha)
    if default is not None:
        return paired_with_default(self, from_rows, other, default)
    return pair(self, from_rows, other, at_once(name) if alpha is None else None)


def _register_like(name: str) -> None:
    """Register `torch.zeros_like` and its kin: said to each leaf."""
    function = getattr(torch, name)

    @implements(function)
    def call(node: Core, *args: Any, **kwargs: Any) -> Any:
        return node._map(lambda v: function(v, *args, **kwargs))


for _name in ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"):
    _register_like(_name)

implements(torch.where)(lambda condition, one, two: one.where(condition, two))
implements(torch.add)(either_first(torch.add, Pointwise.add))
implements(torch.sub)(either_first(torch.sub, Pointwise.sub))
register("clamp", "lerp", "masked_fill", "addcmul", "addcdiv")
