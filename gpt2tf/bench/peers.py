"""The peers of a benchmark: other projects' engines, each in a process of its own, which take turns with ours.

In one process TensorFlow and torch's triton end in a segmentation fault, so nothing of a peer is imported here. Its
process runs `serve` on `engines`, with any Python: a line of JSON goes in for each call, and a line of JSON comes out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gpt2tf import encoder
from gpt2tf.bench.machine import timed
from gpt2tf.bench.plan import Plan
from gpt2tf.hparams import HParams, write_hparams

OURS = "gpt2tf"
PAUSE = 0.3  # seconds before each call where engines take turns: OpenMP's threads spin for 0.2 after work
PATIENCE = 1800  # seconds for one answer: converting a large model takes minutes, and what hangs does not end
SERVE, ENGINES = (Path(__file__).with_name(name) for name in ("serve.py", "engines.py"))
# Not as `python PATH`, by which the folder of the script would be the first in which Python looks for modules.
RUN = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"

log = logging.getLogger(__name__)


class PeerError(Exception):
    """A peer cannot do what it was asked, or its process has ended; the message says why."""


class Peer:
    """Another project's engine, in a process of its own, until `close`.

    name: of one of `engines.ENGINES`. python: the program that runs it. folder: where `write_model` leaves a model.
    """

    def __init__(self, name: str, python: str, folder: str):
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [python, "-c", RUN, str(SERVE), str(ENGINES), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=folder,
            encoding="utf-8",
            errors="replace",
        )

    def call(self, method: str, *arguments) -> float:
        """The seconds that the engine's method takes, measured there. Raises PeerError."""
        late = threading.Event()

        def give_up():
            late.set()
            self._process.kill()

        clock = threading.Timer(PATIENCE, give_up)
        clock.start()
        try:
            with contextlib.suppress(OSError):  # of a process that has ended, which its stdout will tell
                print(json.dumps([method, *arguments]), file=self._process.stdin, flush=True)
            answer = next(filter(None, map(_answer, self._process.stdout)), None)
            code = self._process.wait() if answer is None else None
        finally:
            clock.cancel()
        if late.is_set():
            raise PeerError(f"no answer in {PATIENCE} seconds")
        if answer is None:
            ending = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            raise PeerError(f"its process ended {ending} and said: {self._last_line()}")
        if "cannot" in answer:
            raise PeerError(" ".join(answer["cannot"].split()))
        return answer["seconds"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        with contextlib.suppress(OSError):  # what an ended process did not read
            self._process.stdin.close()
        self._stderr.close()

    def _last_line(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else "nothing"


def _answer(line: str) -> dict | None:
    """What a line of `serve` says; None for noise, which whatever Python runs at its start may have printed."""
    with contextlib.suppress(ValueError):
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else None


class Own:
    """Our engine, to be called as a peer is."""

    def call(self, method: str, *arguments) -> float:
        return timed(getattr(self, method), *arguments)


class Turns:
    """Engines that do the same work by turns, since machines are shared and noisy. Use it in a `with`.

    own: our engine. work: what they do, for the log: a peer that fails has a line there, and is left out from then on.
    """

    def __init__(self, own: Own, work: str):
        self.engines: dict[str, Own | Peer] = {OURS: own}
        self._work = work
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.close()

    def add(self, name: str, peer: Peer, *job) -> None:
        """job: what `prepare` of the peer's engine takes. The peer is closed with the turns."""
        self._stack.enter_context(contextlib.closing(peer))
        self.engines[name] = peer
        with self._leaving_out(name):
            peer.call("prepare", *job)

    def take(self, *calls: tuple) -> dict[str, list[float]]:
        """Every engine does all of the calls, (method, *arguments): {name: seconds of each}."""
        times = {}
        for name, engine in list(self.engines.items()):
            with self._leaving_out(name):
                times[name] = [self._call(engine, call) for call in calls]
        return times

    def _call(self, engine, call) -> float:
        time.sleep(PAUSE if len(self.engines) > 1 else 0)
        return engine.call(*call)

    @contextlib.contextmanager
    def _leaving_out(self, name):
        try:
            yield
        except PeerError as reason:
            log.info("%s is left out %s: %s", name, self._work, reason)
            del self.engines[name]


def installed(plan: Plan, folder: str) -> Plan:
    """The plan without the peers that its Python lacks modules of; each of them leaves a line in the log."""
    there = []
    for name in dict.fromkeys(plan.peers):
        with contextlib.closing(Peer(name, plan.peer_python, folder)) as peer:
            try:
                peer.call("check")
                there.append(name)
            except PeerError as reason:
                log.info("%s is left out: with %s, %s", name, plan.peer_python, reason)
    return dataclasses.replace(plan, peers=tuple(there))


def write_model(folder: str, hparams: HParams, weights: Mapping[str, np.ndarray]) -> None:
    """A model for the peers: hparams.json, and of each variable an .npy file under its name with dots for slashes.

    Its vocabulary is the released one, cut or filled up to n_vocab: engines take and give ids, whatever those mean.
    """
    write_hparams(hparams, os.path.join(folder, "hparams.json"))
    vocabulary = encoder.released(min(max(hparams.n_vocab, 257), encoder.RELEASED_SIZE))
    table = json.loads(vocabulary.table)
    table |= {f"<|{token_id}|>": token_id for token_id in range(len(table), hparams.n_vocab)}
    dataclasses.replace(vocabulary, table=json.dumps(table)).write(folder)
    for name in weights:
        np.save(os.path.join(folder, f"{name.replace('/', '.')}.npy"), weights[name])
