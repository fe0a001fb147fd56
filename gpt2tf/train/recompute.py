"""What is computed twice: nothing of it is kept for the gradients, which saves memory and takes time."""

from __future__ import annotations

import tensorflow as tf

SLAB = 2**24  # values that the rows of a batch which are computed together may have inside of a call


def recomputed(call, *inputs):
    """call(*inputs), a tensor, which is computed a second time when its gradient is. inputs: tensors of floats.

    As `tf.recompute_grad`, whose second computation XLA sees through and merges with the first.
    """

    @tf.custom_gradient
    def computed(*inputs):
        def grad(dy, variables=()):
            # XLA may not drop this zero, which would be NaN where dy is, and so waits for dy.
            zero = 0 * tf.reduce_sum(tf.cast(tf.reshape(dy, [-1])[:1], tf.float32))  # dy may be empty
            again = [x + tf.cast(zero, x.dtype) for x in inputs]
            with tf.GradientTape() as tape:
                tape.watch(again)
                y = call(*again)
            gradients, of_variables = tape.gradient(y, (again, list(variables)), output_gradients=dy)
            return (gradients, of_variables) if variables else gradients

        return call(*inputs), grad

    return computed(*inputs)


def recomputed_by_rows(call, inputs, keys, size: int):
    """call(*inputs, keys), computed a second time for its gradient, and so many rows at once as fit in `SLAB`.

    call: of rows that do not depend on each other, without variables. inputs: tensors of floats, [batch, ...]; the
    result has the shape of the first. keys: [batch] integers; None is no training, and nothing special. size: the
    values that call makes of a row, about.
    """
    if keys is None:
        return call(*inputs, None)
    batch = inputs[0].shape[0]
    rows = max((n for n in range(1, batch + 1) if batch % n == 0 and n * size <= SLAB), default=1) if batch else batch
    if rows == batch:
        return recomputed(lambda *inputs: call(*inputs, keys), *inputs)

    def mapped(call, *tensors, dtypes):
        parts = [tf.reshape(x, [-1, rows, *x.shape[1:]]) for x in tensors]  # [slab, rows, ...]
        results = tf.map_fn(lambda parts: call(*parts), parts, fn_output_signature=dtypes)
        return [tf.reshape(x, [batch, *x.shape[2:]]) for x in results]

    def gradients(*parts):
        *xs, keys, dy = parts
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = call(*xs, keys)
        return tape.gradient(y, xs, output_gradients=dy)

    @tf.custom_gradient
    def computed(*inputs):
        dtypes = [x.dtype for x in inputs]
        y = mapped(lambda *parts: [call(*parts)], *inputs, keys, dtypes=dtypes[:1])[0]
        return y, lambda dy: mapped(gradients, *inputs, keys, dy, dtypes=dtypes)

    return computed(*inputs)
