"""deploy/README.md names what there is, and what it names is there."""

from __future__ import annotations

import re
from typing import Final

import pytest
from devices import DEPLOY, REPOSITORY

README: Final = (DEPLOY / "README.md").read_text()
NAMES: Final = sorted(path.name for path in DEPLOY.iterdir() if path.name != "README.md")


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_named(name: str) -> None:
    assert name in README


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README):
        assert (DEPLOY / target).exists(), target
    headings = {
        re.sub(r"[^\w -]", "", line[3:]).lower().replace(" ", "-") for line in README.splitlines() if line[:3] == "## "
    }
    for anchor in re.findall(r"\]\(#([^)]+)\)", README):
        assert anchor in headings, anchor


def test_the_make_target_is_there() -> None:
    assert "make check-deploy" in README
    assert "\ncheck-deploy:" in (REPOSITORY / "Makefile").read_text()
