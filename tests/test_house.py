"""The house rules, as checks over the syntax trees of the package. Every rule is also shown to catch what it is for.

`docs/architecture.md` says what the floors are and why the rules are there.
"""

from __future__ import annotations

import ast
import io
import pathlib
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pytest

import tensordict

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src" / "tensordict"

# From the ground up. A module stands on the floor that names its first part below `tensordict`.
FLOORS = {
    "ground": {"_version", "aliases", "errors", "keys", "dims", "indexing", "meta", "settings"},
    "cellar": {"storage"},
    "core": {"core", "locks", "walk", "coerce"},
    "ops": {"ops"},
    "kinds": {"kinds"},
    "roof": {"roof", "data", "join", "collate", "nn", "interop", "cli", "utils", "base", "memmap", "tensorclass"}
    | {"tensordict", "functional", "persistent", "_td", "_lazy", "_unbatched", "_reductions"},
    "face": {""},
    "programs": {"__main__", "demo"},  # they use the package as its users do, through the face
}
OPTIONAL = {
    "cloudpickle",
    "ray",
    "fsspec",
    "h5py",
    "matplotlib",
    "pandas",
    "pyarrow",
    "rich",
    "safetensors",
    "sklearn",
    "tqdm",
    "zarr",
}
# Files that may ask whether a value is of some kind: the door and the walk.
MAY_ASK = {"coerce", "walk"}
# Kinds that users derive from.
OPEN_KINDS = {"TensorClass", "TypedTensorDict"}
# Bases of several kinds, never made themselves; a metaclass to say so would slow every `isinstance`.
BASES_OF_KINDS = {"Facade", "Opaque", "NonTensor", "NonTensorDataBase", "Declared", "Dataclass", "Schema", "Stored"}
FILE_CODE, FILE_LINES, FUNCTION_CODE, COMPLEXITY, PARAMETERS = 500, 900, 40, 10, 5
# Public names whose published signatures have more than five parameters, and `Loader`, whose options are its own.
PUBLISHED_SIGNATURES = set(
    """apply assert_close collate consolidate dumps from_csv from_dataclass from_dict from_dict_instance from_h5
    from_json
    from_lazy_stack from_list from_module from_pandas from_parquet from_schema from_storage from_store from_tensor
    from_tensordict from_zarr irecv isend istft iter_map lazy_stack load load_memmap map map_iter memmap memmap_
    memmap_like
    named_apply new_empty new_full new_ones new_zeros pad_sequence quantile recv reduce run_map save send stft
    tensorclass
    to_mds to_module to_store update
    AddStateIndependentNormalScale CompositeDistribution LazyStackedTensorDict LazyStackedTensorDictStore
    Loader MemoryMappedTensor NonTensorData PersistentTensorDict ProbabilisticTensorDictModule TensorDict
    TensorDictModule TensorDictStore""".split()
)
FORBIDDEN_AT_IMPORT = ("torch._dynamo", "pandas", "h5py", "zarr", "pyarrow", "tqdm")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file: `name` is its dotted name below the package, empty for the package itself."""

    name: str
    source: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def head(self) -> str:
        return self.name.partition(".")[0]

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    def at(self, node: ast.AST) -> str:
        place = self.name.replace(".", "/")
        path = "/".join(filter(None, [place, "__init__"])) if self.is_package else place
        return f"src/tensordict/{path}.py:{getattr(node, 'lineno', 1)}"

    @cached_property
    def functions(self) -> list[tuple[Function, str | None]]:
        """Every function with the name of the class it is a method of."""
        found: list[tuple[Function, str | None]] = []

        def visit(node: ast.AST, owner: str | None) -> None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, Function):
                    found.append((child, owner))
                    visit(child, None)
                else:
                    visit(child, child.name if isinstance(child, ast.ClassDef) else owner)

        visit(self.tree, None)
        return found

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @cached_property
    def code_lines(self) -> set[int]:
        """Numbers of the lines with code: no comment, blank line or docstring."""
        silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.source).readline):
            if token.type not in silent:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            text = docstring(node)
            if text is not None:
                lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
        return lines


Package = dict[str, Module]


def docstring(node: ast.AST) -> ast.Expr | None:
    """Return the statement that is the docstring of `node`."""
    if not isinstance(node, ast.Module | ast.ClassDef | Function) or not node.body:
        return None
    first = node.body[0]
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return first if is_text else None


def package(files: dict[str, str]) -> Package:
    """Read modules from a mapping of paths below the package to their text."""
    modules = {}
    for path, source in files.items():
        name = path.removesuffix(".py").replace("/", ".")
        is_package = name.rpartition(".")[2] == "__init__"
        name = name.removesuffix("__init__").rstrip(".")
        modules[name] = Module(name, source, is_package)
    return modules


def load() -> Package:
    return package({p.relative_to(SOURCE).as_posix(): p.read_text(encoding="utf-8") for p in SOURCE.rglob("*.py")})


# ---- what a module imports


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(
    node: ast.AST, inside: Function | None = None
) -> Iterator[tuple[ast.Import | ast.ImportFrom, Function | None]]:
    """Every import that runs, with the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, inside
        elif is_type_checking(child):
            for other in child.orelse:  # type: ignore[attr-defined]
                yield from imports(ast.Module([other], []), inside)
        else:
            yield from imports(child, child if isinstance(child, Function) else inside)


