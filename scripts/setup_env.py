"""Make the environment in .venv beside the project, install into it, and run one of the project's programs.

    python scripts/setup_env.py demo [options of the demo]
    python scripts/setup_env.py test [options of pytest]

Needs only Python 3.10 or newer and a package index that pip can reach. What is already there is used again.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import venv

TORCH = "torch==2.13.0"
ROOT = pathlib.Path(__file__).resolve().parent.parent
ENV = ROOT / ".venv"
PYTHON = ENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = ENV / "tensordict-installed.json"

# Per program: the extras it needs, the extras that bring these too, its command, and whether it runs in the project.
JOBS = {
    "demo": ("demo", {"demo", "dev"}, ["-m", "tensordict.demo"], False),
    "test": ("dev", {"dev"}, ["-m", "pytest"], True),
}


def say(text):
    print(f"== {text}", flush=True)


def fingerprint():
    """Tell apart what was installed: changes with the project's requirements, this file, the folder and Python."""
    parts = [(ROOT / "pyproject.toml").read_bytes(), pathlib.Path(__file__).read_bytes()]
    parts += [str(ROOT).encode(), sys.version.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def installed():
    """Return the extras that are installed and up to date."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return set()
    return set(stamp["extras"]) if stamp["fingerprint"] == fingerprint() else set()


def pip(*arguments):
    subprocess.run([str(PYTHON), "-m", "pip", *arguments], check=True)


def make_environment():
    if PYTHON.exists():
        say(f"Using the environment in {ENV}")
    else:
        say(f"Making a virtual environment in {ENV}")
        venv.create(ENV, with_pip=True)
    if subprocess.run([str(PYTHON), "-c", "import pip"], stderr=subprocess.DEVNULL).returncode:
        say("Adding pip to it")
        subprocess.run([str(PYTHON), "-m", "ensurepip", "--upgrade"], check=True)


def install(extra):
    have = installed()
    STAMP.unlink(missing_ok=True)  # an install that is broken off must not look finished
    say(f"Installing {TORCH} (about 200 MB without GPU support; several GB where pip finds the build for GPUs)")
    pip("install", "--quiet", TORCH)
    say(f"Installing this project with what '{extra}' needs")
    pip("install", "--quiet", TORCH, "--editable", f"{ROOT}[{extra}]")
    STAMP.write_text(json.dumps({"fingerprint": fingerprint(), "extras": sorted(have | {extra})}))


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in JOBS:
        sys.exit(__doc__)
    if sys.version_info < (3, 10):  # noqa: UP036 - this file is what an older one starts
        sys.exit(f"Python 3.10 or newer is needed, and this is {sys.version.split()[0]}: set PYTHON to a newer one.")
    extra, enough, command, in_project = JOBS[sys.argv[1]]
    try:
        if enough & installed() and PYTHON.exists():
            say(f"Using what is installed in {ENV}")
        else:
            make_environment()
            install(extra)
    except subprocess.CalledProcessError as error:
        shown = " ".join(str(part) for part in error.cmd)
        sys.exit(
            f"The environment in {ENV} is not ready: the command\n    {shown}\nended with {error.returncode}; "
            "what it printed above says why. Put that right and run this again, or remove the folder to start afresh."
        )
    say(f"Running python {' '.join([*command, *sys.argv[2:]])}")
    where = ROOT if in_project else None
    sys.exit(subprocess.run([str(PYTHON), *command, *sys.argv[2:]], cwd=where).returncode)


if __name__ == "__main__":
    main()
