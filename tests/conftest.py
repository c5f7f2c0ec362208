"""What every test shares."""

from __future__ import annotations

import hypothesis

# A loaded machine must not fail a test, and a failure must be the same one at the next run.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("steady")