def targets(module: Module, node: ast.Import | ast.ImportFrom, modules: Package) -> list[str]:
    """Return the absolute dotted names of the modules that an import names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        own = ["tensordict", *module.name.split(".")] if module.name else ["tensordict"]
        up = node.level - 1 if module.is_package else node.level
        base = ".".join(own[: len(own) - up] + ([base] if base else []))
    inner = [f"{base}.{alias.name}" for alias in node.names]
    below = [name for name in inner if name.removeprefix("tensordict.") in modules and name.startswith("tensordict.")]
    return below if len(below) == len(inner) else [base, *below]


def own_name(target: str) -> str | None:
    """Return the name below the package, or None for a foreign module."""
    return target.partition(".")[2] if target.partition(".")[0] == "tensordict" else None


def floor(name: str) -> int | None:
    head = name.partition(".")[0]
    return next((number for number, heads in enumerate(FLOORS.values()) if head in heads), None)


def own_imports(module: Module, modules: Package) -> Iterator[tuple[ast.AST, str]]:
    for node, _ in imports(module.tree):
        for target in targets(module, node, modules):
            name = own_name(target)
            if name is not None:
                yield node, name


# ---- the rules: each takes the package and returns what is wrong


def every_module_stands_on_a_floor(modules: Package) -> list[str]:
    return [
        f"{m.at(m.tree)}: `{m.name}` stands on no floor; give it one in FLOORS or move it"
        for m in modules.values()
        if floor(m.name) is None
    ]


def imports_run_downward(modules: Package) -> list[str]:
    wrong = []
    names = list(FLOORS)
    for module in modules.values():
        here = floor(module.name)
        for node, name in own_imports(module, modules):
            there = floor(name)
            if here is None or there is None:
                continue  # every_module_stands_on_a_floor speaks of it
            if there > here:
                wrong.append(
                    f"{module.at(node)}: {names[here]} imports `{name or 'tensordict'}` of {names[there]}, above it"
                )
    return wrong


def imports_make_no_cycle(modules: Package) -> list[str]:
    graph = {
        m.name: sorted({name for _, name in own_imports(m, modules) if name in modules and name != m.name})
        for m in modules.values()
    }
    done: set[str] = set()
    wrong = []

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            circle = [*path[path.index(name) :], name]
            wrong.append(f"{modules[name].at(modules[name].tree)}: imports go round: {' -> '.join(circle)}")
        elif name not in done:
            for other in graph[name]:
                visit(other, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    return wrong


def no_import_inside_a_function(modules: Package) -> list[str]:
    wrong = []
    for module in modules.values():
        for node, inside in imports(module.tree):
            if inside is None or (module.name == "" and inside.name == "__getattr__"):
                continue
            foreign = [t for t in targets(module, node, modules) if t.partition(".")[0] not in OPTIONAL]
            if foreign:
                wrong.append(f"{module.at(node)}: `{inside.name}` imports {', '.join(foreign)}; move it to the top")
    return wrong


def files_are_short(modules: Package) -> list[str]:
    wrong = []
    for module in modules.values():
        code, lines = len(module.code_lines), len(module.source.splitlines())
        if code > FILE_CODE or lines > FILE_LINES:
            text = f"{code} code lines (at most {FILE_CODE}), {lines} in all (at most {FILE_LINES})"
            wrong.append(f"{module.at(module.tree)}: {text}")
    return wrong


def functions_are_short(modules: Package) -> list[str]:
    wrong = []
    for module in modules.values():
        for function, _ in module.functions:
            code = len(module.code_lines.intersection(range(function.lineno, (function.end_lineno or 0) + 1)))
            if code > FUNCTION_CODE:
                wrong.append(f"{module.at(function)}: `{function.name}` has {code} code lines, at most {FUNCTION_CODE}")
    return wrong


def branches(node: ast.AST) -> int:
    """Count the places where a function decides, without those of the functions inside it."""
    count = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda | ast.ClassDef):
            continue
        deciding = ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.match_case
        count += isinstance(child, deciding) + branches(child)
        count += len(child.ifs) if isinstance(child, ast.comprehension) else 0
    return count


def functions_are_simple(modules: Package) -> list[str]:
    return [
        f"{m.at(f)}: `{f.name}` has a complexity of {1 + branches(f)}, at most {COMPLEXITY}"
        for m in modules.values()
        for f, _ in m.functions
        if 1 + branches(f) > COMPLEXITY
    ]


def short_name(node: ast.AST) -> str:
    """Return `C` for the expressions `C`, `m.C` and `C[T]`."""
    if isinstance(node, ast.Subscript):
        return short_name(node.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def kinds(modules: Package) -> dict[str, Module]:
    """Return the kinds and where they live: classes of the kinds floor derived from one of core or of `collection`."""
    roots = {
        c.name
        for m in modules.values()
        if m.head in FLOORS["core"] or m.name == "kinds.collection"
        for c in m.classes
        if "Protocol" not in map(short_name, c.bases)
    }
    found: dict[str, Module] = {}
    while True:
        new = {
            c.name: m
            for m in modules.values()
            if m.head in FLOORS["kinds"] and m.name != "kinds.collection"
            for c in m.classes
            if c.name not in found and any(short_name(base) in roots | set(found) for base in c.bases)
        }
        if not new:
            return found
        found |= new


def asked(node: ast.AST) -> Iterator[str]:
    """Yield the names of the classes that an expression or pattern asks a value for."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
        yield from (short_name(part) for part in ast.walk(node.args[1]))
    elif isinstance(node, ast.MatchClass):
        yield short_name(node.cls)
    elif isinstance(node, ast.Compare) and any(
        isinstance(side, ast.Call) and short_name(side.func) == "type" for side in [node.left, *node.comparators]
    ):
        yield from (short_name(part) for side in [node.left, *node.comparators] for part in ast.walk(side))


