"""The recorded tiny model's weights, by the original's names."""

import pytest
from recorded import GOLDEN


@pytest.fixture(scope="module")
def weights():
    from gpt2tf.checkpoint import load_weights

    return dict(load_weights(GOLDEN / "tiny-a")[1])
