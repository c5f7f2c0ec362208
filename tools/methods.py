"""Write `docs/methods.md`: every public word by task, with its first sentence and a running example.

The page comes from the docstrings: `python tools/methods.py` writes it, `--check` only tells whether it is stale.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import pathlib
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import tensordict
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    PersistentTensorDict,
    TensorClass,
    TensorDict,
    TypedTensorDict,
)

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "methods.md"

# A word belongs to the task of the class that gives it, unless it is listed by name.
TASKS = {
    "Building": {"Make"},
    "Reading and setting keys": {"Keyed"},
    "Structure": {"Structure"},
    "Indexing": set(),
    "Shape": {"Shape"},
    "Pointwise": {"Pointwise"},
    "Reductions": {"Reduce"},
    "Dtype and device": {"Cast"},
    "Batch size, names and locks": {"Facts", "Lockable", "Core"},
    "Copies and conversions": {"Convert", "Describe"},
    "Joining": {"Join"},
    "Sharing and files": {"Store", "Load", "Mapped", "Consolidate", "Persist", "PersistentTensorDict"},
    "Parallel": {"Parallel"},
    "Ragged values": {"LazyStackedTensorDict"},
    "Non-tensors": {"Opaque", "NonTensor", "NonTensorDataBase", "NonTensorData", "NonTensorStack"},
    "Tensorclasses": {"TensorClass", "Declared", "TypedTensorDict"},
}
BY_NAME = {
    "Building": "from_schema",
    "Indexing": "gather gather_rows get_at index_select masked_select narrow set_at_ update_at_ copy_at_",
    "Batch size, names and locks": "auto_batch_size_",
    "Ragged values": "densify to_padded_tensor to_lazystack",
    "Non-tensors": "filter_non_tensor_data get_non_tensor is_non_tensor non_tensor_items set_non_tensor",
}
KINDS = (
    *(TensorDict, LazyStackedTensorDict, TensorClass, TypedTensorDict),
    *(NonTensorData, NonTensorStack, PersistentTensorDict),
)
VALUES = {
    "KEY_SEPARATOR": "What joins the parts of a nested key where it must be one string.",
    "NO_DEFAULT": "Stands for “raise when the key is missing” where a default can be given.",
    "NestedKey": "The type of a key: a string, or a tuple of keys.",
    "__version__": "The version of the package.",
}
HEAD = """\
# Methods by task

Every word of every container, with one sentence and an example that runs. The page is written from the docstrings by
`tools/methods.py`; `help(TensorDict.<word>)` says more: arguments, results and errors.

```python
{imports}
```
"""


def task_of(name: str, owner: str) -> str:
    """Return the task of a word that a class gives."""
    for task, names in BY_NAME.items():
        if name in names.split():
            return task
    for task, owners in TASKS.items():
        if owner in owners:
            return task
    raise SystemExit(f"{owner}.{name} has no task: add {owner!r} to TASKS in {__file__}")


def words() -> dict[str, dict[str, Any]]:
    """Return every public word of the containers and what it is bound to, by task."""
    found: dict[str, dict[str, Any]] = {task: {} for task in TASKS}
    seen: set[str] = set()
    for kind in KINDS:
        for owner in kind.__mro__:
            for name, value in vars(owner).items():
                if name.startswith("_") or name in seen or not documented(value):
                    continue
                seen.add(name)
                found[task_of(name, owner.__name__)][name] = value
    return found


def documented(value: Any) -> bool:
    """Tell whether a class attribute is a word: a method or a property, and no plain value."""
    return callable(value) or isinstance(value, (classmethod, staticmethod, property))


def functions() -> dict[str, Any]:
    """Return the functions and classes at the top of the package."""
    return {name: getattr(tensordict, name) for name in tensordict.__all__ if name not in VALUES}


def function_of(value: Any) -> Any:
    """Return the function that carries the docstring of a word."""
    if isinstance(value, property):
        return value.fget
    return getattr(value, "__func__", value)


def grouped(table: dict[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """Yield the names of each word, the one it is defined by first, with what they are bound to."""
    groups: dict[int, tuple[list[str], Any]] = {}
    for name, value in table.items():
        groups.setdefault(id(function_of(value)), ([], value))[0].append(name)
    for names, value in groups.values():
        own = getattr(function_of(value), "__name__", names[0])
        yield sorted(names, key=lambda name: name != own), value


def signature(name: str, value: Any) -> str:
    """Return how a word is written, without types."""
    if isinstance(value, property) or (isinstance(value, type) and issubclass(value, Exception)):
        return name
    told = inspect.signature(function_of(value))
    bare = [p.replace(annotation=p.empty) for p in told.parameters.values() if p.name not in ("self", "cls")]
    return f"{name}{told.replace(parameters=bare, return_annotation=told.empty)}"


def first_sentence(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())


def example(doc: str) -> list[str]:
    """Return the lines of the example, without the imports that the page begins with."""
    _, _, text = doc.partition("Examples:\n")
    lines = inspect.cleandoc(text).splitlines()
    ends = next((at for at, line in enumerate(lines) if re.match(r"[A-Z]\w+:$", line)), len(lines))
    return lines[:ends]


def joined(imports: set[str]) -> str:
    """Return import lines as one statement for each module."""
    modules: set[str] = set()
    names: dict[str, set[str]] = {}
    for line in imports:
        for node in ast.walk(ast.parse(line.removeprefix(">>> "))):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.setdefault(str(node.module), set()).update(alias.name for alias in node.names)
    lines = [f">>> import {module}" for module in sorted(modules)]
    for module, some in sorted(names.items()):
        rows = textwrap.wrap(", ".join(sorted(some)), 110)
        lines += [f">>> from {module} import (", *(f"...     {row}" for row in rows), "... )"]
    return "\n".join(lines)


def imports_of(lines: list[str]) -> list[str]:
    return [line for line in lines if re.match(r">>> (import|from) ", line)]


def entry(names: list[str], value: Any) -> str:
    """Return the part of the page on one word."""
    doc = inspect.getdoc(function_of(value)) or ""
    lines = example(doc)
    code = [line for line in lines if line not in imports_of(lines)]
    if not doc or not code:
        raise SystemExit(f"{names[0]} has no {'example' if doc else 'docstring'}")
    also = f" Also {', '.join(f'`{name}`' for name in names[1:])}." if names[1:] else ""
    title = f"### `{signature(names[0], value)}`"
    return "\n".join([title, "", first_sentence(doc) + also, "", "```python", *code, "```", ""])


def page() -> str:
    """Return the text of the page."""
    sections = {**words(), "Functions and classes": functions()}
    imports: set[str] = {">>> import torch"}
    parts = []
    for title, table in sections.items():
        parts.append(f"## {title}\n")
        for names, value in grouped(table):
            imports |= set(imports_of(example(inspect.getdoc(function_of(value)) or "")))
            parts.append(entry(names, value))
    values = "\n".join(f"- `{name}`: {text}" for name, text in VALUES.items())
    return "\n".join([HEAD.format(imports=joined(imports)), *parts, "## Values\n", values, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/methods.md from the docstrings.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is stale")
    text = page()
    if parser.parse_args().check:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text
        if stale:
            print(f"{PAGE} is stale: run `python tools/methods.py`", file=sys.stderr)
        return int(stale)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
