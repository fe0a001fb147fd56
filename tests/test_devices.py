"""Training and sampling on several devices or machines: the result of one, and an end when a worker is lost."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
from recorded import GOLDEN

from gpt2tf import cli, cluster, devices
from gpt2tf.cli import train as cli_train

ROOT = GOLDEN.parent.parent
SIZES = {"n_vocab": 300, "n_ctx": 8, "n_embd": 8, "n_head": 2, "n_layer": 1}
STEPS = 8
PATIENCE = 180  # seconds; only a failing test waits so long
BARE = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "KERAS_"))}
BARE |= {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # what takes long here is to compile
MAIN = "from gpt2tf.cli import main; main()"
# On a CPU split in two: the commands, lists of words in JSON, one after the other.
COMMANDS = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from gpt2tf.cli import main
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as left:
        print("exit code", left.code, flush=True)
"""
# A worker that gets a signal in the middle of its run.
SIGNALLED = """
import os, signal, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from gpt2tf.train.update import Trainer
update = Trainer.update
def update_or_not(self, step, tokens):
    if step == {step}:
        os.kill(os.getpid(), signal.{signal})
        time.sleep(1)  # for the main thread to see it
    return update(self, step, tokens)
Trainer.update = update_or_not
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a corpus, the sizes of a model, and room for runs."""
    place = tmp_path_factory.mktemp("strategies")
    (place / "hparams.json").write_text(json.dumps(SIZES))
    text = "".join(f"{n} times {n} is {n * n}, and {n} and {n} are {n + n}.\n" for n in range(60))
    (place / "corpus.txt").write_text(text)
    return place


def train_flags(name, *others):
    flags = f"train corpus.txt --hparams hparams.json --models_dir . --run_name {name} --batch_size 4 --accumulate 2"
    flags += " --learning_rate 0.01 --final_rate 1 --dropout 0.2 --validation 0.02 --evaluate_every 2 --save_every 4"
    return [*flags.split(), *others]


SAMPLES = "sample --models_dir . --nsamples 5 --batch_size 2 --length 6 --seed 3 --format jsonl --stop e".split()


@pytest.fixture(scope="module")
def on_one_machine(place):
    """The same training and sampling with one device and with two: [(stdout, exit code)], stderr."""
    steps = ["--steps", str(STEPS)]
    commands = [
        train_flags("one", *steps),
        train_flags("mirrored", *steps, "--strategy", "mirrored"),
        [*SAMPLES, "--model_name", "one"],
        [*SAMPLES, "--model_name", "one", "--strategy", "mirrored"],
        [*SAMPLES, "--model_name", "one", "--shard", "1/2", "--strategy", "mirrored"],
        [*SAMPLES, "--model_name", "one", "--shard", "2/2"],
        train_flags("odd", *steps, "--strategy", "mirrored", "--batch_size", "3"),
    ]
    run = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        env=BARE | {"PYTHONPATH": str(ROOT)},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    parts = re.split(r"exit code (\w+)\n", run.stdout)
    return list(zip(parts[::2], parts[1::2], strict=False)), run.stderr


class Workers:
    """Processes of the real command, each with its TF_CONFIG."""

    def __init__(self, place, flags, preludes=("", ""), job="worker"):
        with socket.socket() as one, socket.socket() as two:
            for free in (one, two):
                free.bind(("127.0.0.1", 0))
            addresses = [f"127.0.0.1:{free.getsockname()[1]}" for free in (one, two)]
        jobs, tasks = {"worker": addresses}, [("worker", 0), ("worker", 1)]
        if job == "chief":
            jobs, tasks = {"worker": addresses[1:], "chief": addresses[:1]}, [("chief", 0), ("worker", 0)]
        self.addresses = addresses
        self.processes = []
        for prelude, (kind, index) in zip(preludes, tasks, strict=True):
            config = json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", prelude + MAIN, *flags, "--strategy", "multiworker"],
                    env=BARE | {"PYTHONPATH": str(ROOT), "TF_CONFIG": config},
                    cwd=place,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def ends(self):
        """Of each worker: (exit code, stdout, stderr). None of them may hang."""
        try:
            outputs = [process.communicate(timeout=PATIENCE) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        return [(p.returncode, *output) for p, output in zip(self.processes, outputs, strict=True)]


def curve(stdout):
    """{step: (loss, validation)} of what training printed."""
    lines = re.findall(r"^step (\d+)  loss ([\d.]+)  validation ([\d.]+)", stdout, re.MULTILINE)
    return {int(step): (float(loss), float(validation)) for step, loss, validation in lines}


def weights_in(folder):
    from gpt2tf.checkpoint import load_weights

    return dict(load_weights(folder)[1])


def assert_same_weights(folder, expected):
    found = weights_in(folder)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5, err_msg=name)  # one update moves by 1e-2


