"""What the tests of the command line say to `sample.py` and expect of it."""

import pytest
from recorded import GOLDEN

MODEL = ["--model_name", "tiny-a", "--models_dir", str(GOLDEN)]
FOUR = [*MODEL, "--seed", "1", "--length", "4"]
FOUR_TEXT = ' $ into""'  # the first four tokens of the original at seed 1
LONG = "x" * 70  # as many tokens; the window has 64


def header(number):
    return f"======================================== SAMPLE {number} ========================================\n"


def leaving(main, *args, **kwargs):
    """The exit code with which a command leaves, as the shell would have it."""
    with pytest.raises((SystemExit, KeyboardInterrupt)) as left:
        main(*args, **kwargs)
    return 130 if left.type is KeyboardInterrupt else left.value.code or 0
