"""Every variable of a GPT-2 checkpoint: its name and its shape, for given hparams.

Mirrors the variable scopes of openai/gpt-2 src/model.py:144-174, in the order in which the original
graph creates them. Differences: none in the names; what the original left to `Saver.restore` to find
out is compared here, both ways, and said in one line.
"""

from __future__ import annotations

import math
import re

from gpt2tf.hparams import PUBLISHED, HParams, size_name

Shapes = dict[str, tuple[int, ...]]


def variable_shapes(hparams: HParams) -> Shapes:
    """{name: shape} of every variable, `model/wpe` first, as the original creates them."""
    nx = hparams.n_embd
    shapes: Shapes = {"model/wpe": (hparams.n_ctx, nx), "model/wte": (hparams.n_vocab, nx)}

    def norm(scope):
        shapes[f"{scope}/g"] = shapes[f"{scope}/b"] = (nx,)

    def conv1d(scope, n_in, n_out):
        shapes[f"{scope}/w"] = (1, n_in, n_out)
        shapes[f"{scope}/b"] = (n_out,)

    for layer in range(hparams.n_layer):
        norm(f"model/h{layer}/ln_1")
        conv1d(f"model/h{layer}/attn/c_attn", nx, 3 * nx)
        conv1d(f"model/h{layer}/attn/c_proj", nx, nx)
        norm(f"model/h{layer}/ln_2")
        conv1d(f"model/h{layer}/mlp/c_fc", nx, 4 * nx)
        conv1d(f"model/h{layer}/mlp/c_proj", 4 * nx, nx)
    norm("model/ln_f")
    return shapes


def is_matrix(name: str) -> bool:
    """Whether a variable multiplies activations: wte and every w, and not wpe, whose rows are added."""
    return name.endswith(("/w", "/wte"))


def parameter_count(hparams: HParams) -> int:
    """Number of scalars in the model: 124,439,808 for 124M."""
    return sum(map(math.prod, variable_shapes(hparams).values()))


def leading_scope(names) -> str | None:
    """What stands before `wte` in the model's names ("model/", "" or another), or None without one.

    The original's Saver wrote "model/"; training code around it may have put its own scope in front.
    Optimizer slots (`model/wte/Adam`) do not end in `wte` and so do not count; of several scopes
    (a moving average beside the weights) the model's is "model/", or else the shortest.
    """
    scopes = [name[: -len("wte")] for name in names if re.search(r"(^|/)wte$", name)]
    return min(scopes, key=lambda scope: (scope != "model/", len(scope), scope), default=None)


def infer_hparams(shapes: Shapes) -> HParams | None:
    """The hparams that these variables (names starting with `model/`) belong to, or None.

    n_head leaves no trace in the shapes, and a wrong one gives wrong text without an error: only an n_embd
    of a published model tells it.
    """
    heads = {published.n_embd: published.n_head for published in PUBLISHED.values()}
    wte, wpe = shapes.get("model/wte", ()), shapes.get("model/wpe", ())
    n_layer = len({name.split("/")[1] for name in shapes if re.match(r"model/h\d+/", name)})
    if len(wte) != 2 or len(wpe) != 2 or 0 in (*wte, *wpe) or not n_layer or wte[1] not in heads:
        return None
    return HParams(n_vocab=wte[0], n_ctx=wpe[0], n_embd=wte[1], n_head=heads[wte[1]], n_layer=n_layer)


def difference(hparams: HParams, found: Shapes) -> str | None:
    """One line on how `found` differs from the variables of `hparams`, or None where it does not.

    Variables of `found` that the model lacks are listed only where they lie in its own layers.
    """
    expected = variable_shapes(hparams)
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    wrong = [name for name in expected if name in found and found[name] != expected[name]]
    if not (missing or extra or wrong):
        return None
    inferred = infer_hparams(found)
    size = inferred and size_name(inferred)
    if size and PUBLISHED[size] != hparams:
        return f"these shapes are {size}'s, hparams.json says {size_name(hparams) or hparams}"
    parts = [
        missing and f"lacks {some(missing)}",
        extra and f"has {some(extra)} beyond the model",
        wrong and f"has {some([f'{name} {list(found[name])} for {list(expected[name])}' for name in wrong])}",
    ]
    return "; ".join(filter(None, parts))


def some(items: list[str], shown: int = 3) -> str:
    """The first few of a list, and how many more there are."""
    rest = f" and {len(items) - shown} more" if len(items) > shown else ""
    return ", ".join(items[:shown]) + rest