def test_mirrored_training_is_that_of_one_device(place, on_one_machine):
    (one, code), (mirrored, mirrored_code), *_ = on_one_machine[0]
    assert (code, mirrored_code) == ("0", "0")
    assert list(curve(one)) == [2, 4, 6, 8] and curve(one)[8] < curve(one)[2]
    assert curve(mirrored) == {step: pytest.approx(losses, abs=2e-4) for step, losses in curve(one).items()}
    assert_same_weights(place / "mirrored", weights_in(place / "one"))


def test_a_batch_for_which_there_are_too_many_devices(on_one_machine):
    results, stderr = on_one_machine
    assert results[-1] == ("", "1")
    assert "batch_size is 3, which 2 devices cannot share evenly" in stderr


def test_mirrored_samples_are_those_of_one_device(on_one_machine):
    results, stderr = on_one_machine
    assert results[2] == results[3] and results[2][1] == "0"
    assert [json.loads(line)["sample"] for line in results[3][0].splitlines()] == [1, 2, 3, 4, 5]
    assert stderr.count("sampling on 2 devices") == 2  # of two commands
    assert stderr.count("gpt2tf sample: loading") == 4  # of four commands, for all devices together


def test_shards_make_the_samples_of_one_machine(on_one_machine):
    whole, (first, first_code), (second, second_code) = on_one_machine[0][2][0].splitlines(), *on_one_machine[0][4:6]
    assert (first_code, second_code) == ("0", "0")
    assert first.splitlines() == [*whole[:2], whole[4]] and second.splitlines() == whole[2:4]


def test_workers_train_as_one_device_through_a_loss_a_ctrl_c_and_resumption(place, on_one_machine):
    kill = SIGNALLED.format(step=6, signal="SIGKILL")
    flags = train_flags("several", "--steps", "100")
    chief, worker = Workers(place, flags, ("", kill), job="chief").ends()
    assert (chief[0], worker[0]) == (1, -signal.SIGKILL)
    assert re.fullmatch(r"gpt2tf train: another worker is gone .*start all workers again with --resume", last(chief))
    assert worker[1] == "" and "Traceback" not in chief[2]
    expected = curve(on_one_machine[0][0][0])
    assert curve(chief[1]) == {step: pytest.approx(expected[step], abs=2e-4) for step in (2, 4, 6)}
    files = sorted(os.listdir(place / "several"))
    assert [file for file in files if file.endswith((".index", ".npz"))] == ["model-4.index", "training-4.npz"]

    resume = "train corpus.txt --models_dir . --run_name several".split()
    interrupt = SIGNALLED.format(step=STEPS - 1, signal="SIGINT")
    chief, worker = Workers(place, [*resume, "--resume"], ("", interrupt)).ends()
    assert (chief[0], worker[0]) == (130, 130)
    assert "another worker was interrupted, so all have stopped after the same update, which is saved" in chief[2]
    assert worker[1] == "" and worker[2].endswith("Ctrl-C again leaves at once, without saving\n")
    assert curve(chief[1]) == {step: pytest.approx(expected[step], abs=2e-4) for step in (6, 8)}
    assert_same_weights(place / "several", weights_in(place / "one"))
    assert not [file for file in os.listdir(place / "several") if file.endswith(".part")]


def last(end):
    return end[2].splitlines()[-1]


@pytest.fixture
def worker_one_of_two(monkeypatch):
    """Sets TF_CONFIG for the second of two workers: their addresses."""
    with socket.socket() as one, socket.socket() as two:
        for free in (one, two):
            free.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{free.getsockname()[1]}" for free in (one, two)]
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 1)
    return addresses


def test_a_worker_that_never_comes_up(worker_one_of_two):
    with pytest.raises(ConnectionError, match=f"^{worker_one_of_two[0]} did not come up within 1 seconds; start all"):
        cluster.read_cluster().wait()


def test_an_address_that_is_taken(worker_one_of_two):
    port = int(worker_one_of_two[1].split(":")[1])
    with socket.create_server(("", port)), pytest.raises(ConnectionError, match="cannot listen at .*already in use"):
        cluster.read_cluster().wait()


def test_workers_wait_for_one_that_comes_late(worker_one_of_two, monkeypatch):
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 20)
    first, second = cluster.Cluster(tuple(worker_one_of_two), 0), cluster.read_cluster()
    early = threading.Thread(target=first.wait, daemon=True)
    early.start()
    early.join(1)
    assert early.is_alive()
    second.wait()
    port = int(worker_one_of_two[1].split(":")[1])
    with socket.create_server(("", port)):  # as TensorFlow listens when the wait is over
        early.join(PATIENCE)
    assert not early.is_alive()


TWO = {"worker": ["a:1", "b:2"]}


