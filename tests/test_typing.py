"""The types of all words: complete, as the two type checkers infer them, and true when the program runs.

The files in `tests/typing/` hold one `assert_type` for every public name; mypy and pyright read them, here they run.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pathlib
import subprocess
import sys
import types
import typing
from typing import Any

import pytest
import torch

import tensordict
from tensordict import LazyStackedTensorDict, TensorClass, TensorDict, TensorDictBase
from tensordict.core import walk
from tensordict.ops import cast, pointwise, reduce, rows

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "typing"
KINDS = {"dense": TensorDict, "lazy": LazyStackedTensorDict, "tensorclass": TensorClass}
PAGES = [*KINDS, "functions"]
# Where nothing is nested, the views of a dict answer to the same words and may stand for ours.
VIEWS: dict[Any, type] = {
    walk.KeysView: type({}.keys()),
    walk.ItemsView: type({}.items()),
    walk.ValuesView: type({}.values()),
}
# They wait for a GPU or for another process, or copy to where nobody can look.
NOT_RUN = {"cuda", "pin_memory", "pin_memory_", "record_stream"}
NOT_RUN |= {"make_memmap", "make_memmap_from_tensor", "make_memmap_from_storage"}


def load(page: str, prefix: str = "words_") -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"{prefix}{page}", FOLDER / f"{prefix}{page}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def lines(page: str) -> list[tuple[str, str]]:
    """Return the expression and the type of every line of a page."""
    tree = ast.parse((FOLDER / f"words_{page}.py").read_text(encoding="utf-8"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "assert_type"]
    return [(ast.unparse(call.args[0]), ast.unparse(call.args[1])) for call in calls]


def said(page: str) -> set[str]:
    """Return the names that the lines of a page are about."""
    nodes = [node for line, _ in lines(page) for node in ast.walk(ast.parse(line))]
    return {n.attr for n in nodes if isinstance(n, ast.Attribute)} | {n.id for n in nodes if isinstance(n, ast.Name)}


@pytest.mark.parametrize("page, kind", KINDS.items())
def test_every_word_has_a_line(page: str, kind: type) -> None:
    missing = sorted({name for name in dir(kind) if not name.startswith("_")} - said(page))
    assert not missing, f"add one assert_type to tests/typing/words_{page}.py for each of {missing}"


def test_every_function_has_a_line() -> None:
    missing = sorted(set(tensordict.__all__) - said("functions") - {"NestedKey"})
    assert not missing, f"add one assert_type to tests/typing/words_functions.py for each of {missing}"


def receiver(page: str, module: types.ModuleType) -> Any:
    node = TensorDict({"x": torch.rand(2, 3) + 0.1, "inner": {"y": torch.rand(2, 3, 4) + 0.1}}, [2, 3])
    node["z"] = node["x"].clone()
    if page == "lazy":
        return LazyStackedTensorDict(*(row.clone() for row in node.unbind(0)))
    if page == "tensorclass":
        return module.Sample.from_tensordict(node)
    return node


def fits(value: Any, wanted: Any) -> bool:
    """Tell whether a value is of a type; a lazy stack that a word had to join is a dense tensordict."""
    origin = typing.get_origin(wanted)
    if wanted is Any:
        return True
    if wanted is None:
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in typing.get_args(wanted))
    if wanted in VIEWS and isinstance(value, VIEWS[wanted]):
        return True
    return isinstance(value, TensorDictBase if wanted is LazyStackedTensorDict else origin or wanted)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("page", PAGES)
def test_every_line_is_true_when_it_runs(page: str, tmp_path: pathlib.Path) -> None:
    module = load(page)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    wrong = []
    for at, (line, wanted) in enumerate(lines(page)):
        if any(f"td.{name}(" in line for name in NOT_RUN):
            continue
        names = {**vars(module), "td": receiver(page, module), "mask": mask, "folder": str(tmp_path / str(at))}
        if ".load" in line and "(folder)" in line:
            names["td"].memmap(names["folder"])
        try:
            value = eval(line, names)
        except Exception as error:
            wrong.append(f"{line} raises {type(error).__name__}: {error}")
            continue
        if not fits(value, eval(wanted, names)):
            wrong.append(f"{line} is a {type(value).__name__}, not {wanted}")
    assert not wrong, "\n".join(wrong)


def test_every_shape_of_a_class_is_what_type_checkers_see() -> None:
    classes = load("classes", "")
    classes.check()


def test_mypy_infers_these_types() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- rows: methods that a factory makes have the signature of the protocol that types them

FACTORIES = [
    (rows.unary, rows.UnaryWord),
    (rows.predicate, rows.UnaryWord),
    (rows.binary, rows.BinaryWord),
    (rows.binary_, rows.BinaryInPlaceWord),
    (cast._cast, rows.CastRowWord),
    (reduce._reduction, rows.ReductionWord),
]
MODULES = (rows, pointwise, reduce, cast)


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in list(inspect.signature(function).parameters.values())[1:]]


@pytest.mark.parametrize("factory, word", FACTORIES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_row_takes_what_its_type_says(factory: Any, word: Any) -> None:
    made = [code for code in factory.__code__.co_consts if isinstance(code, types.CodeType) and "word" in code.co_name]
    found = [f for f in vars_of(TensorDict) if getattr(f, "__code__", None) in made]
    assert found
    for function in found:
        assert parameters(function) == parameters(word.__call__), function.__name__


def vars_of(kind: type) -> list[Any]:
    return [value for owner in kind.__mro__ for value in vars(owner).values()]


def test_every_row_factory_is_compared() -> None:
    compared = {factory for factory, _ in FACTORIES}
    made = {
        value.__qualname__ if inspect.isfunction(value) else ""
        for value in (getattr(module, name) for module in MODULES for name in dir(module))
        if inspect.isfunction(value) and "rows." in str(typing.get_type_hints(value).get("return"))
    }
    operators = {"_operator", "_in_place"}
    assert made == {factory.__qualname__ for factory in compared} | operators
