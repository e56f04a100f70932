"""Settings of all tests: Hypothesis draws the same examples everywhere, and says how to repeat a failure.

Commands that run in the tests' own process set up logging: the next test finds it as it was. Many tests run side by
side: NumPy's threads would only wait for each other. `--rewrite-transcripts` writes what tests compare with anew;
`--secure` lets all emulated fleets be ones with identities, encrypted links and signed documents.

Hundreds of processes are started, which would all compile edgepeer if the environment keeps Python from writing
bytecode: tests write it all the same.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # before anything imports NumPy

import pytest
from hypothesis import HealthCheck, settings
from order import dealt

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
gc.disable()  # thousands of tests are collected, and none of it is garbage

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow],
)
# To look for new failures: HYPOTHESIS_PROFILE=search pytest tests/simulation
settings.register_profile("search", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write the transcripts of tests/scenarios anew, for a review"
    )
    parser.addoption("--secure", action="store_true", help="emulated fleets are made with --secure")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--secure"):
        os.environ["SECURE_EMULATIONS"] = "1"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if (workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) > 1:
        items[:] = dealt(items, workers)


def pytest_collection_finish() -> None:
    """What was collected stays: the garbage collector need not look through it again and again."""
    gc.enable()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("edgepeer")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.captureWarnings(False)
