"""The benchmark runs and prints every row; how long anything takes is not looked at."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"


def test_every_row_runs_and_lands_in_the_page(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- benchmark -->\nold\n<!-- /benchmark -->\n\nAfter.\n")
    command = [sys.executable, str(BENCHMARKS / "run.py"), "--quick", "--write", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    names = re.findall(r'^    Case\(\s*["\'](.+?)["\'],', (BENCHMARKS / "cases.py").read_text(), re.M)
    assert len(names) > 10
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0].removeprefix("| ") for line in rows[2:]] == [
        *names,
        "`import tensordict` after `import torch`",
    ]
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("\n\nAfter.\n")
    assert "\n".join(rows) in text
    assert "old" not in text


def test_a_page_without_a_block_is_refused_before_anything_runs(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Nothing here.\n")
    command = [sys.executable, str(BENCHMARKS / "run.py"), "--quick", "--write", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert "has no block" in done.stderr
    assert page.read_text() == "Nothing here.\n"


def test_every_row_about_strings_runs() -> None:
    command = [sys.executable, str(BENCHMARKS / "strings.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 10


@pytest.mark.parametrize("program, count", [("ops.py", 30), ("ragged.py", 15)])
def test_every_operation_runs(program: str, count: int) -> None:
    command = [sys.executable, str(BENCHMARKS / program), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.split("\n\n")[0].splitlines() if line.startswith("| `")]) >= count


def test_every_row_about_storage_runs() -> None:
    command = [sys.executable, str(BENCHMARKS / "storage.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("| ")]) >= 10


def test_a_line_about_loading_runs_and_the_others_are_named() -> None:
    command = [
        sys.executable,
        str(BENCHMARKS / "loading.py"),
        "--quick",
        "--line",
        "`Loader`",
        "--workload",
        "small rows",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"cold", "warm", "memory", "transform"}
    table = (BENCHMARKS.parent / "README.md").read_text()
    names = re.findall(r'^    ["\'](`.+?)["\']: \(', (BENCHMARKS / "loading.py").read_text(), re.M)
    assert len(names) > 10
    assert all(table.count(f"| {name} |") == 2 for name in names if "Hugging" not in name)


def test_every_order_runs() -> None:
    command = [sys.executable, str(BENCHMARKS / "orders.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 4