@pytest.fixture
def refused_training(place, monkeypatch, capsys):
    """Runs training by several workers that must be refused in one line before TensorFlow is there: (code, line)."""

    def too_late():
        raise AssertionError("TensorFlow was imported")

    monkeypatch.chdir(place)
    monkeypatch.setattr(cli_train, "silence_tensorflow", too_late)

    def run(*flags):
        with pytest.raises(SystemExit) as left:
            cli.main(train_flags("refused", "--strategy", "multiworker", *flags))
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1) and not (place / "refused").exists()
        return left.value.code, err.removeprefix("gpt2tf train: ").rstrip("\n")

    return run


@pytest.mark.parametrize(
    "config, part",
    [
        (None, "needs the environment variable TF_CONFIG, such as {"),
        ("{", "is not JSON"),
        ("[]", "lacks cluster, task, type or index"),
        ({"cluster": TWO}, "lacks cluster, task, type or index"),
        ({"cluster": TWO, "task": {"type": "worker", "index": None}}, "lacks cluster, task, type or index"),
        ({"cluster": TWO, "task": {"type": "worker", "index": 2}}, "says that this is worker 2"),
        ({"cluster": TWO, "task": {"type": "chief", "index": 0}}, "says that this is chief 0"),
        ({"cluster": TWO | {"ps": ["c:3"]}, "task": {"type": "worker", "index": 0}}, "TF_CONFIG has ps"),
        ({"cluster": {"worker": ["a:1", "b"]}, "task": {"type": "worker", "index": 0}}, "the address 'b'"),
        ({"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}, "an address twice"),
    ],
)
def test_a_wrong_tf_config_is_refused_before_tensorflow(refused_training, monkeypatch, config, part):
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
    else:
        monkeypatch.delenv("TF_CONFIG", raising=False)
    code, line = refused_training()
    assert code == 2 and part in line


def test_a_batch_for_which_there_are_too_many_workers(refused_training, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 1}}))
    assert refused_training("--batch_size", "3") == (2, "batch_size is 3, which 2 workers cannot share evenly")


def test_the_chief_is_the_first_worker_unless_there_is_one_by_name(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 0}}))
    assert cluster.read_cluster().chief
    jobs = TWO | {"chief": ["c:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 0}}))
    assert cluster.read_cluster() == cluster.Cluster(("c:3", "a:1", "b:2"), 1)


@pytest.fixture
def settings_of_tensorflow(monkeypatch):
    """Sets how many GPUs TensorFlow sees: the settings that are then made, in order."""
    import tensorflow as tf

    made, config = [], tf.config
    strategy = lambda devices, cross_device_ops: made.append((devices, cross_device_ops))  # noqa: E731

    def see(number):
        gpus = [types.SimpleNamespace(name=f"GPU:{n}") for n in range(number)]
        some = lambda kind: gpus if kind == "GPU" else [types.SimpleNamespace(name="CPU:0")]  # noqa: E731
        monkeypatch.setattr(config, "list_physical_devices", some)
        monkeypatch.setattr(config, "list_logical_devices", some)
        monkeypatch.setattr(config, "set_visible_devices", lambda *which: made.append(("visible", *which)))
        for name in ("set_memory_growth", "enable_tensor_float_32_execution", "enable_op_determinism"):
            monkeypatch.setattr(
                config.experimental,
                name,
                lambda *values, name=name: made.append((name, *(getattr(value, "name", value) for value in values))),
            )
        monkeypatch.setattr(tf.distribute, "MirroredStrategy", strategy)
        monkeypatch.setattr(tf.distribute, "NcclAllReduce", lambda: "NCCL")
        return made

    return see


def test_a_gpu_shares_its_memory_and_repeats_itself_where_training_asks_for_it(settings_of_tensorflow):
    made = settings_of_tensorflow(1)
    devices.use_device("auto")
    assert made == [("set_memory_growth", "GPU:0", True), ("enable_tensor_float_32_execution", False)]
    made.clear()
    devices.use_device("gpu", tf32=True, repeatable=True)
    assert made[1:] == [("enable_tensor_float_32_execution", True), ("enable_op_determinism",)]
    made.clear()
    devices.use_device("cpu", repeatable=True)
    assert made == [("visible", [], "GPU")]


def test_without_a_gpu_nothing_is_set_for_one(settings_of_tensorflow):
    made = settings_of_tensorflow(0)
    devices.use_device("auto", repeatable=True)
    assert made == [("enable_tensor_float_32_execution", False)]
    with pytest.raises(ValueError, match="TensorFlow sees no GPU"):
        devices.use_device("gpu")


@pytest.mark.parametrize("gpus, devices_and_reduction", [
    (0, (["CPU:0"], None)), (1, (["GPU:0"], None)), (2, (["GPU:0", "GPU:1"], "NCCL")),
])  # fmt: skip
def test_several_gpus_add_up_by_nccl(settings_of_tensorflow, gpus, devices_and_reduction):
    made = settings_of_tensorflow(gpus)
    devices.make_strategy("mirrored")
    assert made == [devices_and_reduction]
