"""What tests of the deployment share: where it is, and the programs of the command line."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
# Beside tests/e2e: the command line in processes of its own.
sys.path.insert(0, str(TESTS / "e2e"))
