"""Loads other weights into a running engine, from another file of the same model."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from transom.engine.runner import ModelRunner
from transom.errors import BadRequest, ModelFileError
from transom.models.load import load_model, read_spec
from transom.models.spec import ModelSpec
from transom.text.vocabulary import Vocabulary
from transom.weights.gguf import GgufFile, read_gguf
from transom.weights.vocabulary import read_vocabulary

PARAM = "model_path"
HEADER_BYTES = 128 << 20
"""More than the metadata and the tensor table of any model: the largest vocabularies take 20 MB."""
VECTOR_BYTES_MAX = 1 << 20
"""The norms of the widest models take 100 kB."""
COPY_BYTES = 16 << 20
SAMPLES, SAMPLE_BYTES = 64, 4096


@dataclass(slots=True)
class DiskWeights:
    """The `sched.commands.Weights` of a model runner. A source is the path of a GGUF file.

    Mutable: `source` and `identity` are those of the file that serves, see `identity_of`.
    """

    runner: ModelRunner
    source: str = ""
    identity: str = ""

    def check(self, source: str) -> None:
        # Reads metadata and vectors: a wrong file is refused before running requests are disturbed.
        with _opened(source, HEADER_BYTES) as (file, _):
            self._require_same(read_spec(file), source)

    def load(self, source: str) -> None:
        """Both sets are in memory for a moment: the old one is freed only when the new one is complete."""
        with _opened(source) as (file, identity):
            self._require_same(read_spec(file), source)
            self.runner.model = load_model(file)
            self.source, self.identity = source, identity

    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the file that serves. BadRequest if the file has changed since it was loaded."""
        with _opened(self.source, HEADER_BYTES) as (file, identity):
            if identity != self.identity:
                raise BadRequest(f"{self.source} has changed since it was loaded: restart the server")
            return read_vocabulary(file)

    def _require_same(self, spec: ModelSpec, source: str) -> None:
        served = self.runner.model.spec
        if replace(spec, name=served.name) != served:
            raise BadRequest(
                f"{source} is not of the model that is served ({served.architecture}, {len(served.layers)} "
                f"layers, vocabulary {served.vocabulary}), so its weights cannot be used",
                param=PARAM,
            )


@contextmanager
def _opened(source: str, most: int | None = None) -> Iterator[tuple[GgufFile, str]]:
    """A private copy of the file and its identity. Raises BadRequest if it is missing or cannot be read.

    With `most`, only as many bytes are copied, and the vectors behind them: specs have Llama 3's rope
    factors. The rest reads as zeros. A file that is mapped and then truncated kills its reader with SIGBUS,
    so a running engine never maps a file that others can write.
    """
    if not Path(source).is_file():
        raise BadRequest(f"there is no file {source}", param=PARAM)
    copy = os.memfd_create("weights")
    path = Path(f"/proc/self/fd/{copy}")
    try:
        identity = _copy(source, copy, most)
        file = read_gguf(path)
        if most is not None:
            _copy_vectors(source, copy, file, most)
        yield file, identity
    except ModelFileError as error:
        raise BadRequest(str(error).replace(str(path), source), param=PARAM) from None
    except OSError as error:
        raise BadRequest(f"{source}: cannot be read: {error.strerror or error}", param=PARAM) from None
    except MemoryError:
        raise BadRequest(f"{source}: not enough memory for a second set of weights", param=PARAM) from None
    finally:
        os.close(copy)  # a mapping of the copy outlives its descriptor


def _copy(source: str, copy: int, most: int | None) -> str:
    """Copies the file into the descriptor `copy`. Returns its identity. ModelFileError if it shrinks."""
    with open(source, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        os.ftruncate(copy, size)
        end, done = size if most is None else min(size, most), 0
        while done < end:
            chunk = os.pread(file.fileno(), min(COPY_BYTES, end - done), done)
            if not chunk:
                raise ModelFileError(f"{source}: was truncated while it was read")
            done += os.pwrite(copy, chunk, done)
        return _identity(file.fileno())


def _copy_vectors(source: str, copy: int, file: GgufFile, most: int) -> None:
    """Copies tensors of one dimension that lie behind `most` bytes, as long as they are small."""
    with open(source, "rb", buffering=0) as original:
        for tensor in file.tensors.values():
            count = tensor.data.nbytes
            if len(tensor.shape) == 1 and tensor.start + count > most and count <= VECTOR_BYTES_MAX:
                os.pwrite(copy, os.pread(original.fileno(), count, tensor.start), tensor.start)


def identity_of(path: Path) -> str:
    """A digest of the file's size, times, inode, header and sampled pages.

    The server compares it when it starts an engine again: the same path may hold another model by then.
    """
    with path.open("rb", buffering=0) as file:
        return _identity(file.fileno())


def _identity(descriptor: int) -> str:
    status = os.fstat(descriptor)
    size = status.st_size
    digest = hashlib.blake2b(f"{size} {status.st_mtime_ns} {status.st_ino}".encode(), digest_size=8)
    digest.update(os.pread(descriptor, 1 << 20, 0))
    for number in range(SAMPLES):
        digest.update(os.pread(descriptor, SAMPLE_BYTES, size * number // SAMPLES))
    return digest.hexdigest()
