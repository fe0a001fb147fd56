"""The programs for a GPU, as they are given to XLA: nothing in them for which the host would wait, and no copies."""

import re

import pytest

from gpt2tf import Generator
from gpt2tf.checks import DTYPES


def count(text, operation):
    """How many instructions of HLO are of this kind."""
    return len(re.findall(rf" = \S+(?: \S+)* {operation}\(", text))


def lowered(net, platform, dtype="float32", batch=1):
    return Generator(net, dtype, platform=platform).lower(batch, 20, 30)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_host_never_waits_but_for_a_token(tiny, dtype, batch):
    programs = lowered(tiny, "GPU", dtype, batch)
    whiles = {name: count(text, "while") for name, text in programs.items()}
    assert whiles == {"prefill": 0, "decode": 1}
    for text in programs.values():
        assert count(text, "dot") > 4 * tiny.hparams.n_layer  # it is a whole network
        assert not count(text, "conditional") + count(text, "opt-barrier") + count(text, "custom-call")
    assert [count(programs[name], "sort") for name in ("prefill", "decode")] == [0, 1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_no_matrix_is_there_in_float32(tiny, dtype):
    n_embd = tiny.hparams.n_embd
    for text in lowered(tiny, "GPU", dtype).values():
        for n_out, n_in in [(3, 1), (1, 1), (4, 1), (1, 4)]:
            matrix = rf"\[{n_out * n_embd},{n_in * n_embd}\]"
            assert re.search(rf"\b(bf16|f16|s8){matrix}", text)
            assert not re.search(rf"\bf32{matrix}", text)


def test_the_cache_is_written_in_place(tiny):
    for platform in ("GPU", "CPU"):
        for text in lowered(tiny, platform).values():
            aliases = re.search(r"input_output_alias=\{(.*?)\}, entry", text)[1]
            assert aliases.count("alias)") == 2  # keys and values


def test_what_a_cpu_gets_is_another_program(tiny):
    """Such as a GPU would wait for: what the tests above look for is found where it is."""
    decode = lowered(tiny, "CPU")["decode"]
    assert count(decode, "conditional") and count(decode, "opt-barrier") and not count(decode, "sort")
    assert count(decode, "while") > 1