def nobody_asks_for_a_kind(modules: Package) -> list[str]:
    homes = kinds(modules)
    return [
        f"{m.at(node)}: asks for the kind `{name}`; say a verb to it, or ask in the door or the walk"
        for m in modules.values()
        if m.last not in MAY_ASK
        for node in ast.walk(m.tree)
        for name in sorted(set(asked(node)))
        if name in homes and homes[name] is not m
    ]


def nobody_asks_for_the_compiler(modules: Package) -> list[str]:
    words = {"is_compiling", "is_dynamo_compiling"}
    wrong = []
    for module in modules.values():
        for node in ast.walk(module.tree):
            name = node.name if isinstance(node, ast.alias) else short_name(node)
            if name.rpartition(".")[2] in words:
                wrong.append(f"{module.at(node)}: `{name}`: the same code runs compiled and not")
    return wrong


def concrete_kinds_are_final(modules: Package) -> list[str]:
    wrong = []
    for name, module in kinds(modules).items():
        node = next(c for c in module.classes if c.name == name)
        marks = {short_name(d) for d in node.decorator_list}
        abstract = {short_name(base) for base in node.bases} & {"ABC", "Protocol"} or any(
            short_name(d) == "abstractmethod" for f in node.body if isinstance(f, Function) for d in f.decorator_list
        )
        if "final" not in marks and not abstract and name not in OPEN_KINDS | BASES_OF_KINDS:
            wrong.append(f"{module.at(node)}: the kind `{name}` is neither abstract nor `@final`")
    return wrong


