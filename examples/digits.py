"""The main job on handwritten digits: fill a dataset on disk, learn from it, map over it, read it back.

    python examples/digits.py --workers 2

`src/tensordict/demo.py` is the program itself, written with the public names alone.
"""

import sys

from tensordict.demo import main

if __name__ == "__main__":
    sys.exit(main())
