"""What replicates the papers is with the benchmarks; tests may import it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
