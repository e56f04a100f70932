"""Every parser that `make fuzz` guesses at: what it is for is understood, and whatever else is refused in one line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsers import Parser, parsers


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Parser]]:
    with parsers(tmp_path_factory.mktemp("fuzz")) as by_name:
        yield by_name


def test_what_is_meant_is_understood(known: dict[str, Parser]) -> None:
    for name, parser in known.items():
        for seed in parser.seeds:
            parser(seed)
        if name not in ("dialled", "card"):  # each connection is another
            parser.understand(parser.seeds[0])


@given(st.data())
@settings(max_examples=40)
def test_anything_else_is_refused_in_one_line(known: dict[str, Parser], data: st.DataObject) -> None:
    parser = known[data.draw(st.sampled_from(sorted(known)))]
    changed = bytearray(data.draw(st.sampled_from(parser.seeds)))
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    parser(bytes(changed))
    parser(bytes(changed[: data.draw(st.integers(0, len(changed)))]))
    parser(data.draw(st.binary(max_size=64)))
