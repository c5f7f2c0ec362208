"""What users read when something is wrong: the key or index, what was expected, what was got. Nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict import LazyStackedTensorDict, NonTensorStack, TensorClass, TensorDict, lazy_stack


class Sample(TensorClass):
    x: Any
    y: Any = None


class Other(TensorClass):
    x: Any


def dense() -> TensorDict:
    return TensorDict({"x": torch.zeros(2, 3), "n": {"y": torch.zeros(2)}, "w": NonTensorStack("a", "b")}, [2])


def lazy() -> Any:
    return LazyStackedTensorDict(*(row.clone() for row in dense().unbind(0)))


def snapshot(td: Any) -> dict[Any, Any]:
    leaves = {key: value.clone() for key, value in td.items(True, True)}
    return {"keys": set(td.keys(True)), "batch": td.batch_size, "names": td.names, "words": td["w"][:], **leaves}


def assert_unchanged(td: Any, before: dict[Any, Any]) -> None:
    after = snapshot(td)
    assert after.keys() == before.keys()
    for key, value in before.items():
        assert torch.equal(after[key], value) if isinstance(value, torch.Tensor) else after[key] == value, key


# What is done, the error, and what its text says.
WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "set a wrong batch": (lambda td: td.set("z", torch.zeros(3)), RuntimeError, r"'z'.*\[2\].*\[3\]"),
    "set without batch": (lambda td: td.set("z", 1), RuntimeError, r"'z'.*\[2\].*\[\].*expand"),
    "set a nested wrong batch": (lambda td: td.set(("n", "z"), torch.zeros(3)), RuntimeError, r"'z'.*\[2\].*\[3\]"),
    "set a node of a wrong batch": (lambda td: td.set("z", TensorDict({}, [3])), RuntimeError, r"'z'.*\[2\].*\[3\]"),
    "set a dict of a wrong batch": (lambda td: td.set("z", {"q": torch.zeros(3)}), RuntimeError, r"'q'.*\[2\].*\[3\]"),
    "set below a leaf": (lambda td: td.set(("x", "z"), torch.zeros(2)), KeyError, r"'x'.*tensor"),
    "set a number as key": (lambda td: td.set(1, torch.zeros(2)), KeyError, r"string.*1.*int"),
    "set an empty key": (lambda td: td.set((), torch.zeros(2)), KeyError, r"non-empty tuple"),
    "read a missing key": (lambda td: td["z"], KeyError, r"'z' not found.*'n', 'w', 'x'"),
    "read a missing nested key": (lambda td: td["n", "z"], KeyError, r"'z' not found.*'y'"),
    "read below a leaf": (lambda td: td["x", "z"], KeyError, r"'x' holds a tensor"),
    "delete a missing key": (lambda td: td.del_("z"), KeyError, r"'z' not found"),
    "pop a missing key": (lambda td: td.pop("z"), KeyError, r"'z' not found"),
    "rename a missing key": (lambda td: td.rename_key_("z", "x"), KeyError, r"'z' not found"),
    "rename onto a key": (lambda td: td.rename_key_("x", "n", safe=True), KeyError, r"'x' to 'n'"),
    "select a missing key": (lambda td: td.select("x", "z", inplace=True), KeyError, r"'z' not found"),
    "set_ a missing key": (lambda td: td.set_("z", torch.zeros(2)), KeyError, r"'z' not found"),
    "set_ a wrong shape": (lambda td: td.set_("x", torch.zeros(2, 4)), RuntimeError, r"'x'.*3\].*4\]"),
    "update_ a missing key": (lambda td: td.update_({"x": torch.ones(2, 3), "z": 1}), KeyError, r"'z' not found"),
    "update with a list": (lambda td: td.update([1]), TypeError, r"mapping.*\[1\].*list"),
    "index out of range": (lambda td: td[2], IndexError, r"index 2 .*dim 0 of size 2"),
    "index too deep": (lambda td: td[0, 0], IndexError, r"too many indices.*\[2\]"),
    "index by a float": (lambda td: td[0.5], TypeError, r"0\.5.*float"),
    "write out of range": (lambda td: td.__setitem__(2, 1), IndexError, r"index 2 .*dim 0 of size 2"),
    "write a wrong shape": (
        lambda td: td.__setitem__(0, TensorDict({"n": {"y": torch.ones(())}, "x": torch.ones(4)})),
        RuntimeError,
        r"'x'.*\[3\].*\[4\]",
    ),
    "write a wrong batch": (
        lambda td: td.__setitem__(slice(0, 2), dense()[[0, 1, 0]] + 1),
        RuntimeError,
        r"\[3\].*\[2\]",
    ),
    "write a leaf on a node": (
        lambda td: td.__setitem__(0, TensorDict({"x": torch.ones(3), "n": torch.ones(())})),
        TypeError,
        r"'n'.*tensor",
    ),
    "set a batch size": (lambda td: setattr(td, "batch_size", [2, 3]), RuntimeError, r"\[2, 3\].*\[2\]"),
    "set a negative batch size": (lambda td: setattr(td, "batch_size", [-1]), ValueError, r"negative.*-1"),
    "set too many names": (lambda td: setattr(td, "names", ["a", "b"]), RuntimeError, r"1 names.*\['a', 'b'\]"),
    "reshape": (lambda td: td.reshape(3), RuntimeError, r"\[3\].*2 elements"),
    "view two holes": (lambda td: td.view(-1, -1), RuntimeError, r"only one.*\[-1, -1\]"),
    "expand": (lambda td: td.expand(3), RuntimeError, r"\[2\] to \[3\]"),
    "unsqueeze": (lambda td: td.unsqueeze(2), IndexError, r"dim 2 .*\[-2, 1\]"),
    "transpose": (lambda td: td.transpose(0, 1), IndexError, r"dim 1 .*\[-1, 0\]"),
    "permute": (lambda td: td.permute(0, 0), RuntimeError, r"more than once.*\(0, 0\)"),
    "split": (lambda td: td.split([1, 2]), RuntimeError, r"sum to 2.*\[1, 2\]"),
    "split by zero": (lambda td: td.split(0), RuntimeError, r"positive.*0"),
    "chunk": (lambda td: td.chunk(0), ValueError, r"at least 1.*0"),
    "narrow": (lambda td: td.narrow(0, 1, 2), RuntimeError, r"1 to 3.*size 2"),
    "sum": (lambda td: td.sum(1), IndexError, r"dim 1 .*\[-1, 0\]"),
    "add other keys": (lambda td: td + td.exclude("x"), KeyError, r"'x'.*only on the left"),
    "add other keys in place": (lambda td: td.add_(td.exclude("n")), KeyError, r"'n'"),
    "add a wrong tensor": (lambda td: td + torch.zeros(5), RuntimeError, r"\[5\].*\[2\]"),
    "add a wrong tensor in place": (lambda td: td.add_(torch.zeros(5)), RuntimeError, r"\[5\].*\[2\]"),
    "bool": (lambda td: bool(td), RuntimeError, r"ambiguous.*all\(\)"),
    "stack with a tensor": (lambda td: torch.stack([td, torch.zeros(2)]), TypeError, r"number 1"),
    "stack other keys": (lambda td: torch.stack([td, td.exclude("x")]), KeyError, r"'x'"),
    "stack other shapes": (
        lambda td: torch.stack([td.select("x"), TensorDict({"x": torch.zeros(2, 4)}, [2])]),
        RuntimeError,
        r"'x'.*\[2, 3\], \[2, 4\]",
    ),
    "stack at no dim": (lambda td: torch.stack([td, td], 3), IndexError, r"dim 3 .*\[-2, 1\]"),
    "cat other keys": (lambda td: torch.cat([td, td.exclude("x")]), KeyError, r"'x'"),
    "lazy stack of other ranks": (lambda td: lazy_stack([td, td[0]]), RuntimeError, r"1 batch dims.*number 1"),
}
LAZY_DOES = {"stack other keys", "stack other shapes", "cat other keys"}  # members may differ


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("make", [dense, lazy])
def test_what_is_wrong_is_said_and_changes_nothing(make: Any, name: str) -> None:
    call, kind, text = WRONG[name]
    td = make()
    before = snapshot(td)
    if make is lazy and name in LAZY_DOES:
        call(td)
    else:
        with pytest.raises(kind, match="(?s)" + text):
            call(td)
    assert_unchanged(td, before)


@pytest.mark.parametrize(
    "build, kind, text",
    [
        (lambda: TensorDict({"x": torch.zeros(3)}, [2]), RuntimeError, r"'x'.*\[2\].*\[3\]"),
        (lambda: TensorDict({"a": {"x": torch.zeros(3)}}, [2]), RuntimeError, r"'x'.*\[2\].*\[3\]"),
        (lambda: TensorDict({1: torch.zeros(3)}), KeyError, r"string.*1"),
        (lambda: TensorDict({}, "ab"), TypeError, r"batch_size.*'ab'"),
        (lambda: TensorDict({}, [1.5]), TypeError, r"batch_size.*1\.5"),
        (lambda: TensorDict({}, [-2]), ValueError, r"-2"),
        (lambda: TensorDict([1]), TypeError, r"mapping.*\[1\]"),
        (lambda: TensorDict({"x": 1}, y=2), TypeError, r"not both.*'y'"),
        (lambda: TensorDict({}, [2], names=["a", "b"]), RuntimeError, r"1 names.*'a', 'b'"),
        (lambda: TensorDict({}, [2, 2], names=["a", "a"]), RuntimeError, r"differ.*'a', 'a'"),
        (lambda: LazyStackedTensorDict(), RuntimeError, r"at least one"),
        (lambda: LazyStackedTensorDict(TensorDict({}), stack_dim=1), IndexError, r"stack_dim 1"),
        (lambda: TensorDict.stack([]), RuntimeError, r"at least one"),
        (lambda: Sample(1, 2, 3), TypeError, r"3 positional.*4 were given"),
        (lambda: Sample(), TypeError, r"missing.*'x'"),
        (lambda: Sample(x=1, z=2), TypeError, r"'z'.*'x', 'y'"),
        (lambda: Sample(1, x=2), TypeError, r"multiple.*'x'"),
        (lambda: torch.stack([Sample(x=1), Other(x=1)]), TypeError, r"Sample and a Other"),
        (lambda: Sample.from_tensordict(TensorDict({"q": 1})), KeyError, r"'q'.*'x', 'y'"),
        (lambda: setattr(Sample(x=1), "z", 1), AttributeError, r"'z'.*'x', 'y'"),
        (lambda: Sample(x=torch.zeros(2), batch_size=[3]), RuntimeError, r"'x'.*\[3\].*\[2\]"),
        (lambda: iter(TensorDict({})), TypeError, r"without batch dims"),
    ],
)
def test_what_cannot_be_built_says_why(build: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match="(?s)" + text):
        build()


def test_ragged_values_say_how_to_read_them() -> None:
    ragged = lazy_stack([TensorDict({"x": torch.zeros(n)}) for n in (1, 2)])
    with pytest.raises(RuntimeError, match=r"'x'.*\[1\], \[2\].*as_padded_tensor"):
        ragged["x"]
    with pytest.raises(RuntimeError, match=r"'x'.*\[1\], \[2\]"):
        ragged.contiguous()
    assert [part.shape[0] for part in ragged.get("x", as_list=True)] == [1, 2]


@pytest.mark.parametrize("values", [(torch.ones(1), "a"), ("a", torch.ones(1)), (torch.ones(1), TensorDict({}))])
def test_tensors_and_other_values_at_one_key_are_read_one_by_one(values: Any) -> None:
    stack = lazy_stack([TensorDict({"x": value, "y": 1}) for value in values])
    assert "x: mixed" in repr(stack)
    assert stack["y"].tolist() == [1, 1]
    with pytest.raises(TypeError, match=r"'x': some are tensors.*as_list=True"):
        stack["x"]
    assert len(stack.get("x", as_list=True)) == 2


def test_joining_is_refused_before_anything_is_joined() -> None:
    one, two = dense(), dense()
    before = snapshot(one)
    with pytest.raises(RuntimeError, match=r"\[2\].*number 1 has \[1, 2\]"):
        torch.stack([one, two.unsqueeze(0)])
    with pytest.raises(RuntimeError, match=r"dim 0.*\[2\].*\[1, 2\]"):
        torch.cat([one, two.unsqueeze(0)])
    assert_unchanged(one, before)


def test_an_error_deep_in_a_tree_is_found_once() -> None:
    td = TensorDict({"x": torch.zeros(2)}, [2])
    for _ in range(12):
        td = TensorDict({"n": td}, [2])
    said: list[Any] = []

    def refuse(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value._resize(refuse, (2,))
        said.append(value)
        raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        td._resize(refuse, (2,))
    assert len(said) == 1
