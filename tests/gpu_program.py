#!/usr/bin/env python3
"""Compile an XLA program for an H200 on a machine without a GPU, and say what the GPU would have to do.

    python3 -m venv gpuc && gpuc/bin/pip install "jax[cuda12]"          (about 2 GB, once)
    gpt2tf benchmark --lower gpu DIR && gpuc/bin/python tests/gpu_program.py DIR/decode.hlo [--turns N] [--json]

The HLO may be of any compiled `tf.function`: `experimental_get_compiler_ir(*args)(stage="hlo")`. The compiler is XLA's
own, for compute capability 9.0, without autotuning, which needs the device. The scheduled program is written beside
the HLO, as DIR/decode.hlo.opt.

For each loop, innermost first, the table gives what ONE iteration costs, everything inside of it included:
  kernels   launches (fusions, library calls, copies)
  syncs     times that the host has to wait for the device: each turn of a loop whose number of turns is not known
            beforehand (estimated by --turns), and each conditional
  MB        bytes that its kernels read and write; a fusion that slices an operand counts the slice
  est. us   for each kernel 2 us, or its bytes at 3.8 TB/s if that is longer; 8 us for each sync
The estimate knows no arithmetic (right for decoding, not for prompts or training) and no autotuned kernels: compare
designs with it, and measure where there is a GPU. temporary_MB is what the program needs beside its arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time

LAUNCH_S, SYNC_S, BYTES_PER_S = 2e-6, 8e-6, 3.8e12
TARGET = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 150000000000
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 patch: 0 }
runtime_version { major: 12 minor: 9 }
device_description_str: "H200"
"""
FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "iota",
    "partition-id",
    "replica-id",
}
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4,
          "s64": 8, "u64": 8, "f64": 8, "c64": 8, "token": 0}  # fmt: skip


