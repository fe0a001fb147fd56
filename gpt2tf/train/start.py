"""The start of a training run: from a `Job`, which describes it, to a `Run` that is ready for its next update.

    job = Job("my_text.txt", "models/mine", ModelFiles.find("124M"), {"steps": 100})
    run = start(job, read_corpus(job))
    for report in run.reports():
        print(report.step, report.loss)

To read the corpus is a step of its own, without TensorFlow: it takes long, and what is wrong with a text is said first.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import logging
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2tf import encoder
from gpt2tf.cluster import read_cluster
from gpt2tf.files import refuse_pointer
from gpt2tf.formats.hugging_face_config import weights_file
from gpt2tf.hparams import HParams
from gpt2tf.locate import ModelFiles
from gpt2tf.train.rows import has_rows
from gpt2tf.train.settings import Settings
from gpt2tf.train.text import TOKENS, find_files, is_encoded
from gpt2tf.train.tokens import Corpus, encode_corpus, join_tokens, open_tokens

if TYPE_CHECKING:
    from gpt2tf.model import GPT2
    from gpt2tf.train.loop import Run
    from gpt2tf.train.saves import Saved

BLOCK = 2**24  # tokens in a part of the checksum

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Job:
    """The description of a run to start.

    data: text or encoded tokens: a file, a folder or a pattern, as for `find_files`.
    folder: of the run, which becomes a model.
    source: the sizes of a new model, or the files of a model to finetune; None resumes the run in the folder.
    settings: fields of `Settings`. A resumed run takes the others from its save, except strategy, which is then "one".
    text_column: of .jsonl, .csv and their kin; "text" if it is None.
    files: of the model to go on from, which is found here; None for a new one.
    chief: whether this process writes the files of the run; of several workers only the first one does.

    Raises ValueError for settings out of range and for a TF_CONFIG that is wrong or that the batch_size does not suit;
    FileExistsError for a folder that already holds a model; FileNotFoundError where there is no data, or no run.
    """

    data: str | os.PathLike
    folder: str | os.PathLike
    source: HParams | ModelFiles | None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    text_column: str | None = None
    files: ModelFiles | None = dataclasses.field(init=False)
    chief: bool = dataclasses.field(init=False)

    def __post_init__(self):
        chief, folder = self._is_chief(), Path(self.folder)
        if self.source is None:
            files = _saved_model(folder)
        # A model may have come without the file `checkpoint`, and the saves of a run take the place of others.
        elif (folder / "checkpoint").exists() or any(folder.glob("*.index")) or weights_file(folder):
            raise FileExistsError(f"{folder} holds a model; give --resume to go on with it, or another --run_name")
        else:
            files = None if isinstance(self.source, HParams) else self.source
        if not glob.glob(os.fspath(self.data), recursive=True):
            os.stat(self.data)  # raises for data that is not there, before there is a new folder
        object.__setattr__(self, "files", files)  # the dataclass is frozen
        object.__setattr__(self, "chief", chief)

    def _is_chief(self) -> bool:
        settings = Settings(**self.settings)
        if settings.strategy != "multiworker":
            return True
        cluster = read_cluster()
        workers = len(cluster.addresses)
        if settings.batch_size % workers and self.source:  # a run that is resumed has its own batch_size
            raise ValueError(f"batch_size is {settings.batch_size}, which {workers} workers cannot share evenly")
        return cluster.chief


def _saved_model(folder: Path) -> ModelFiles:
    """The last save of the run in a folder."""
    if not any(folder.glob("*.index")):
        raise FileNotFoundError(f"{folder} holds no run to resume; leave --resume out to start one")
    files = ModelFiles.at(folder)
    if not re.search(r"model-\d+$", files.prefix):
        raise FileNotFoundError(
            f"{files.prefix} is no save of a run; start one from it with finetune, --model_name {folder} and "
            "another --run_name"
        )
    return files


def read_corpus(job: Job, folder: str | os.PathLike | None = None) -> Corpus:
    """The corpus of a job. Text is encoded once, to a file that a run that is resumed finds in its folder.

    folder: where this process writes, for a worker that is not the chief; else it is the job's.
    Raises ValueError for data that cannot be used, and OSError, as `find_files`, `documents` and `open_tokens` do.
    """
    folder = Path(folder or job.folder)
    refuse_pointer(job.data)
    files = find_files(job.data)  # before there are new files in their folder
    for file in files:
        refuse_pointer(file)
    if job.text_column is not None and not any(map(has_rows, files)):
        raise ValueError(
            f"text_column is {job.text_column!r}, but nothing in {job.data} has columns; leave it out, or name .jsonl, "
            ".ndjson, .json, .csv or .tsv files"
        )
    folder.mkdir(parents=True, exist_ok=True)
    enc = _vocabulary(job, folder)
    n_vocab, identity = len(enc.encoder), {}
    if is_encoded(files[0]):
        tokens = join_tokens(files, n_vocab)
    else:
        identity["bytes"] = sum(map(os.path.getsize, files))  # a text that changed is noticed before it is encoded
        tokens = None if job.source else _tokens_before(Path(job.folder, TOKENS), n_vocab)
        if tokens is None:
            tokens = encode_corpus(files, enc, folder / TOKENS, job.text_column or "text")
    log.info("%s tokens", f"{len(tokens):,}")
    checksum = 0
    for first in range(0, len(tokens), BLOCK):
        checksum = zlib.crc32(tokens[first : first + BLOCK].tobytes(), checksum)
    return Corpus(tokens, enc, identity | {"tokens": len(tokens), "crc32": checksum})


def _vocabulary(job: Job, folder: Path) -> encoder.Encoder:
    """The vocabulary of the model to go on from; for a new one, that of its size, written to the folder."""
    if job.files is None:
        encoder.write_vocabulary(folder, job.source.n_vocab)
        parent, name = os.path.split(os.path.abspath(folder))
        return encoder.get_encoder(name, parent)
    return job.files.encoder(job.files.hparams and job.files.hparams.n_vocab)


def _tokens_before(path: Path, n_vocab: int):
    """The tokens that the first start of the run left, or None if they are gone or damaged."""
    try:
        tokens = open_tokens(path, n_vocab)
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("%s", error)
        return None
    log.info("using %s, in which the text was encoded before", path)
    return tokens


def start(job: Job, corpus: Corpus) -> Run:
    """The run of a job, ready for its next update. To be called before TensorFlow has made any tensor.

    Raises ValueError for a corpus, settings or a vocabulary that do not fit the model or the save, and for workers that
    differ; FileNotFoundError and ValueError for saves that lack something; MemoryError; ConnectionError.
    """
    from gpt2tf import devices
    from gpt2tf.train import saves
    from gpt2tf.train.loop import Run, remedies
    from gpt2tf.train.update import Trainer

    saved = None if job.source else saves.read_saved(job.folder)
    settings = _resumed_settings(job, corpus, saved) if saved else Settings(**job.settings)
    strategy = devices.make_strategy(settings.strategy)
    with remedies(strategy), strategy.scope():
        devices.check_same(strategy, settings=settings, corpus=corpus.identity, save=saved and saved.progress)
        model = _make_model(job, settings)
        trainer = Trainer(model, settings, strategy)
    if job.files is None:
        model.vocabulary = encoder.read_vocabulary(job.folder)
    elif job.files.hparams is None:  # the size was not known before
        job.files.check_vocabulary(corpus.enc, model.hparams.n_vocab)
    return Run(trainer, corpus, job.folder, saved=saved, chief=job.chief)


def _resumed_settings(job: Job, corpus: Corpus, saved: Saved) -> Settings:
    """Those of the save but for the given ones. Raises ValueError for another corpus, and where no updates are left."""
    found, expected = corpus.identity, saved.corpus
    if any(expected.get(name, value) != value for name, value in found.items()):
        message = f"{job.data} is not what {job.folder} was trained on; resume with that, or start a new run"
        if found.get("bytes", 0) == expected.get("bytes"):
            message += f", or if it is, remove {Path(job.folder, TOKENS)}, and it is encoded again"
        raise ValueError(message)
    settings = dataclasses.replace(saved.settings, **{"strategy": "one"} | job.settings)
    if saved.progress["step"] >= settings.steps:
        raise ValueError(f"{job.folder} has had {saved.progress['step']} updates; give more --steps than that")
    return settings


def _make_model(job: Job, settings: Settings) -> GPT2:
    from gpt2tf import model as network
    from gpt2tf.checkpoint import load_model

    options = {
        "dropout": settings.dropout,
        "recompute": settings.recompute,
        "dtype": "mixed_bfloat16" if settings.dtype == "bfloat16" else "float32",
    }
    if job.files is None:
        start = functools.partial(network.initial_value, seed=settings.seed)
        return network.GPT2(job.source, initial_value=start, **options)
    return job.files.load(lambda prefix: load_model(prefix, **options))