class Normal(ast.NodeTransformer):
    """Give parameters and local variables the names of their order, so that copies look alike."""

    def __init__(self, function: Function) -> None:
        stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.local = stored | {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
        self.seen: dict[str, str] = {}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id not in self.local:
            return node
        return ast.Name(self.seen.setdefault(node.id, f"v{len(self.seen)}"), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.seen.setdefault(node.arg, f"v{len(self.seen)}"))


def normal_body(function: Function) -> str | None:
    """Return the body in normal form, or None when it has fewer than three statements."""
    first = 1 if docstring(function) else 0
    body = ast.parse(ast.unparse(function)).body[0].body[first:]  # type: ignore[attr-defined]
    if sum(isinstance(node, ast.stmt) for statement in body for node in ast.walk(statement)) < 3:
        return None
    normal = Normal(function)
    return "\n".join(ast.dump(normal.visit(statement)) for statement in body)


def no_body_stands_twice(modules: Package) -> list[str]:
    seen: dict[str, str] = {}
    wrong = []
    for module in modules.values():
        for function, _ in module.functions:
            body = normal_body(function)
            if body is None:
                continue
            here = f"{module.at(function)} `{function.name}`"
            if body in seen:
                wrong.append(f"{here}: the same body as {seen[body]}; make it a row")
            seen.setdefault(body, here)
    return wrong


def few_parameters(modules: Package) -> list[str]:
    wrong = []
    for module in modules.values():
        for function, owner in module.functions:
            every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            chosen = [arg.arg for arg in every if arg.arg not in ("self", "cls")]
            public = owner if function.name in ("__init__", "__new__") else function.name
            if len(chosen) > PARAMETERS and public not in PUBLISHED_SIGNATURES:
                wrong.append(f"{module.at(function)}: `{public}` has {len(chosen)} parameters, at most {PARAMETERS}")
    return wrong


Rule = Callable[[Package], list[str]]
RULES: list[Rule] = [
    every_module_stands_on_a_floor,
    imports_run_downward,
    imports_make_no_cycle,
    no_import_inside_a_function,
    files_are_short,
    functions_are_short,
    functions_are_simple,
    nobody_asks_for_a_kind,
    nobody_asks_for_the_compiler,
    concrete_kinds_are_final,
    no_body_stands_twice,
    few_parameters,
]


@pytest.fixture(scope="module")
def modules() -> Package:
    return load()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule, modules: Package) -> None:
    assert modules, f"no module found in {SOURCE}"
    wrong = rule(modules)
    assert not wrong, "\n" + "\n".join(wrong)


IMPORT_COST = """
import sys, torch
before = set(sys.modules)
import tensordict
print(*sorted(set(sys.modules) - before))
"""


def test_import_pulls_in_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_COST], capture_output=True, text=True, check=True)
    new = done.stdout.split()
    assert "tensordict" in new
    heavy = [name for name in new if name.startswith(FORBIDDEN_AT_IMPORT)]
    assert not heavy, f"`import tensordict` also imports {heavy[:10]}"


@pytest.mark.parametrize("on", [True, False])
def test_import_leaves_the_collector_as_it_was(on: bool) -> None:
    code = f"import gc; gc.{'enable' if on else 'disable'}(); import tensordict; print(gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(on)


