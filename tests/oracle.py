"""Independent float64 readings, in NumPy, of what the port must compute. They share no code with it."""

import numpy as np


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def norm(x, g, b):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + b


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def forward(weights, n_head, tokens, drop=lambda x, *place: x):
    """weights: {name: float64 array}, tokens: [seq], drop: of training, `dropper` -> logits [seq, vocab]"""
    seq = len(tokens)

    def linear(x, name):
        return x @ weights[f"{name}/w"][0] + weights[f"{name}/b"]

    def layer_norm(x, name):
        return norm(x, weights[f"{name}/g"], weights[f"{name}/b"])

    def heads(x):
        return x.reshape(seq, n_head, -1).swapaxes(0, 1)  # [heads, seq, head_features]

    h = drop(weights["model/wte"][tokens] + weights["model/wpe"][:seq], "embd")
    n_layer = sum(name.endswith("/ln_1/g") for name in weights)
    for layer in range(n_layer):
        scope = f"model/h{layer}"
        q, k, v = map(heads, np.split(linear(layer_norm(h, f"{scope}/ln_1"), f"{scope}/attn/c_attn"), 3, axis=-1))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        scores[:, np.triu(np.ones([seq, seq], bool), 1)] = -np.inf
        a = (drop(softmax(scores), "attn", layer) @ v).swapaxes(0, 1).reshape(seq, -1)
        h = h + drop(linear(a, f"{scope}/attn/c_proj"), "attn/c_proj", layer)
        m = gelu(linear(layer_norm(h, f"{scope}/ln_2"), f"{scope}/mlp/c_fc"))
        h = h + drop(linear(m, f"{scope}/mlp/c_proj"), "mlp/c_proj", layer)
    return layer_norm(h, "model/ln_f") @ weights["model/wte"].T


def loss(weights, n_head, rows, drops=()):
    """rows: [batch, seq + 1] ids; drops: one of `dropper` for each -> the mean cross-entropy in nats"""
    losses = []
    for row, drop in zip(rows, drops or [lambda x, *place: x] * len(rows), strict=True):
        logits = forward(weights, n_head, row[:-1], drop)
        losses.append(-np.log(softmax(logits)[np.arange(len(row) - 1), row[1:]]))
    return np.mean(losses)


def lowbias32(x):
    """Chris Wellons' hash of 32 bits, on any shape of integers."""
    x = np.asarray(x, np.uint64) & 0xFFFFFFFF
    x = (x ^ x >> np.uint64(16)) * np.uint64(0x7FEB352D) & 0xFFFFFFFF
    x = (x ^ x >> np.uint64(15)) * np.uint64(0x846CA68B) & 0xFFFFFFFF
    return x ^ x >> np.uint64(16)


def dropper(rates, seed, step, row):
    """The dropout of one row of a step: a function of (x, place, layer). rates: {place: share}"""
    key = lowbias32(row + lowbias32(step + lowbias32(seed)))

    def drop(x, place, layer=None):
        if place == "embd":
            at = lowbias32(key + 1)
        else:
            number = ("attn", "attn/c_proj", "mlp/c_proj").index(place)
            at = lowbias32(lowbias32(key + 2 + layer) + 1 + number)
        numbers = lowbias32(lowbias32(np.arange(x.size)) ^ at).reshape(x.shape)
        return np.where(numbers < rates[place] * 2**32, 0, x / (1 - rates[place]))

    return drop


def top_k_kept(logits, k):
    """[vocab] -> the set of indices that top-k keeps."""
    return set(range(len(logits))) if k == 0 else set(np.flatnonzero(logits >= np.sort(logits)[::-1][:k][-1]))


def top_p_kept(logits, p):
    """[vocab] -> (the set of indices that top-p keeps, how near a running sum comes to p)."""
    descending = np.sort(logits)[::-1]
    sums = np.cumsum(softmax(descending))
    smallest = descending[max((sums <= p).sum() - 1, 0)]
    return set(np.flatnonzero(logits >= smallest)), np.abs(sums - p).min()


def pick(logits, kept, u):
    """The index that the inverse CDF over the kept logits gives for u."""
    e = np.zeros(len(logits))
    index = sorted(kept)
    e[index] = np.exp(logits[index] - logits[index].max())
    cdf = np.cumsum(e)
    return int(np.searchsorted(cdf, u * cdf[-1], side="right"))


def philox4x32(key, counter):
    """Ten rounds of Philox: key of two 32-bit words, counter of four -> four words (Salmon et al., SC11)."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3
