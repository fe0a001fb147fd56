"""The one table of tolerances. Whatever involves no rounding is compared for equality instead.

Differences are max |difference| / max |reference|, see `relative`.
"""

import numpy as np

# Three layers of 48 features, values of order 1: float32 rounding (6e-8) through some hundred operations.
TINY_FLOAT32 = 1e-5
# Twelve layers of 768 features with random weights of large scale, which spread rounding by a factor of ten.
R124M_FLOAT32 = 1e-4
# Nats of one token's log-probability there, read off logits of up to 25.
R124M_NLL = 1e-3
# The logits of tiny-a from narrower matrices and wte: a weight is off by up to 2**-9 of itself in bfloat16, 2**-12
# in float16, and 1/254 of its row's largest in int8 (where from 4 rows on the activations are rounded alike).
PACKED = {"bfloat16": 2e-2, "float16": 2e-3, "int8": 5e-2}
# The mean over tokens of how far int8 moves a log-probability of r124m, in nats: 0.40 over 64 positions of one row and
# 0.23 over 7 of eight. Its random weights of large scale spread rounding by far more than trained ones do.
R124M_INT8_NLL = 0.6
# A gradient along a direction, over the gradient's norm: float32 against central differences in float64, whose own
# error is 1e-9. Values of order 1 through two layers, and sums over some ten positions.
GRADIENT = 1e-5
# The same update by another order of sums: Adam divides by the gradient's size, so that small gradients' rounding
# shows; over the learning rate, which is the size of a step.
UPDATE = 1e-2
# Eight updates of tiny-a in float32 against float64: the losses and norms of an update, and the weights over how far
# they moved. Rounding of 1e-6 in a gradient is as much of a step, and steps add up.
CURVE, CURVE_WEIGHTS = 1e-5, 1e-3
# Twenty updates of AdamW at a rate of 1e-3 against its formula in float64, where gradients are clear. With positions
# looked up once for each row of the batch it was 4e-3.
ADAMW = 1e-4
# bfloat16 keeps 8 bits: a loss of some 5.7 nats through two layers, and its gradients' norm.
BFLOAT16_LOSS, BFLOAT16_NORM = 2e-3, 3e-2
# The same on the bundled model, over 64 tokens of its own; found: 0.0051, 0.00056, 0.035. Twice that.
SHAKESPEARE_NARROW_NLL = {"bfloat16": 1e-2, "float16": 1.1e-3, "int8": 7e-2}
# Nats of one token's score in float32, by logits of up to 30; found: 1e-5.
SCORE = 5e-5
# The same in bfloat16, whose logits of up to 15 are off by up to 2**-6 each by themselves and by as much again from the
# layers; found: 0.03 on tiny-a and 0.08 on the bundled model, over random tokens.
SCORE_BFLOAT16 = 0.2
# Draws: a standard deviation estimated from n values is off by 1 / sqrt(2 n); five times that at n = 12,000.
STDDEV = 0.03


def relative(found, reference) -> float:
    found, reference = np.asarray(found, np.float64), np.asarray(reference, np.float64)
    assert found.shape == reference.shape
    return float(np.abs(found - reference).max() / np.abs(reference).max())
