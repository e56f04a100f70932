"""How jobs name data sets and functions that make models: the grammar alone, without a look at what there is."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["DatasetName", "FunctionName", "parse_dataset", "parse_function"]


class DatasetName(NamedTuple):
    """A data set as jobs name it."""

    kind: Literal["digits", "mnist", "npz", "local"]
    path: str = ""
    """Of `npz`, a file that all devices have, and of `local`, one of each device's own."""


class FunctionName(NamedTuple):
    """A function that makes a model, installed on the devices."""

    module: str
    function: str

    @property
    def package(self) -> str:
        """What a device must let jobs name functions of."""
        return self.module.partition(".")[0]


def parse_dataset(text: str) -> DatasetName | None:
    """`digits`, `mnist`, `npz:PATH`, a path that ends in .npz, or `local:PATH`; None: it is none of them."""
    match text.partition(":"):
        case ("digits" | "mnist") as kind, "", _:
            return DatasetName(kind)
        case ("npz" | "local") as kind, ":", path if path:
            return DatasetName(kind, path)
    return DatasetName("npz", text) if text.endswith(".npz") else None


def parse_function(text: str) -> FunctionName | None:
    """`package.module:function`; None: it isn't that."""
    module, _, function = text.partition(":")
    named = all(part.isidentifier() for part in (*module.split("."), function))
    return FunctionName(module, function) if named else None
