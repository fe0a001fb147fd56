"""The loss of an update, from what comes before the logits.

The logits are the largest thing that a small model computes: 50,257 for each position, and as many gradients. Here
they are made for some positions after the others, each time with their gradients, of which two sums remain.
"""

from __future__ import annotations

import tensorflow as tf

SLAB = 2**25  # logits that are made at a time: 134 MB


def mean_nats(head, h, wte, targets):
    """How unlikely the targets were, in nats, their mean: a float32 scalar.

    head: of `model`. h: [batch, seq, features]; wte: [vocab, features]; targets: [batch, seq] int32. Shapes are known.
    """
    count, features = targets.shape.num_elements(), h.shape[-1]
    slabs = -(-count * wte.shape[0] // SLAB)
    rows = -(-count // slabs)
    more = slabs * rows - count  # positions that fill the last slab, and do not count

    @tf.custom_gradient
    def mean(h, wte):
        parts = tf.reshape(tf.pad(tf.reshape(h, [count, features]), [[0, more], [0, 0]]), [slabs, 1, rows, features])
        ids = tf.reshape(tf.pad(tf.reshape(targets, [count]), [[0, more]]), [slabs, 1, rows])
        counts = tf.reshape(tf.range(slabs * rows) < count, [slabs, 1, rows])

        def add(slab, total, dh, dwte):
            part = parts[slab]
            with tf.GradientTape() as tape:
                tape.watch([part, wte])
                nats = tf.nn.sparse_softmax_cross_entropy_with_logits(ids[slab], head(part, wte))  # [1, rows]
                nats = tf.reduce_sum(tf.where(counts[slab], nats, 0.0)) / count
            of_part, of_wte = tape.gradient(nats, [part, wte])
            return slab + 1, total + nats, tf.tensor_scatter_nd_update(dh, [[slab]], [of_part]), dwte + of_wte

        start = (0, 0.0, tf.zeros_like(parts), tf.zeros_like(wte))
        _, total, dh, dwte = tf.while_loop(lambda slab, *_: slab < slabs, add, start)
        dh = tf.reshape(tf.reshape(dh, [-1, features])[:count], h.shape)
        return total, lambda dy: (tf.cast(dy, h.dtype) * dh, dy * dwte)

    return mean(h, wte)
