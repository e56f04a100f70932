"""ARCHITECTURE.md names what is there: files, names of the code, fields of frames, packages."""

from __future__ import annotations

import re
from typing import get_args

import msgspec
from test_layering import ALLOWED, FILES, ROOT

from edgepeer.wire import frames

TEXT = (ROOT.parent / "ARCHITECTURE.md").read_text()
QUOTED = sorted(set(re.findall(r"`([^`\n]+)`", TEXT)))
HEADINGS = re.findall(r"^##+ (.*)$", TEXT, re.MULTILINE)


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    section = TEXT.split(f"## {heading}\n")[1]
    lines = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_files_that_are_named_are_there_and_no_two_are_meant() -> None:
    paths = [*FILES, *ROOT.parent.glob("*.py"), *ROOT.parent.glob("tests/**/*.py")]
    known = [str(path.relative_to(ROOT.parent)) for path in paths]
    for name in QUOTED:
        if name.endswith(".py"):
            assert sum(f"/{path}".endswith(f"/{name}") for path in known) == 1, name


def test_names_of_classes_and_what_they_have_are_in_the_code() -> None:
    source = "\n".join(path.read_text() for path in FILES)
    for name in QUOTED:
        if re.fullmatch(r"(edgepeer\.)?[A-Z]\w+(\.\w+)*", name):
            for part in name.removeprefix("edgepeer.").split("."):
                assert re.search(rf"^ *(class |def |self\.)?{part}\b( =|:|\()", source, re.MULTILINE), name


def test_frames_have_the_fields_that_the_table_says() -> None:
    told = {kind: re.sub(r" \(.*?\)", "", fields).split(", ") for kind, fields, *_ in table("Frames")}
    kinds = {kind.__name__: msgspec.structs.fields(kind) for kind in get_args(frames.Frame)}
    assert told == {
        name: [field.name.removesuffix("_bytes_per_s") for field in fields] for name, fields in kinds.items()
    }


def test_all_packages_have_a_line() -> None:
    named = [name for first, *_ in table("Packages") for name in re.findall(r"`([\w]+)/?`", first)]
    assert sorted(named) == sorted(name for name in ALLOWED if name)


def test_links_within_lead_somewhere() -> None:
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in HEADINGS}
    assert set(re.findall(r"\]\(#([^)]*)\)", TEXT)) <= anchors
