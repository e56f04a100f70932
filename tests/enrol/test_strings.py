"""Nobody who reads a refusal is to have a join string; and everybody is to see the name of what they have given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.enrol.strings import JoinString, hidden

SECRET = st.builds(JoinString, st.binary(min_size=16, max_size=16), st.binary(min_size=4, max_size=4),
                   st.binary(min_size=16, max_size=16))  # fmt: skip


@given(SECRET, st.sampled_from(["{}", "argument ({})", "'{}'", "extra arguments ({} and more)", "{}.", "x, {}: no"]))
def test_a_join_string_is_never_shown(string: JoinString, around: str) -> None:
    text = string.text()
    assert text[5:] not in hidden(around.format(text))
    if any(letter.isdigit() for letter in text[5:]):
        assert text[5:] not in hidden(around.format(text[1:]))
    tail = text[-26:]  # where a line was broken
    if any(letter.isdigit() for letter in tail):
        assert tail not in hidden(around.format(tail))
        assert tail.upper() not in hidden(around.format(tail.upper()))


@pytest.mark.parametrize(
    "text",
    [
        "save = /srv/greenhousetomatoesreadings/model.npz: there is no directory /srv/greenhousetomatoesreadings",
        "broker mqtt://greenhousetomatoesreadings2.local:1883: host name 'greenhousetomatoesreadings2.local' not found",
        "d/greenhousetomatoesreadings2345.npz: can't be read",
        "fabric greenhousetomatoesreadings is empty",
    ],
)
def test_names_of_things_are(text: str) -> None:
    assert hidden(text) == text
