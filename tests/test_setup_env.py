"""The environment is used again only when it is whole and holds what this checkout asks for."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
from types import ModuleType

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "setup_env.py"


@pytest.fixture
def setup_env(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script over an empty project; pip only notes what it is asked for, in `asked`."""
    spec = importlib.util.spec_from_file_location("setup_env", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("one")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "STAMP", tmp_path / "stamp.json")
    module.asked = []  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "pip", lambda *arguments: module.asked.append(arguments))
    return module


def test_torch_comes_first_and_extras_add_up(setup_env: ModuleType) -> None:
    setup_env.install("demo")
    setup_env.install("dev")
    assert [arguments[-1] for arguments in setup_env.asked] == [
        "torch==2.13.0",
        f"{setup_env.ROOT}[demo]",
        "torch==2.13.0",
        f"{setup_env.ROOT}[dev]",
    ]
    assert setup_env.installed() == {"demo", "dev"}


def test_other_requirements_are_installed_anew(setup_env: ModuleType) -> None:
    setup_env.install("demo")
    (setup_env.ROOT / "pyproject.toml").write_text("two")
    assert setup_env.installed() == set()
    setup_env.install("dev")
    assert setup_env.installed() == {"dev"}


def test_a_broken_off_install_does_not_look_finished(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    setup_env.install("dev")

    def fail(*arguments: str) -> None:
        raise subprocess.CalledProcessError(1, arguments)

    monkeypatch.setattr(setup_env, "pip", fail)
    with pytest.raises(subprocess.CalledProcessError):
        setup_env.install("demo")
    assert setup_env.installed() == set()


def test_a_damaged_stamp_counts_as_none(setup_env: ModuleType) -> None:
    setup_env.install("dev")
    setup_env.STAMP.write_text("{")
    assert setup_env.installed() == set()


def test_an_unknown_program_is_answered_with_the_usage() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "nothing"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "setup_env.py demo" in done.stderr
