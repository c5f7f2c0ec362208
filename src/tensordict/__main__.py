"""Run the program `tensordict` as ``python -m tensordict``."""

import sys

from tensordict.roof.cli import main

if __name__ == "__main__":
    sys.exit(main())
