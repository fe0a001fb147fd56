"""The checks of arguments: what passes comes back as it was, and the message says what it must be."""

import math

import numpy as np
import pytest

from gpt2tf import checks

NAN = math.nan


@pytest.mark.parametrize(
    "check, good, bad",
    [
        (checks.at_least(1), [1, 1.0, 10**30], {0: "1 or more", NAN: "1 or more"}),
        (checks.at_least(1, 9), [1, 9], {0: "1 or more", NAN: "1 or more", 10: "from 1 to 9"}),
        (checks.at_least(0, notes={0: "off"}), [0], {-1: "0 (off) or more"}),
        (checks.above(0), [1e-30, 10**30], {0: "above 0", NAN: "above 0", -1: "above 0"}),
        (checks.above(0, 9), [0.1, 9], {0: "above 0", NAN: "above 0", 9.1: "above 0 and at most 9"}),
        (checks.between(0, 9), [0, 9], {-1: "from 0 to 9", 10: "from 0 to 9", NAN: "from 0 to 9"}),
        (checks.between(0, 9, {0: "off", 9: "all"}), [0, 9], {-1: "from 0 (off) to 9 (all)"}),
        (checks.fraction, [0, 0.99], {-0.1: "from 0 to below 1", 1: "from 0 to below 1", NAN: "from 0 to below 1"}),
        (checks.one_of(("a", "b")), ["a", "b"], {"c": "one of a, b", "": "one of a, b"}),
    ],
)
def test_a_check_of_a_name_and_a_value(check, good, bad):
    for value in good:
        assert check("it", value) is value
    for value, requirement in bad.items():
        with pytest.raises(ValueError) as error:
            check("it", value)
        shown = repr(value) if isinstance(value, str) else value
        assert str(error.value) == f"it is {shown}; it must be {requirement}"


@pytest.mark.parametrize(
    "check, good, bad, requirement",
    [
        (checks.check_length, [0, 10**6], [-1], "0 or more"),
        (checks.check_batch_size, [1, 10**6], [0, -1], "1 or more"),
        (checks.check_nsamples, [0, 10**6], [-1], "0 (without end) or more"),
        (checks.check_seed, [0, 2**32 - 1], [-1, 2**32], "from 0 to 4294967295"),
        (checks.check_temperature, [0, 1, 1e-5, 1e9], [-1, 9e-6, 1.1e9, NAN], "0 (arg-max) or from 1e-05 to 1e+09"),
        (checks.check_top_k, [0, 2**31 - 1], [-1, 2**31], "from 0 (off) to 2147483647"),
        (checks.check_top_p, [0, 0.5, 1], [-0.1, 1.1, NAN], "from 0 to 1 (off)"),
    ],
)
def test_checks_of_the_sampler(check, good, bad, requirement):
    for value in good:
        assert check(value) is value
    for value in bad:
        with pytest.raises(ValueError) as error:
            check(value)
        name = check.__name__.removeprefix("check_")
        assert str(error.value) == f"{name} is {value}; it must be {requirement}"


def test_a_number_of_numpy_is_shown_as_a_number():
    with pytest.raises(ValueError, match=r"^top_p is 1\.5; it must be"):
        checks.check_top_p(np.float64(1.5))