def test_the_version_is_the_one_of_the_newest_changes() -> None:
    changes = (SOURCE.parent.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changes.partition("\n## ")[2].splitlines()[0] == tensordict.__version__


# ---- every rule is seen to catch what it is for, and to leave alone what is close to it

CORE = {"core/core.py": "class Core: ...", "kinds/dense.py": "@final\nclass Dense(Core): ..."}
LONG_BODY = "def f():\n" + "    x = 1\n" * 40
TWIN = "    {0} = len({1})\n    if {0}:\n        return {0} + 1\n"

BAD: list[tuple[Rule, dict[str, str], str]] = [
    (every_module_stands_on_a_floor, {"misc.py": ""}, "src/tensordict/misc.py:1: `misc`"),
    (imports_run_downward, {"keys.py": "\nfrom tensordict.ops import rows"}, "src/tensordict/keys.py:2: ground"),
    (imports_run_downward, {"keys.py": "from . import ops", "ops/__init__.py": ""}, "imports `ops` of ops"),
    (imports_run_downward, {"storage/memmap.py": "from ..core.walk import keys"}, "imports `core.walk` of core"),
    (imports_run_downward, {"storage/__init__.py": "from ..core import walk"}, "imports `core` of core"),
    (imports_run_downward, {"kinds/dense.py": "import tensordict"}, "imports `tensordict` of face"),
    (imports_run_downward, {"kinds/dense.py": "from tensordict import TensorDict"}, "imports `tensordict` of face"),
    (imports_run_downward, {"ops/a.py": "def f():\n    import tensordict.kinds"}, "ops/a.py:2"),
    (imports_run_downward, {"ops/a.py": "if TYPE_CHECKING:\n    pass\nelse:\n    from ..kinds import a"}, "a.py:4"),
    (
        imports_make_no_cycle,
        {"keys.py": "from . import dims", "dims.py": "from .keys import x"},
        "keys -> dims -> keys",
    ),
    (no_import_inside_a_function, {"keys.py": "def f():\n    import json"}, "keys.py:2: `f` imports json"),
    (no_import_inside_a_function, {"keys.py": "class A:\n    def f(self):\n        from . import dims"}, "keys.py:3"),
    (no_import_inside_a_function, {"keys.py": "def __getattr__(n):\n    import json"}, "`__getattr__` imports json"),
    (files_are_short, {"keys.py": "x = 1\n" * 501}, "501 code lines"),
    (files_are_short, {"keys.py": "# why\n" * 901}, "901 in all"),
    (functions_are_short, {"keys.py": LONG_BODY}, "keys.py:1: `f` has 41 code lines"),
    (functions_are_simple, {"keys.py": "def f(x):\n" + "    if x: pass\n" * 10}, "complexity of 11"),
    (functions_are_simple, {"keys.py": "def f(x):\n" + "    y = [1 if i else 2 for i in x if i]\n" * 5}, "of 11"),
    (
        nobody_asks_for_a_kind,
        CORE | {"ops/a.py": "\nisinstance(x, (int, Dense))"},
        "ops/a.py:2: asks for the kind `Dense`",
    ),
    (nobody_asks_for_a_kind, CORE | {"ops/a.py": "isinstance(x, dense.Dense | int)"}, "`Dense`"),
    (nobody_asks_for_a_kind, CORE | {"kinds/lazy.py": "type(x) is Dense"}, "kinds/lazy.py:1"),
    (nobody_asks_for_a_kind, CORE | {"ops/a.py": "match x:\n    case Dense(): pass"}, "ops/a.py:2"),
    (nobody_asks_for_the_compiler, {"keys.py": "torch.compiler.is_compiling()"}, "keys.py:1: `is_compiling`"),
    (nobody_asks_for_the_compiler, {"keys.py": "from torch.compiler import is_dynamo_compiling as c"}, "keys.py:1"),
    (
        concrete_kinds_are_final,
        {**CORE, "kinds/lazy.py": "\nclass Lazy(Core): ..."},
        "kinds/lazy.py:2: the kind `Lazy`",
    ),
    (concrete_kinds_are_final, {**CORE, "kinds/lazy.py": "class Lazy(dense.Dense[T]): ..."}, "the kind `Lazy`"),
    (
        no_body_stands_twice,
        {
            "keys.py": "def f(a):\n" + TWIN.format("n", "a"),
            "dims.py": "def g(b):\n    'Doc.'\n" + TWIN.format("m", "b"),
        },
        "`g`: the same body as src/tensordict/keys.py:1 `f`",
    ),
    (few_parameters, {"keys.py": "def f(a, b, /, c, d, *, e, g): ..."}, "`f` has 6 parameters"),
    (few_parameters, {"keys.py": "class A:\n    def __init__(self, a, b, c, d, e, f): ..."}, "keys.py:2: `A` has 6"),
]

GOOD: list[tuple[Rule, dict[str, str]]] = [
    (every_module_stands_on_a_floor, {"__init__.py": "", "demo.py": "", "kinds/lazy.py": ""}),
    (
        imports_run_downward,
        {"kinds/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tensordict"},
    ),
    (imports_run_downward, {"kinds/a.py": "from ..ops import rows\nfrom . import b\nimport torch"}),
    (imports_run_downward, {"demo.py": "from tensordict import TensorDict", "__init__.py": "from .nn import x"}),
    (imports_run_downward, {"core/core.py": "from tensordict import keys", "keys.py": "", "__init__.py": ""}),
    (imports_make_no_cycle, {"keys.py": "from . import dims, meta", "dims.py": "from . import meta", "meta.py": ""}),
    (no_import_inside_a_function, {"keys.py": "import json\ndef f():\n    import h5py\n    from zarr.codecs import x"}),
    (no_import_inside_a_function, {"__init__.py": "def __getattr__(name):\n    from . import nn"}),
    (files_are_short, {"keys.py": '"""Doc.\n' + "\n" * 390 + '"""\n' + "# why\n\n" + "x = 1\n" * 500}),
    (functions_are_short, {"keys.py": LONG_BODY.replace("1\n", "1\n    # why\n\n", 30).replace("    x = 1\n", "", 1)}),
    (functions_are_simple, {"keys.py": "def f(x):\n" + "    if x: pass\n" * 9 + "    def g():\n        if x: pass"}),
    (nobody_asks_for_a_kind, {**CORE, "core/coerce.py": "isinstance(x, Dense)", "ops/a.py": "isinstance(x, Core)"}),
    (nobody_asks_for_a_kind, {**CORE, "kinds/dense.py": CORE["kinds/dense.py"] + "\nisinstance(x, Dense)"}),
    (nobody_asks_for_the_compiler, {"keys.py": "is_compiled = 1"}),
    (
        concrete_kinds_are_final,
        {**CORE, "kinds/a.py": "class F(Core, ABC): ...\n@typing.final\nclass G(F): ...\nclass H: ..."},
    ),
    (concrete_kinds_are_final, {**CORE, "kinds/a.py": "class TensorClass(Core): ..."}),
    (no_body_stands_twice, {"keys.py": "def f(a):\n" + TWIN.format("n", "a") + "def g(a):\n" + TWIN.format("n", "b")}),
    (
        few_parameters,
        {"keys.py": "class A:\n    def map(self, a, b, c, d, e, f): ...\ndef g(a, b, c, d, e, *f, **h): ..."},
    ),
]


@pytest.mark.parametrize("rule, files, message", BAD)
def test_the_rule_catches(rule: Rule, files: dict[str, str], message: str) -> None:
    wrong = rule(package(files))
    assert len(wrong) == 1
    assert message in wrong[0]


@pytest.mark.parametrize("rule, files", GOOD)
def test_the_rule_leaves_alone(rule: Rule, files: dict[str, str]) -> None:
    assert rule(package(files)) == []


def test_every_rule_is_shown_both_ways() -> None:
    assert {rule for rule, *_ in BAD} == {rule for rule, _ in GOOD} == set(RULES)
