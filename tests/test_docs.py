"""Every example that a reader can see runs: in the README, in the pages, and in the docstrings."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tensordict"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(
    ".".join(["tensordict", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.stem != "__main__"
)
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```[ \t]*$", re.M | re.S)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
SCRIPT_SECONDS = 240


@dataclass(frozen=True)
class Block:
    """One piece of Python on a page."""

    page: str
    line: int
    source: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, text: str) -> list[Block]:
    """Return the Python blocks of a page that are meant to run."""
    found = []
    for match in FENCE.finditer(text):
        words = match["info"].split()
        if words[:1] != ["python"] or "no-run" in words:
            continue
        cut = len(match["indent"])
        source = "".join(line[cut:] if line.strip() else "\n" for line in match["body"].splitlines(keepends=True))
        found.append(Block(page, text.count("\n", 0, match.start("body")) + 1, source))
    return found


def run_doctest(test: doctest.DocTest) -> None:
    report = io.StringIO()
    result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.write, clear_globs=False)
    assert result.failed == 0, report.getvalue()


def run_block(block: Block, names: dict[str, Any], folder: pathlib.Path) -> None:
    """Run a script as a program, an interactive example as a doctest, and anything else in the page's namespace."""
    if "if __name__ ==" in block.source:
        script = folder / f"script_{block.line}.py"
        script.write_text(block.source)
        command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SCRIPT_SECONDS, cwd=folder)
        assert done.returncode == 0, f"{block.place} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    elif block.source.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(block.source, names, block.place, block.page, block.line - 1)
        run_doctest(test)
        names.update(test.globs)  # it ran in a copy
    else:
        code = compile("\n" * (block.line - 1) + block.source, block.page, "exec", dont_inherit=True)
        exec(code, names)


def run_page(page: str, text: str, folder: pathlib.Path) -> int:
    """Run the blocks of a page in order, in one namespace, and return how many there were."""
    names: dict[str, Any] = {"__name__": "page"}
    found = blocks(page, text)
    for block in found:
        with contextlib.redirect_stdout(io.StringIO()):
            run_block(block, names, folder)
    return len(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_page_runs(page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(str(page), page.read_text(encoding="utf-8"), tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_the_page_lead_somewhere(page: pathlib.Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing, f"{page} links to {missing}"


@pytest.mark.parametrize("name", MODULES)
def test_the_docstrings_run(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        run_doctest(test)


def test_there_is_something_to_run() -> None:
    assert blocks("README.md", PAGES[0].read_text(encoding="utf-8"))
    assert "tensordict" in MODULES


# ---- the runner itself


@pytest.mark.parametrize(
    "text",
    [
        "```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n",
        "```python\n>>> 1 + 1\n3\n```\n",
        "- item\n  ```python\n  assert False\n  ```\n",
        "```python\nimport sys\nif __name__ == '__main__':\n    sys.exit(3)\n```\n",
        "```python\nimport warnings\nif __name__ == '__main__':\n    warnings.warn('old')\n```\n",
    ],
)
def test_a_wrong_example_is_noticed(text: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(AssertionError):
        run_page("page.md", text, tmp_path)


def test_the_blocks_of_a_page_share_their_names(tmp_path: pathlib.Path) -> None:
    text = """
```python
x = 1
```
```python no-run
raise SystemExit
```
```sh
exit 1
```
```python
>>> x + 1
2
>>> y = 3
```
```python
assert (x, y) == (1, 3)
```
"""
    assert run_page("page.md", text, tmp_path) == 3
