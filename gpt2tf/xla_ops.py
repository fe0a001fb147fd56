"""The few operations that XLA has and TensorFlow has not, with what stands for them outside of XLA.

They change no values, but what XLA's compiler for CPUs makes of them; the figures are of 124M on two cores.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

BLOCK = 128  # lanes of a block of the vocabulary


@dataclasses.dataclass(frozen=True)
class Ops:
    """jit_compile: whether the graph that is being built is compiled by XLA."""

    jit_compile: bool

    def barrier(self, *xs):
        """The arguments, behind a wall: a cast of weights stays in the loop, where it is part of the product."""
        ys = xla.optimization_barrier(*xs) if self.jit_compile else xs
        return ys[0] if len(xs) == 1 else ys

    def update(self, x, part, at):
        """x with `part` written into it, in place; at: the start on each axis."""
        at = tf.stack(at)
        if self.jit_compile:
            return xla.dynamic_update_slice(x, part, at)
        end = at + tf.shape(part)
        return tf.raw_ops.TensorStridedSliceUpdate(input=x, begin=at, end=end, strides=tf.ones_like(at), value=part)

    def total(self, x):
        """[batch, block, lane] -> [batch], as products with ones: 5 us, where XLA's own reduction takes 30."""
        for n in reversed(x.shape[1:]):
            lead = x.shape[:-1]
            ones = self.barrier(tf.ones([n], x.dtype))
            x = tf.reshape(tf.linalg.matvec(tf.reshape(x, [-1, n]), ones), lead)
        return x
