#!/bin/sh
# Make the environment if it is not there, install, and run the demo; options: --path FOLDER, --workers N, --keep.
set -eu
exec "${PYTHON:-python3}" "$(dirname -- "$0")/setup_env.py" demo "$@"
