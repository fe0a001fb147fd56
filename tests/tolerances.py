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
# Draws: a standard deviation estimated from n values is off by 1 / sqrt(2 n); five times that at n = 12,000.
STDDEV = 0.03


def relative(found, reference) -> float:
    found, reference = np.asarray(found, np.float64), np.asarray(reference, np.float64)
    assert found.shape == reference.shape
    return float(np.abs(found - reference).max() / np.abs(reference).max())
