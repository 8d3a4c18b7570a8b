"""The loss of accuracy from quantized activations on English text, against float32. Slow lane."""

import pydoc_data.topics
from collections.abc import Iterator

import numpy as np
import pytest

from transom.models.decoder import Batch, head, hidden
from transom.models.load import load_model
from transom.models.spec import Model
from transom.ops.float32 import Float32Ops
from transom.ops.native import NativeOps
from transom.ops.protocol import F32, Ops, SpanRows
from transom.ops.store import KVStore, KVType
from transom.weights.builtin import resolve_model
from transom.weights.gguf import read_gguf
from transom.weights.tokenizer import load_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(3600)]

SEQUENCE = 1024
SEQUENCES = 8
CHUNK = 128

LLAMA_CPP_KL = 0.0058
"""llama.cpp's mean KL divergence from its own float32 run of Gemma's file, measured once: lab/LOG.md."""


@pytest.mark.parametrize("name", [None, "smollm2-135m-instruct"])
def test_quantized_activations_cost_little_on_english_text(name: str | None) -> None:
    """The second model must be in the cache: `transom models add`."""
    model = load_model(read_gguf(resolve_model(name)))
    text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    tokenizer = load_tokenizer(name)
    ids = tokenizer.encode(text[20_000:80_000], bos=False).tolist()
    begin = tokenizer.encode("").tolist()
    step = SEQUENCE - len(begin)
    native, reference = NativeOps(2), Float32Ops()  # which keeps the weights it has expanded
    losses, divergence, agreed, tokens = np.zeros(2), 0.0, 0, 0
    for number in range(SEQUENCES):
        sequence = [*begin, *ids[number * step : (number + 1) * step]]
        ours = teacher_forced(native, model, sequence, KVType.FLOAT16)
        exact = teacher_forced(reference, model, sequence, KVType.FLOAT32)
        for start, (p, q) in enumerate(zip(ours, exact, strict=True)):
            targets = sequence[start * CHUNK + 1 : (start + 1) * CHUNK + 1]
            p, q = log_softmax(p[: len(targets)]), log_softmax(q[: len(targets)])
            rows = np.arange(len(targets))
            losses -= p[rows, targets].sum(), q[rows, targets].sum()
            divergence += float((np.exp(q) * (q - p)).sum())
            agreed += int((p.argmax(1) == q.argmax(1)).sum())
            tokens += len(targets)
    ours_ppl, exact_ppl = np.exp(losses / tokens)
    print(
        f"{tokens} tokens: perplexity {ours_ppl:.4f} against {exact_ppl:.4f} "
        f"({ours_ppl / exact_ppl - 1:+.3%}), "
        f"mean KL {divergence / tokens:.5f}, argmax agreement {agreed / tokens:.2%}"
    )
    assert tokens >= 8000
    assert abs(ours_ppl / exact_ppl - 1) <= 0.005
    assert agreed / tokens >= 0.97
    assert divergence / tokens <= LLAMA_CPP_KL


def teacher_forced(ops: Ops, model: Model, tokens: list[int], kv_type: KVType) -> Iterator[F32]:
    """Logits after every token, a chunk at a time."""
    spec = model.spec
    store = KVStore(spec.page_shapes(len(tokens), kv_type), (1,) * len(spec.components))
    table = np.ones((1, 1), dtype=np.int32)
    kv = tuple(store.paged(component, table) for component in range(len(spec.components)))
    for start in range(0, len(tokens), CHUNK):
        count = min(CHUNK, len(tokens) - start)
        within = np.arange(count, dtype=np.int32)
        spans = SpanRows(
            rows=np.zeros(1, dtype=np.int32),
            starts=np.array([start], dtype=np.int32),
            offsets=np.array([0, count], dtype=np.int32),
            positions=start + within,
            token_rows=np.zeros(count, dtype=np.int32),
        )
        tokens_now = np.array(tokens[start : start + count], np.int32)
        batch = Batch(tokens_now, (spans,) * len(kv), within)
        yield head(ops, model, hidden(ops, model, kv, batch))


def log_softmax(logits: F32) -> F32:
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalizer: F32 = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted - normalizer
