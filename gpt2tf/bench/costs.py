"""What generation cannot do without: the bytes to be read from memory and the operations, counted from the hparams.

Padding, masks and all that an implementation adds are not counted.
"""

from __future__ import annotations

import dataclasses
import math

from gpt2tf.bench.plan import Case
from gpt2tf.hparams import HParams
from gpt2tf.names import is_matrix, variable_shapes

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
CACHE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 2}  # of a key's or value's number


@dataclasses.dataclass(frozen=True)
class Cost:
    """What cannot be avoided: bytes read from memory, and multiplications and additions."""

    bytes: float
    operations: float


def weight_bytes(hparams: HParams, dtype: str) -> int:
    """The bytes of all weights; int8 has a float32 scale for each output of a matrix. Without padding."""
    total = 0
    for name, shape in variable_shapes(hparams).items():
        matrix = is_matrix(name)
        total += math.prod(shape) * (DTYPE_BYTES[dtype] if matrix else 4)
        if matrix and dtype == "int8":
            total += 4 * (shape[0] if name.endswith("wte") else shape[-1])
    return total


def _matrix_weights(hparams: HParams) -> tuple[int, int]:
    """The weights that multiply each token's activations: in the layers, and for the logits."""
    return 12 * hparams.n_layer * hparams.n_embd**2, hparams.n_vocab * hparams.n_embd


def _attention_operations(hparams: HParams, n: int) -> int:
    """Of one row: two products with the n (n + 1) / 2 pairs of positions that see each other."""
    return 2 * hparams.n_layer * hparams.n_embd * n * (n + 1)


def decode_cost(hparams: HParams, case: Case) -> Cost:
    """Of one token that the loop makes: its share of the weights (of wpe a row), and its keys and values."""
    h = hparams
    shared = weight_bytes(h, case.dtype) - 4 * h.n_ctx * h.n_embd
    past = 2 * h.n_layer * h.n_embd * case.position  # numbers
    operations = 2 * sum(_matrix_weights(h)) + 2 * past
    own = 4 * h.n_embd + CACHE_BYTES[case.dtype] * past
    return Cost(shared / case.batch_size + own, operations)


def training_operations(hparams: HParams, batch_size: int, window: int) -> float:
    """Of an update: the forward pass with all logits, and twice as many for the gradients."""
    layers, logits = _matrix_weights(hparams)
    return 3 * batch_size * (2 * (layers + logits) * window + _attention_operations(hparams, window))


def prompt_operations(hparams: HParams, case: Case) -> float:
    """Of the prompts of a batch: every token through the layers, the last one's logits."""
    layers, logits = _matrix_weights(hparams)
    n = case.prompt_length
    return case.batch_size * (2 * layers * n + _attention_operations(hparams, n) + 2 * logits)
