"""The saves of a training run, in a folder that is a complete model for `sample.py`.

Mirrors the folders of nshepperd/gpt-2 and gpt-2-simple: `model-1000.*` beside a `checkpoint` file that names them.
The optimizer's state and the record of the run are in `training-1000.npz`. A save is complete when the `checkpoint`
file that names it is renamed into place; the save before it stays until then, so that a run can be killed at any time
and resumed from its last save.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpt2tf.checkpoint import SCRATCH, save_checkpoint, write_state
from gpt2tf.files import naming, refuse_pointer, replacing
from gpt2tf.locate import find_prefix
from gpt2tf.model import GPT2
from gpt2tf.train.settings import Settings
from gpt2tf.train.tokens import DAMAGE

RECORD = "record"
BEFORE = {"epsilon": 1e-7}  # what saves had that lack the setting


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a save holds beside the weights. corpus: its `identity`; progress: the numbers of `Run` that change."""

    settings: Settings
    corpus: Mapping[str, Any]
    progress: Mapping[str, Any]
    state: list[np.ndarray]  # the optimizer's


def save(folder: str | os.PathLike, model: GPT2, step: int, saved: Saved, keep: int | None = None) -> None:
    """Save a run at a step, and remove its other saves except that of the step `keep`.

    Raises OSError where the disk does; then the save before is as it was.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_others(folder, {saved_step(folder), step, keep})  # an incomplete save may lie there, and takes room
    record = {field: getattr(saved, field) for field in ("corpus", "progress")}
    record["settings"] = dataclasses.asdict(saved.settings)
    with replacing(str(folder / f"training-{step}.npz")) as file:
        arrays = {f"{number:05}": value for number, value in enumerate(saved.state)}
        np.savez(file, **{RECORD: np.array(json.dumps(record))}, **arrays)
    with naming(str(folder)):
        save_checkpoint(model, folder, step)
    _remove_others(folder, {step, keep})


def settle(folder: str | os.PathLike, step: int) -> None:
    """Make the folder that of an earlier step whose save was kept, and remove the later save."""
    if os.path.exists(os.path.join(folder, f"model-{step}.index")):
        part = os.path.join(folder, "checkpoint.part")
        write_state(part, f"model-{step}")
        os.replace(part, os.path.join(folder, "checkpoint"))
        _remove_others(folder, {step})


def _remove_others(folder, steps) -> None:
    """Remove the saves of other steps and incomplete files: no other process writes to the folder of a run."""
    for name in os.listdir(folder):
        save = re.fullmatch(r"(?:model|training)-(\d+)\.(?:npz|index|data-\d+-of-\d+)", name)
        if save and int(save[1]) not in steps:
            os.remove(os.path.join(folder, name))
        elif re.fullmatch(r"(training-\d+\.npz|tokens\.npy)\.\d+\.part", name):
            os.remove(os.path.join(folder, name))
        elif name.startswith(SCRATCH):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def saved_step(folder: str | os.PathLike) -> int | None:
    """The step of the folder's save, or None where it has none."""
    if not os.path.isdir(folder) or not any(name.endswith(".index") for name in os.listdir(folder)):
        return None
    step = re.search(r"model-(\d+)$", find_prefix(folder))
    return step and int(step[1])


def read_saved(folder: str | os.PathLike) -> Saved:
    """What the folder's save holds beside the weights. Raises FileNotFoundError; ValueError for a damaged file."""
    step = saved_step(folder)
    if step is None:
        raise FileNotFoundError(f"{folder} holds no run to resume; leave --resume out to start one")
    path = os.path.join(folder, f"training-{step}.npz")
    refuse_pointer(path)
    try:
        with np.load(path) as arrays:
            record = json.loads(str(arrays[RECORD]))
            state = [arrays[name] for name in sorted(set(arrays.files) - {RECORD})]
        return Saved(Settings(**BEFORE | record["settings"]), record["corpus"], record["progress"], state)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing, without which the run cannot go on as it would have; start a new one from "
            f"this model with --model_name {folder} and another --run_name"
        ) from None
    except (ValueError, OSError, *DAMAGE) as error:
        raise ValueError(f"{path} is damaged ({error}); start a new run from this model with --model_name") from None
