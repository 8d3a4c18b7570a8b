"""Other weights for an engine that runs: a file of the same model, read anew."""

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
    """`sched.Weights` of a runner. Sources are paths of GGUF files; a refusal names what is wrong."""

    runner: ModelRunner

    def check(self, source: str) -> None:
        with _opened(source) as file:
            self._require_same(read_spec(file), source)

    def load(self, source: str) -> None:
        """For a moment both sets are in memory: the old ones go only when the new ones are there."""
        with _opened(source) as file:
            self._require_same(read_spec(file), source)
            self.runner.model = load_model(file)

    def _require_same(self, spec: ModelSpec, source: str) -> None:
        served = self.runner.model.spec
        if replace(spec, name=served.name) != served:
            raise BadRequest(
                f"{source} is not of the model that is served ({served.architecture}, {len(served.layers)} "
                f"layers, vocabulary {served.vocabulary}); its weights cannot take their place",
                param=PARAM,
            )


@contextmanager
def _opened(source: str) -> Iterator[GgufFile]:
    """Raises BadRequest for whatever is wrong with the file."""
    if not Path(source).is_file():
        raise BadRequest(f"there is no file {source}", param=PARAM)
    try:
        yield read_gguf(Path(source))
    except ModelFileError as error:
        raise BadRequest(str(error), param=PARAM) from None
