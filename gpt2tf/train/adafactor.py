"""Adafactor: an optimizer that keeps of a matrix's second moments only the means of its rows and of its columns.

Mirrors Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018), algorithms 4 to 6
without momentum. Keras's own makes the same updates, but stores the whole second moments beside the means, which is
another copy of the weights.
"""

from __future__ import annotations

import keras
from keras import ops

SMALLEST_SQUARE = 1e-30  # the paper's epsilon_1
SMALLEST_SCALE = 1e-3  # epsilon_2: a step's size is relative to the weights', but not to less than this
CLIP = 1.0  # d, the largest root mean square of an update, before the learning rate
DECAY = -0.8  # the exponent of how fast old moments fade: beta is 1 - step ** DECAY


class Adafactor(keras.optimizers.Optimizer):
    """Steps of learning_rate relative to the size of each variable; weight_decay as in `keras.optimizers.AdamW`."""

    def __init__(self, learning_rate, weight_decay=None, name="adafactor"):
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, name=name)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.moments = []
        for v in variables:
            shapes = [v.shape] if len(v.shape) < 2 else [v.shape[:-1], (*v.shape[:-2], v.shape[-1])]
            self.moments += [[self.add_variable(shape=shape, name=v.name) for shape in shapes]]

    def update_step(self, gradient, variable, learning_rate):
        beta = 1 - ops.power(ops.cast(self.iterations + 1, "float32"), DECAY)
        square = ops.square(gradient) + SMALLEST_SQUARE

        def mean(moment, new):
            self.assign(moment, beta * moment + (1 - beta) * new)
            return ops.convert_to_tensor(moment)

        moments = self.moments[self._get_variable_index(variable)]
        if len(moments) == 1:
            second = mean(moments[0], square)
        else:
            rows = mean(moments[0], ops.mean(square, axis=-1))  # [..., rows]
            columns = mean(moments[1], ops.mean(square, axis=-2))  # [..., columns]
            rows = rows / ops.mean(rows, axis=-1, keepdims=True)
            second = rows[..., :, None] * columns[..., None, :]  # [..., rows, columns]
        update = gradient * ops.rsqrt(second)
        update = update / ops.maximum(1.0, _root_mean_square(update) / CLIP)
        scale = ops.maximum(SMALLEST_SCALE, _root_mean_square(variable))
        self.assign_sub(variable, learning_rate * scale * update)


def _root_mean_square(x):
    return ops.sqrt(ops.mean(ops.square(x)))
