"""Samples made on several devices and machines at once.

There is nothing like it in openai/gpt-2. The noise of a batch hangs on its number alone, so whole batches are dealt out
and a sample is the same text whoever makes it.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from gpt2tf.cluster import read_cluster
from gpt2tf.devices import check_same, from_workers, losing_workers, make_strategy
from gpt2tf.generate import Generator

PADDING = -1
AGAIN = "start all workers again"

log = logging.getLogger(__name__)


class PlacedGenerator:
    """A Generator on a device. Its `stream` computes there, whichever thread asks."""

    def __init__(self, device: str, path: str | os.PathLike, dtype: str):
        self.device = device
        with tf.device(device):
            self._generator = Generator(path, dtype)
        self.hparams = self._generator.hparams

    def stream(self, *args, **options) -> Iterator[list[np.ndarray]]:
        """As that of Generator."""
        with tf.device(self.device):
            pieces = self._generator.stream(*args, **options)
        while True:
            with tf.device(self.device):
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece


class Spread:
    """A model on every device of a strategy (mirrored or multiworker).

    To be made before any tensor is. path, dtype: as for Generator. Raises as `make_strategy` and Generator do.
    """

    def __init__(self, strategy: str, path: str | os.PathLike, dtype: str):
        self.strategy = make_strategy(strategy)
        self.number = read_cluster().number if strategy == "multiworker" else 0
        devices = self.strategy.extended.worker_devices  # of this machine
        self.generators = [PlacedGenerator(device, path, dtype) for device in devices]
        self.hparams = self.generators[0].hparams
        self._threads = ThreadPoolExecutor(len(devices))
        log.info("sampling on %d devices", self.strategy.num_replicas_in_sync)

    def agree(self, seed: int, **what) -> int:
        """The chief's seed. Raises ValueError where the workers were not asked for the same; ConnectionError."""
        with losing_workers(self.strategy, AGAIN):
            check_same(self.strategy, **what)
            return int(from_workers(self.strategy, seed)[0])

    def batches(
        self,
        make: Callable[[PlacedGenerator, int], list[list[int]]],
        first: int,
        count: int | None,
        batch_size: int,
        length: int,
    ) -> Iterator[list[list[int]]]:
        """Yields, in order, the batches of the numbers from `first` on; the workers all yield all of them.

        make: from a generator and a number to the tokens of a batch, batch_size lists of at most `length`.
        count: how many, or None for no end. Raises as `make` does; ConnectionError when another worker is gone.
        """
        numbers = itertools.count(first) if count is None else iter(range(first, first + count))
        here = self.number * len(self.generators)
        while turn := list(itertools.islice(numbers, self.strategy.num_replicas_in_sync)):
            made = list(self._threads.map(make, self.generators, turn[here:]))  # up to the shorter of the two
            if self.strategy.cluster_resolver is not None:
                made = self._exchanged(made, batch_size, length)
            yield from made[: len(turn)]

    def _exchanged(self, made, batch_size, length):
        """What the devices of this worker have made -> what all devices have."""
        table = np.full([len(self.generators), batch_size, length + 1], PADDING)  # [devices, batch, length + 1]
        for batch, rows in zip(table, made, strict=False):
            for row, tokens in zip(batch, rows, strict=True):
                row[: len(tokens)] = tokens
        with losing_workers(self.strategy, AGAIN):
            table = from_workers(self.strategy, table)  # [workers, devices, batch, length + 1]
        return [[row[row != PADDING].tolist() for row in batch] for batch in table.reshape(-1, *table.shape[2:])]
