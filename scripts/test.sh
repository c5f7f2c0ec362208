#!/bin/sh
# Make the environment if it is not there, install, and run the tests; options are pytest's.
set -eu
exec "${PYTHON:-python3}" "$(dirname -- "$0")/setup_env.py" test "$@"
