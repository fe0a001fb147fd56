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
        """The arguments behind an optimization barrier: a cast of weights stays in the loop, as part of the product."""
        ys = xla.optimization_barrier(*xs) if self.jit_compile else xs
        return ys[0] if len(xs) == 1 else ys

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

    def total(self, x):
        """[batch, block, lane] -> [batch], as products with ones: 5 us, where XLA's own reduction takes 30."""
        for n in reversed(x.shape[1:]):
            lead = [-1, *x.shape[1:-1]]  # the batch need not be known
            ones = self.barrier(tf.ones([n], x.dtype))
            x = tf.reshape(tf.linalg.matvec(tf.reshape(x, [-1, n]), ones), lead)
        return x


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
