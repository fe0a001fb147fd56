"""The peers themselves: transformers, CTranslate2 and llama.cpp on the weights of a model.

Runs in a process without this project (see `serve`), so it imports nothing of it. `peers.write_model` leaves a model
in a folder; `Model` writes it in the formats of the engines. An engine is prepared, then loaded, then called; only
the last two count, and libraries are imported where they are used.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import types
from pathlib import Path

import numpy as np

END_OF_TEXT = "<|endoftext|>"
GGUF_NAMES = {
    "ln_1": "attn_norm",
    "attn/c_attn": "attn_qkv",
    "attn/c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp/c_fc": "ffn_up",
    "mlp/c_proj": "ffn_down",
}
TORCH_LEAVES = {"g": "weight", "w": "weight", "b": "bias", "wte": "wte.weight", "wpe": "wpe.weight"}
Q8_0 = 7  # llama.h: LLAMA_FTYPE_MOSTLY_Q8_0


class Model:
    """The model of a folder, in the formats of the engines, each written beside it when it is first asked for."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    @functools.cached_property
    def hparams(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(**json.loads((self.folder / "hparams.json").read_text()))

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """By the original's names; each is read when it is looked at."""
        files = sorted(self.folder.glob("model.*.npy"))
        return {file.stem.replace(".", "/"): np.load(file, mmap_mode="r") for file in files}

    @functools.cached_property
    def vocabulary(self) -> tuple[list[str], list[str]]:
        """Tokens by their id, and the merges."""
        ids = json.loads((self.folder / "encoder.json").read_text(encoding="utf-8"))
        merges = (self.folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
        return sorted(ids, key=ids.get), merges

    def hugging_face(self) -> Path:
        """A folder of transformers, in float32, with a tokenizer."""
        return self._once("hf", self._write_hugging_face)

    def ctranslate2(self, compute_type: str) -> Path:
        """A folder of CTranslate2 with the matrices in this type."""
        from ctranslate2.converters import TransformersConverter

        def write(path):
            TransformersConverter(str(self.hugging_face())).convert(str(path), quantization=compute_type)

        return self._once(f"ct2-{compute_type}", write)

    def gguf(self, dtype: str) -> Path:
        """A file of llama.cpp. dtype: float32, float16, or int8, which is q8_0: blocks of 32 with a 16-bit scale."""
        if dtype == "int8":
            return self._once("int8.gguf", self._quantize_gguf)
        return self._once(f"{dtype}.gguf", lambda path: _write_gguf(path, self, dtype))

    def _once(self, name: str, write) -> Path:
        """The path of this name, by write(path) if it is not there; one that was cut short is written again."""
        path, part = self.folder / name, self.folder / f"part-{name}"
        if not path.exists():
            shutil.rmtree(part, ignore_errors=True)
            write(part)
            os.rename(part, path)
        return path

    def _write_hugging_face(self, folder: Path) -> None:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        hugging_face_model(self).save_pretrained(folder)
        tokens, merges = self.vocabulary
        bpe = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split()) for m in merges])
        end = dict.fromkeys(("eos_token", "bos_token", "unk_token"), END_OF_TEXT)
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(bpe), **end).save_pretrained(folder)

    def _quantize_gguf(self, path: Path) -> None:
        import llama_cpp

        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype, parameters.nthread = Q8_0, os.cpu_count()
        if llama_cpp.llama_model_quantize(str(self.gguf("float32")).encode(), str(path).encode(), parameters):
            raise NotImplementedError("llama.cpp could not quantize the weights")