def compile_for_gpu(text: str) -> tuple[str, dict]:
    """HLO text -> (the scheduled program's text, figures of the compilation)."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"
    from jax._src.interpreters.mlir import make_ir_context
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies
    from jaxlib import _hlo, _jax
    from jaxlib import xla_client as xc

    topology = topologies.get_topology_desc(platform="cuda", topology_name="", topology="1x1x1", target_config=TARGET)
    text = re.sub(r"(= \S+) copy\(", r"\1 reshape(", text)  # StableHLO has no copies; these keep the shape
    module = _hlo.hlo_module_from_text(text)
    stablehlo = _jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(module.as_serialized_hlo_module_proto()))
    options = xc.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    with make_ir_context():
        parsed = ir.Module.parse(stablehlo)
    start = time.perf_counter()
    executable = topology.devices[0].client.compile(parsed, xc.DeviceList(tuple(topology.devices)), options)
    took = time.perf_counter() - start
    memory = executable.get_compiled_memory_stats()
    figures = {
        "compile_s": round(took, 2),
        "argument_MB": memory.argument_size_in_bytes / 1e6,
        "output_MB": memory.output_size_in_bytes / 1e6,
        "temporary_MB": memory.temp_size_in_bytes / 1e6,
    }
    return executable.hlo_modules()[0].to_string(), figures


def shape_bytes(shape: str) -> int:
    total = 0
    for dtype, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shape):
        n = WIDTHS.get(dtype, 4)
        for d in filter(None, dims.split(",")):
            n *= int(d)
        total += n
    return total


class Instruction:
    LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")

    def __init__(self, line: str):
        root, self.name, rest = self.LINE.match(line).groups()
        self.root = bool(root)
        depth, end = 0, 0
        for end, char in enumerate(rest):  # noqa: B007, the shape may be a tuple with spaces and comments
            depth += (char in "([{") - (char in ")]}")
            if char == " " and not depth:
                break
        self.shape, rest = re.sub(r"/\*.*?\*/", "", rest[:end]), rest[end + 1 :]
        self.op = rest[: rest.index("(")]
        depth, start = 0, len(self.op)
        for end in range(start, len(rest)):
            depth += (rest[end] in "([{") - (rest[end] in ")]}")
            if not depth:
                break
        self.operands = re.findall(r"%([\w.\-]+)", rest[start : end + 1])
        self.inside, self.attributes = rest[start + 1 : end], rest[end + 1 :]
        self.calls = re.findall(
            r"(?:calls|body|to_apply|branch_computations)=\{?(%[\w.\-]+(?:, ?%[\w.\-]+)*)", self.attributes
        )
        self.calls = [c.strip().lstrip("%") for group in self.calls for c in group.split(",")]
        branches = re.findall(r"(?:true|false)_computation=%([\w.\-]+)", self.attributes)
        self.calls += branches


def parse(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    computations, entry, current = {}, "", None
    for line in text.splitlines():
        head = re.match(r"^(ENTRY )?%([\w.\-]+) \(.*\{\s*$", line)
        if head:
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and Instruction.LINE.match(line):
            i = Instruction(line)
            current[i.name] = i
    return computations, entry


def fusion_bytes(fused: dict[str, Instruction]) -> int:
    """What a fused computation reads and writes: slices by their size, updates in place by theirs."""
    users = {}
    for i in fused.values():
        for position, operand in enumerate(i.operands):
            users.setdefault(operand, []).append((i, position))

    def read(name, full):
        total = 0
        for user, position in users.get(name, []):
            if user.op in ("bitcast", "copy") and shape_bytes(user.shape) == full and users.get(user.name):
                total += read(user.name, full)
            elif user.op in ("dynamic-slice", "gather", "slice") and position == 0:
                total += shape_bytes(user.shape)
            elif user.op == "dynamic-update-slice" and position == 0:
                total += 0
            else:
                return full
        return min(total, full)

    def written(name):
        i = fused[name]
        if i.op == "tuple":
            return sum(written(o) for o in i.operands)
        if i.op == "bitcast" and i.operands[0] in fused:
            return written(i.operands[0])
        if i.op == "dynamic-update-slice":
            return shape_bytes(fused[i.operands[1]].shape)
        return shape_bytes(i.shape)

    total = sum(read(i.name, shape_bytes(i.shape)) for i in fused.values() if i.op == "parameter")
    return total + sum(written(i.name) for i in fused.values() if i.root)


def cost(name, computations, turns, table, seen):
    """(kernels, syncs, bytes, seconds) of one run of a computation; loops found on the way go to the table."""
    if name in seen:
        return seen[name]
    kernels = syncs = moved = seconds = 0.0
    body = computations[name]
    for i in body.values():
        if i.op in FREE or i.op.endswith("-done"):
            continue
        if i.op == "while":
            inner = cost(i.calls[0], computations, turns, table, seen)
            known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', i.attributes)
            n = int(known[1]) if known else turns
            wait = 0 if known else 1
            row = {"loop": i.calls[0], "turns": n if known else f"~{n}?", "kernels": inner[0], "syncs": inner[1] + wait,
                   "MB": inner[2] / 1e6, "us": (inner[3] + wait * SYNC_S) * 1e6}  # fmt: skip
            table.append(row)
            add = [n * inner[0], n * (inner[1] + wait), n * inner[2], n * (inner[3] + wait * SYNC_S)]
        elif i.op == "conditional":
            branches = [cost(c, computations, turns, table, seen) for c in i.calls]
            worst = max(branches, key=lambda b: b[3]) if branches else (0, 0, 0, 0)
            add = [worst[0], worst[1] + 1, worst[2], worst[3] + SYNC_S]
        elif i.op == "call":
            add = list(cost(i.calls[0], computations, turns, table, seen))
        else:
            if i.op == "fusion":
                size = fusion_bytes(computations[i.calls[0]])
            else:
                size = shape_bytes(i.shape) + sum(shape_bytes(body[o].shape) for o in i.operands if o in body)
            add = [1, 0, size, max(LAUNCH_S, size / BYTES_PER_S)]
        kernels, syncs, moved, seconds = kernels + add[0], syncs + add[1], moved + add[2], seconds + add[3]
    seen[name] = kernels, syncs, moved, seconds
    return seen[name]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hlo")
    parser.add_argument("--turns", type=int, default=32, help="of a loop whose number of turns is not known (32)")
    parser.add_argument("--opt", action="store_true", help="HLO is a scheduled program already (a .opt file)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with open(args.hlo) as file:
        text = file.read()
    figures = {}
    if not args.opt:
        text, figures = compile_for_gpu(text)
        with open(args.hlo + ".opt", "w") as file:
            file.write(text)
    computations, entry = parse(text)
    table = []
    total = cost(entry, computations, args.turns, table, {})
    table.append(
        {
            "loop": "whole program",
            "turns": 1,
            "kernels": total[0],
            "syncs": total[1],
            "MB": total[2] / 1e6,
            "us": total[3] * 1e6,
        }
    )
    if args.json:
        json.dump(figures | {"loops": table}, sys.stdout, indent=1)
        print()
        return
    print("  ".join(f"{k} {v:.4g}" for k, v in figures.items()))
    print(f"{'one iteration of':44} {'turns':>6} {'kernels':>8} {'syncs':>6} {'MB':>9} {'est. us':>9}")
    for row in table:
        figures = f"{row['kernels']:8.0f} {row['syncs']:6.0f} {row['MB']:9.2f} {row['us']:9.0f}"
        print(f"{row['loop'][:44]:44} {row['turns']!s:>6} {figures}")


if __name__ == "__main__":
    main()
