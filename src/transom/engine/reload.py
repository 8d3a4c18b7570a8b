"""Loads other weights into a running engine, from another file of the same model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from transom.engine.runner import ModelRunner
from transom.errors import BadRequest, ModelFileError
from transom.models.load import load_model, read_spec
from transom.models.spec import ModelSpec
from transom.weights.gguf import GgufFile, read_gguf

PARAM = "model_path"


@dataclass(frozen=True, slots=True)
class DiskWeights:
    """The `sched.commands.Weights` of a model runner. A source is the path of a GGUF file."""

    runner: ModelRunner

    def check(self, source: str) -> None:
        # Reads metadata only: a request for the wrong file is refused before running requests are disturbed.
        with _opened(source) as file:
            self._require_same(read_spec(file), source)

    def load(self, source: str) -> None:
        """Both sets are in memory for a moment: the old one is freed only when the new one is complete."""
        with _opened(source) as file:
            self._require_same(read_spec(file), source)
            self.runner.model = load_model(file)

    def _require_same(self, spec: ModelSpec, source: str) -> None:
        served = self.runner.model.spec
        if replace(spec, name=served.name) != served:
            raise BadRequest(
                f"{source} is not of the model that is served ({served.architecture}, {len(served.layers)} "
                f"layers, vocabulary {served.vocabulary}), so its weights cannot be used",
                param=PARAM,
            )


@contextmanager
def _opened(source: str) -> Iterator[GgufFile]:
    """The opened file. Raises BadRequest if it is missing or cannot be read."""
    if not Path(source).is_file():
        raise BadRequest(f"there is no file {source}", param=PARAM)
    try:
        yield read_gguf(Path(source))
    except ModelFileError as error:
        raise BadRequest(str(error), param=PARAM) from None