def hugging_face_model(model: Model):
    """The GPT2LMHeadModel of transformers of these weights, float32, on the CPU."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    h = model.hparams
    config = GPT2Config(
        vocab_size=h.n_vocab,
        n_positions=h.n_ctx,
        n_embd=h.n_embd,
        n_layer=h.n_layer,
        n_head=h.n_head,
        bos_token_id=h.n_vocab - 1,
        eos_token_id=h.n_vocab - 1,
    )
    network, state = GPT2LMHeadModel(config).eval(), {}
    for name, value in model.weights.items():
        *scope, leaf = name.removeprefix("model/").split("/")
        scope = ["h", scope[0][1:], *scope[1:]] if scope and scope[0][1:].isdigit() else scope
        value = np.squeeze(value, 0) if leaf == "w" else value
        state[".".join(["transformer", *scope, TORCH_LEAVES[leaf]])] = torch.from_numpy(np.array(value))
    missing, unexpected = network.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:  # that one is wte again
        raise NotImplementedError(f"this version of transformers names other weights: {(missing + unexpected)[:3]}")
    return network


def _write_gguf(path: Path, model: Model, dtype: str) -> None:
    import gguf

    h = model.hparams
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(h.n_layer)
    writer.add_context_length(h.n_ctx)
    writer.add_embedding_length(h.n_embd)
    writer.add_feed_forward_length(4 * h.n_embd)
    writer.add_head_count(h.n_head)
    writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if dtype == "float32" else gguf.LlamaFileType.MOSTLY_F16)
    tokens, merges = model.vocabulary
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(h.n_vocab - 1)
    writer.add_eos_token_id(h.n_vocab - 1)
    for name, value in model.weights.items():
        *scope, leaf = name.removeprefix("model/").split("/")
        block, scope = ("", scope) if not scope or scope[0] == "ln_f" else (f"blk.{scope[0][1:]}.", scope[1:])
        kind = {"wte": "token_embd", "wpe": "position_embd"}.get(leaf) or GGUF_NAMES.get("/".join(scope), "output_norm")
        value = value[0].T if leaf == "w" else value  # matrices as [out, in]
        stored = np.dtype(dtype if leaf in ("w", "wte") else "float32")
        writer.add_tensor(
            f"{block}{kind}.{'bias' if leaf == 'b' else 'weight'}", np.ascontiguousarray(value).astype(stored)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Engine:
    """What `serve` calls: prepare, load, and then sample, or update, as often as it is asked.

    prepare: imports, conversion, and all that is not the engine's own work. Raises NotImplementedError for what the
    engine cannot do. device: cpu or gpu.
    """

    modules = ()

    def __init__(self, folder: str):
        self.model = Model(folder)

    def check(self) -> None:
        """Raises ModuleNotFoundError for modules that are not installed."""
        missing = [module for module in self.modules if importlib.util.find_spec(module) is None]
        if missing:
            raise ModuleNotFoundError(f"No module named {', '.join(missing)} (pip install 'gpt2tf[bench]')")


def _torch_device(device: str) -> str:
    """torch's name of the device, on whose CPU it gets all threads."""
    import torch

    if device == "gpu" and not torch.cuda.is_available():
        raise NotImplementedError("this torch sees no GPU")
    torch.set_num_threads(os.cpu_count())
    return "cuda" if device == "gpu" else "cpu"


class Transformers(Engine):
    """dtype: all but int8."""

    modules = ("torch", "transformers")

    def prepare(self, dtype: str, prompts: list[list[int]], top_k: int, device: str) -> None:
        import torch
        from transformers import GPT2LMHeadModel, logging

        if dtype == "int8":
            raise NotImplementedError("no int8")
        logging.disable_progress_bar()
        self.where, self.top_k = _torch_device(device), top_k
        self.tokens = torch.tensor(prompts, device=self.where)  # [batch, seq]
        options = {"dtype": getattr(torch, dtype)}
        self.read = functools.partial(GPT2LMHeadModel.from_pretrained, self.model.hugging_face(), **options)

    def load(self) -> None:
        self.network = self.read().eval().to(self.where)

    def sample(self, length: int) -> None:
        import torch

        with torch.inference_mode():
            made = self.network.generate(
                self.tokens,
                attention_mask=torch.ones_like(self.tokens),
                do_sample=True,
                top_k=self.top_k,
                max_new_tokens=length,
                min_new_tokens=length,
                pad_token_id=self.model.hparams.n_vocab - 1,
            )
        batch, seq = self.tokens.shape
        assert made.cpu().shape == (batch, seq + length)


