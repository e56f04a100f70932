from __future__ import annotations

from typing import Any

import msgpack
import pytest

from edgepeer.errors import ConfigError, WireError
from edgepeer.training.job import MODEL_CONFIG_LIMIT_BYTES, Job, new_job
from edgepeer.wire.documents import pack, unpack

BAD_FIELDS: list[tuple[str, Any]] = [
    ("id", ""),
    ("id", "a/b"),
    ("id", "a\n"),
    ("id", "x" * 64),
    ("model", ""),
    ("model", "a b"),
    ("model", "a:b:c"),
    ("model", "../x"),
    ("model", "x" * 256),
    ("model_config", "x" * (MODEL_CONFIG_LIMIT_BYTES + 1)),
    ("model_config", "é" * (MODEL_CONFIG_LIMIT_BYTES // 2 + 1)),
    ("trainer", "torch"),
    ("dataset", ""),
    ("dataset", "npz:a\0b"),
    ("dataset", "x" * 1025),
    ("batch_size", 0),
    ("batch_size", 1_000_001),
    ("batch_size", 1.5),
    ("learning_rate", 0.0),
    ("learning_rate", -1.0),
    ("learning_rate", float("inf")),
    ("learning_rate", float("nan")),
    ("optimizer", ""),
    ("rounds", 0),
    ("rounds", 10_000_001),
    ("wait_for", 0),
    ("wait_for", 4097),
    ("seed", -1),
    ("seed", 2**32),
    ("eval_every", 0),
    ("created", float("inf")),
    ("created", 1e11),
]


def test_a_job_survives_the_wire() -> None:
    job = new_job(model="my_models.vision:small", dataset="npz:/data/ü.npz", optimizer="adam", learning_rate=1e-3)
    assert unpack(pack(job), Job) == job


def test_the_largest_job_fits_into_a_document() -> None:
    job = new_job(model_config="x" * MODEL_CONFIG_LIMIT_BYTES)
    assert unpack(pack(job), Job) == job


def test_every_new_job_has_its_own_id() -> None:
    assert new_job().id != new_job().id


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS, ids=lambda value: repr(value)[:20])
def test_a_bad_field_is_refused_at_both_edges(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^job: {field} = ") as raised:
        new_job(**{field: value})
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300
    document = {"v": 1, "id": "job", field: value}
    with pytest.raises(WireError, match="Job document"):
        unpack(msgpack.packb(document), Job)


def test_an_unknown_field_is_refused_from_users_and_ignored_from_newer_peers() -> None:
    with pytest.raises(ConfigError, match="no field 'epochs'"):
        new_job(epochs=3)
    assert unpack(msgpack.packb({"v": 1, "id": "job", "epochs": 3}), Job) == Job(id="job")
