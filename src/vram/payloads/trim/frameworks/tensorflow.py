"""TensorFlow tells what it uses, and lets go of nothing before it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..framework import DEVICE, Framework, loaded

if TYPE_CHECKING:
    from ..framework import Line


class TensorFlow(Framework):
    """Only where its runtime is started: listing its devices would start it."""

    name = "TensorFlow"

    def __init__(self, config: Any) -> None:
        self._config = config

    @classmethod
    def find(cls) -> Iterator[TensorFlow]:
        tensorflow, eager = loaded("tensorflow"), loaded("tensorflow.python.eager.context")
        if tensorflow is not None and getattr(getattr(eager, "_context", None), "_initialized", False):
            yield cls(tensorflow.config)

    def measure(self) -> Iterator[Line]:
        for number, _ in enumerate(self._config.list_logical_devices("GPU")):
            used = self._config.experimental.get_memory_info(f"GPU:{number}")["current"]
            yield self.line(DEVICE, number, used, 0)

    def release(self) -> Iterator[str]:
        yield "TensorFlow keeps its pool until it ends; TF_FORCE_GPU_ALLOW_GROWTH=true starts smaller"
