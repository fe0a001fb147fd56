"""The few operations that XLA has and TensorFlow has not, with what stands for them outside of XLA, and what is written
in one way for a CPU and in another for a GPU.

They change no values but by rounding; README.md beside this file has the figures.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

BLOCK = 128  # lanes of a block of the vocabulary


@dataclasses.dataclass(frozen=True)
class Ops:
    """jit_compile: whether the graph that is being built is compiled by XLA. platform: "CPU" or "GPU", for which it is;
    any device can run either.
    """

    jit_compile: bool
    platform: str

    @property
    def on_gpu(self) -> bool:
        return self.platform == "GPU"

    def barrier(self, *xs):
        """On a CPU the arguments behind an optimization barrier: a cast of weights stays in the loop, as part of the
        product. A GPU would write a copy of the weights for it.
        """
        ys = xla.optimization_barrier(*xs) if self.jit_compile and not self.on_gpu else xs
        return ys[0] if len(xs) == 1 else ys

    def through_layers(self, n_layer, body, state):
        """state = body(layer, *state) for each layer: on a CPU a loop, which compiles sooner; on a GPU one by one, so
        that a layer is a Python int and its weights are not copied out of a stack.
        """
        if self.on_gpu:
            for layer in range(n_layer):
                state = body(layer, *state)
            return state
        step = lambda layer, *state: (layer + 1, *body(layer, *state))  # noqa: E731
        return tf.while_loop(lambda layer, *_: layer < n_layer, step, (0, *state))[1:]

    def matmul(self, x, w):
        """x: [rows, in] float32, w: [out, in] -> [rows, out] float32, as a GPU's matrix units do it: x is rounded to
        the dtype of the weights, or to bfloat16, which holds all of int8, and the products are summed up in float32.
        """
        narrow = tf.bfloat16 if w.dtype == tf.int8 else w.dtype
        x, w = tf.cast(x, narrow), tf.cast(w, narrow)
        if not self.jit_compile:
            return tf.matmul(tf.cast(x, tf.float32), tf.cast(w, tf.float32), transpose_b=True)
        return tf.matmul(x, w, transpose_b=True, output_type=tf.float32)

    def sort(self, x):
        """x sorted along its last axis, in ascending order."""
        return xla.sort(x) if self.jit_compile else tf.sort(x)

    def update(self, x, part, at):
        """x with `part` written into it, in place; at: the start on each axis."""
        at = tf.stack(at)
        if self.jit_compile:
            return xla.dynamic_update_slice(x, part, at)
        end = at + tf.shape(part)
        return tf.raw_ops.TensorStridedSliceUpdate(input=x, begin=at, end=end, strides=tf.ones_like(at), value=part)

    def product(self, x, ws, layer):
        """The product with one of several matrices, read where it is: a slice of one array would be copied out first.

        Only for XLA. x: [rows, in] float32 or int8; ws: [out, in] of each layer, of the same dtype; layer: int32 scalar
        -> [rows, out] float32 or int32
        """
        # float32 is faster with the weights on the left and int8 on the right.
        left = x.dtype == tf.float32
        dtype, rows, out = tf.float32 if left else tf.int32, x.shape[0], ws[0].shape[0]
        x = self.barrier(tf.transpose(x) if left else x)
        shape = [out, rows] if left else [rows, out]
        text = _switch(_mlir(ws[0].shape, x.dtype), _mlir(x.shape, x.dtype), _mlir(shape, dtype), len(ws), left)
        y = xla.call_module([layer, x, *ws], version=9, module=text, Tout=[dtype], Sout=[shape], platforms=["CPU"])[0]
        return tf.transpose(y) if left else y  # [rows, out]

    def sums(self, x):
        """The sums over the last axis; on a CPU products with ones: 5 us, where XLA's own reduction takes 30."""
        if self.on_gpu:
            return tf.reduce_sum(x, axis=-1)
        n = x.shape[-1]
        ones = self.barrier(tf.ones([n], x.dtype))
        lead = [-1, *x.shape[1:-1]]  # the batch need not be known
        return tf.reshape(tf.linalg.matvec(tf.reshape(x, [-1, n]), ones), lead)

    def total(self, x):
        """[batch, block, lane] -> [batch]"""
        return self.sums(self.sums(x))


def _mlir(shape, dtype) -> str:
    """A tensor's type as MLIR writes it."""
    names = {tf.float32: "f32", tf.int8: "i8", tf.int32: "i32"}
    return f"tensor<{'x'.join(map(str, shape))}x{names[dtype]}>"


def _switch(w: str, x: str, y: str, n: int, left: bool) -> str:
    """StableHLO, because tf.switch_case takes 25 ms a branch to trace and compile, and this 5.

    w, x, y: types; n: how many w there are; left: whether w is the left factor.
    """
    operands, contracted = ((w, x), "[1] x [0]") if left else ((x, w), "[1] x [1]")

    def branch(i):
        names = f"%w{i}, %x" if left else f"%x, %w{i}"
        types = f"({', '.join(operands)}) -> {y}"
        dot = f"%y{i} = stablehlo.dot_general {names}, contracting_dims = {contracted} : {types}"
        return f"{{ {dot}\n stablehlo.return %y{i} : {y} }}"

    arguments = "".join(f", %w{i}: {w}" for i in range(n))
    switch = f'%y = "stablehlo.case"(%layer) ({", ".join(map(branch, range(n)))}) : (tensor<i32>) -> {y}'
    main = f"func.func public @main(%layer: tensor<i32>, %x: {x}{arguments}) -> {y}"
    return f"module {{ {main} {{ {switch}\n return %y : {y} }} }}"