class TransformersUpdate(Engine):
    """Updates the weights as `train.update.Trainer` does by default, on windows of tokens, [batch, window + 1]."""

    modules = Transformers.modules

    def prepare(self, tokens: list[list[int]], device: str) -> None:
        import torch

        self.where = _torch_device(device)
        self.tokens = torch.tensor(tokens, dtype=torch.long, device=self.where)  # [batch, window + 1]

    def load(self) -> None:
        import torch

        self.network = hugging_face_model(self.model).train().to(self.where)
        matrices = [p for p in self.network.parameters() if p.ndim > 1]
        others = [p for p in self.network.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4)

    def update(self) -> None:
        import torch

        self.optimizer.zero_grad()
        logits = self.network(input_ids=self.tokens[:, :-1]).logits  # [batch, window, vocab]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        loss.item()  # waits for a GPU


class CTranslate2(Engine):
    """dtype: what the library has on the device; the weights are written in it too."""

    modules = ("ctranslate2", "torch", "transformers")

    def prepare(self, dtype: str, prompts: list[list[int]], top_k: int, device: str) -> None:
        import ctranslate2

        where = "cuda" if device == "gpu" else "cpu"
        try:
            has = ctranslate2.get_supported_compute_types(where)
        except (ValueError, RuntimeError) as error:
            raise NotImplementedError(str(error)) from None
        if dtype not in has:
            raise NotImplementedError(f"no {dtype} on this {device}")
        self.path = str(self.model.ctranslate2(dtype))
        self.options = {"device": where, "compute_type": dtype, "inter_threads": 1, "intra_threads": os.cpu_count()}
        tokens = self.model.vocabulary[0]
        self.texts, self.top_k = [[tokens[token] for token in prompt] for prompt in prompts], top_k

    def load(self) -> None:
        import ctranslate2

        self.generator = ctranslate2.Generator(self.path, **self.options)

    def sample(self, length: int) -> None:
        results = self.generator.generate_batch(
            self.texts,
            max_length=length,
            min_length=length,
            sampling_topk=self.top_k,
            include_prompt_in_result=False,
            beam_size=1,
        )
        assert all(len(result.sequences_ids[0]) == length for result in results)


class LlamaCpp(Engine):
    """dtype: float32, float16, or int8 (q8_0). One prompt; keys and values are float16, as is the library's default."""

    modules = ("llama_cpp", "gguf")

    def prepare(self, dtype: str, prompts: list[list[int]], top_k: int, device: str) -> None:
        import llama_cpp

        if len(prompts) > 1:
            raise NotImplementedError("its Python interface makes one sample at a time")
        if dtype == "bfloat16":
            raise NotImplementedError("no bfloat16 here")
        if device == "gpu" and not llama_cpp.llama_supports_gpu_offload():
            raise NotImplementedError("this build has no GPU")
        self.path, self.prompt, self.top_k, self.device = str(self.model.gguf(dtype)), prompts[0], top_k, device

    def load(self) -> None:
        import llama_cpp

        threads = os.cpu_count()
        self.network = llama_cpp.Llama(
            self.path,
            n_ctx=self.model.hparams.n_ctx,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=-1 if self.device == "gpu" else 0,
            verbose=False,
        )

    def sample(self, length: int) -> None:
        self.network.reset()  # or it would keep the prompt's keys and values from the last time
        made = self.network.generate(
            list(self.prompt), top_k=self.top_k, top_p=1.0, min_p=0.0, temp=1.0, repeat_penalty=1.0
        )
        for _ in range(length):
            next(made)


ENGINES = {
    "transformers": Transformers,
    "transformers_update": TransformersUpdate,
    "ctranslate2": CTranslate2,
    "llama_cpp": LlamaCpp,
}
