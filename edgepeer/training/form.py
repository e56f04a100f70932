"""What a model takes and puts out: the little that is known of it without its data."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from edgepeer.readable import readable

__all__ = ["CLASSIFYING", "Form", "LossChoice", "LossName"]

LossName: TypeAlias = Literal["crossentropy", "binary_crossentropy", "mse", "mae", "huber"]
LossChoice: TypeAlias = Literal["auto", "crossentropy", "binary_crossentropy", "mse", "mae", "huber"]

CLASSIFYING: Final = ("crossentropy", "binary_crossentropy")


@readable
class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into a model, and what is to come out: all that it takes, besides the job, to build it."""

    input_shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=2**31)], ...], msgspec.Meta(max_length=31)]
    """Of one sample."""
    outputs: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    loss: LossName
    at_least: bool = False
    """Whether a model may have more outputs: one device's own data may lack classes that another's have."""
    name: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    """Of the data, for messages."""

    @property
    def features(self) -> int:
        """Numbers in a sample."""
        return math.prod(self.input_shape)

    @property
    def said(self) -> str:
        """Of which data and for which loss a model is; all that two must have in common to be added up."""
        what = "classes" if self.loss == "crossentropy" else "numbers to learn"
        return f"samples of shape {self.input_shape} with {self.outputs} {what} and loss {self.loss}"

    @property
    def classifying(self) -> bool:
        """Whether the model is measured by its accuracy, else by how far off it is."""
        return self.loss in CLASSIFYING
