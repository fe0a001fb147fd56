"""A block computed twice: of its activations only the input is kept for the gradients."""

from __future__ import annotations

import tensorflow as tf


def recomputed(call, h):
    """The first result of call(h), which is computed a second time when its gradient is. h: [batch, seq, features]

    As `tf.recompute_grad`, whose second computation XLA sees through and merges with the first.
    """

    @tf.custom_gradient
    def stream(h):
        def grad(dy, variables):
            again = h + 0 * dy[:1, :1, :1]  # XLA may not drop this sum, which would be NaN where dy is
            with tf.GradientTape() as tape:
                tape.watch(again)
                y = call(again)[0]
            return tape.gradient(y, (again, variables), output_gradients=dy)

        return call(h)[0], grad

    return stream(h)
