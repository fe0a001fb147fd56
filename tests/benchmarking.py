"""What the tests of the benchmark share: the sizes of a small model, and a machine and an engine of given speed."""

from gpt2tf import HParams
from gpt2tf.bench.machine import Limits
from gpt2tf.bench.peers import Own

TINY = HParams(n_vocab=1000, n_ctx=64, n_embd=48, n_head=4, n_layer=3)  # of golden/tiny-a
MACHINE = Limits(bytes_per_s=10e9, operations_per_s=100e9)


class Paced(Own):
    """In place of our engines, one that needs no compiling and no clock: a second to load, some for the rest."""

    def __init__(self, *job):
        self.job = job

    def call(self, method, *arguments):
        return {"load": 1.0, "update": 0.5, "sample": 0.5 + sum(arguments) / 100}[method]


def log_of_bench(caplog):
    """caplog, of what the benchmark logs."""
    caplog.set_level("WARNING", "gpt2tf")
    caplog.set_level("INFO", "gpt2tf.bench")
    return caplog
