"""Other engines on the same weights, for `benchmark` to measure beside: transformers, CTranslate2, llama.cpp.

Each is made by a function (converted, dtype, prompts, top_k, device) that returns a call: so many new tokens after
each of the prompts, by top-k sampling, done when it returns. Weights come by the original's names; a `Converted`
writes them in the formats of the others, to a temporary folder. The engines are imported where they are used.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import encoder
from gpt2tf.hparams import HParams

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


class Unsupported(Exception):
    """The engine cannot do what is asked; the message says what."""


class Converted:
    """The weights of a model in the formats of the peers, each written when it is first asked for.

    weights: by the original's names. Use it in a `with`, which removes the folder in the end.
    """

    def __init__(self, hparams: HParams, weights: Mapping[str, np.ndarray]):
        self.hparams = hparams
        self.weights = weights
        self._scratch = tempfile.TemporaryDirectory(prefix="gpt2tf-peers-")
        self.folder = Path(self._scratch.name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._scratch.cleanup()

    @functools.cached_property
    def vocabulary(self) -> tuple[list[str], list[str]]:
        """Tokens by their id, and the merges: the released ones, cut to n_vocab."""
        encoder.write_vocabulary(self.folder, self.hparams.n_vocab)
        ids = json.loads((self.folder / "encoder.json").read_text(encoding="utf-8"))
        merges = (self.folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
        return sorted(ids, key=ids.get), merges

    @functools.cached_property
    def hugging_face(self) -> Path:
        """A folder of transformers, in float32, with a tokenizer."""
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast, logging

        logging.disable_progress_bar()
        folder = self.folder / "hf"
        hugging_face_model(self.hparams, self.weights).save_pretrained(folder)
        tokens, merges = self.vocabulary
        bpe = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split()) for m in merges])
        end = dict.fromkeys(("eos_token", "bos_token", "unk_token"), encoder.END_OF_TEXT)
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(bpe), **end).save_pretrained(folder)
        return folder

    def ctranslate2(self, compute_type: str) -> Path:
        """A folder of CTranslate2 with the matrices in this type."""
        from ctranslate2.converters import TransformersConverter

        folder = self.folder / f"ct2-{compute_type}"
        if not folder.exists():
            TransformersConverter(str(self.hugging_face)).convert(str(folder), quantization=compute_type)
        return folder

    def gguf(self, dtype: str) -> Path:
        """dtype: float32, float16, or int8, which is q8_0: blocks of 32 with a 16-bit scale."""
        path = self.folder / f"{dtype}.gguf"
        if path.exists():
            return path
        if dtype != "int8":
            _write_gguf(path, self, dtype)
            return path
        import llama_cpp

        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype, parameters.nthread = Q8_0, os.cpu_count()
        if llama_cpp.llama_model_quantize(str(self.gguf("float32")).encode(), str(path).encode(), parameters):
            raise Unsupported("llama.cpp could not quantize the weights")
        return path


def hugging_face_model(hparams: HParams, weights: Mapping[str, np.ndarray]):
    """The GPT2LMHeadModel of transformers with these weights, float32, on the CPU."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    h = hparams
    config = GPT2Config(
        vocab_size=h.n_vocab,
        n_positions=h.n_ctx,
        n_embd=h.n_embd,
        n_layer=h.n_layer,
        n_head=h.n_head,
        bos_token_id=h.n_vocab - 1,
        eos_token_id=h.n_vocab - 1,
    )
    model, state = GPT2LMHeadModel(config).eval(), {}
    for name in weights:
        *scope, leaf = name.removeprefix("model/").split("/")
        scope = ["h", scope[0][1:], *scope[1:]] if scope and scope[0][1:].isdigit() else scope
        value = np.squeeze(weights[name], 0) if leaf == "w" else weights[name]
        state[".".join(["transformer", *scope, TORCH_LEAVES[leaf]])] = torch.from_numpy(np.array(value))
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:  # that one is wte again
        raise Unsupported(f"this version of transformers names other weights: {(missing + unexpected)[:3]}")
    return model


def _write_gguf(path: Path, converted: Converted, dtype: str) -> None:
    import gguf

    h, weights = converted.hparams, converted.weights
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(h.n_layer)
    writer.add_context_length(h.n_ctx)
    writer.add_embedding_length(h.n_embd)
    writer.add_feed_forward_length(4 * h.n_embd)
    writer.add_head_count(h.n_head)
    writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if dtype == "float32" else gguf.LlamaFileType.MOSTLY_F16)
    tokens, merges = converted.vocabulary
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(h.n_vocab - 1)
    writer.add_eos_token_id(h.n_vocab - 1)
    for name in weights:
        *scope, leaf = name.removeprefix("model/").split("/")
        block, scope = ("", scope) if not scope or scope[0] == "ln_f" else (f"blk.{scope[0][1:]}.", scope[1:])
        kind = {"wte": "token_embd", "wpe": "position_embd"}.get(leaf) or GGUF_NAMES.get("/".join(scope), "output_norm")
        value = weights[name][0].T if leaf == "w" else weights[name]  # matrices as [out, in]
        stored = np.dtype(dtype if leaf in ("w", "wte") else "float32")
        writer.add_tensor(
            f"{block}{kind}.{'bias' if leaf == 'b' else 'weight'}", np.ascontiguousarray(value).astype(stored)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


Call = Callable[[int], None]
Prompts = Sequence[Sequence[int]]


def transformers(converted: Converted, dtype: str, prompts: Prompts, top_k: int, device: str) -> Call:
    """dtype: all but int8."""
    import torch
    from transformers import GPT2LMHeadModel, logging

    logging.disable_progress_bar()
    if dtype == "int8":
        raise Unsupported("no int8")
    if device == "gpu" and not torch.cuda.is_available():
        raise Unsupported("this torch sees no GPU")
    where = "cuda" if device == "gpu" else "cpu"
    torch.set_num_threads(os.cpu_count())
    model = GPT2LMHeadModel.from_pretrained(converted.hugging_face, dtype=getattr(torch, dtype)).eval().to(where)
    tokens = torch.tensor(prompts, device=where)  # [batch, seq]

    def sample(length):
        with torch.inference_mode():
            made = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=True,
                top_k=top_k,
                max_new_tokens=length,
                min_new_tokens=length,
                pad_token_id=converted.hparams.n_vocab - 1,
            )
        assert made.cpu().shape == (len(prompts), len(prompts[0]) + length)

    return sample


def transformers_update(hparams: HParams, weights: Mapping[str, np.ndarray], tokens: np.ndarray) -> Callable[[], float]:
    """A call that updates the weights as `trainer.Trainer` does by default, on windows of [batch, window + 1]."""
    import torch

    torch.set_num_threads(os.cpu_count())
    model = hugging_face_model(hparams, weights).train()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4)
    tokens = torch.tensor(tokens, dtype=torch.long)

    def update():
        optimizer.zero_grad()
        logits = model(input_ids=tokens[:, :-1]).logits  # [batch, window, vocab]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return update


def ctranslate2(converted: Converted, dtype: str, prompts: Prompts, top_k: int, device: str) -> Call:
    """dtype: what the library has on the device; the weights are written in it too."""
    import ctranslate2

    where = "cuda" if device == "gpu" else "cpu"
    try:
        has = ctranslate2.get_supported_compute_types(where)
    except (ValueError, RuntimeError) as error:
        raise Unsupported(str(error)) from None
    if dtype not in has:
        raise Unsupported(f"no {dtype} on this {device}")
    folder = str(converted.ctranslate2(dtype))
    generator = ctranslate2.Generator(
        folder, device=where, compute_type=dtype, inter_threads=1, intra_threads=os.cpu_count()
    )
    tokens = converted.vocabulary[0]
    texts = [[tokens[token] for token in prompt] for prompt in prompts]

    def sample(length):
        results = generator.generate_batch(
            texts,
            max_length=length,
            min_length=length,
            sampling_topk=top_k,
            include_prompt_in_result=False,
            beam_size=1,
        )
        assert all(len(result.sequences_ids[0]) == length for result in results)

    return sample


def llama_cpp(converted: Converted, dtype: str, prompts: Prompts, top_k: int, device: str) -> Call:
    """dtype: float32, float16, or int8 (q8_0). One prompt; keys and values are float16, as is the library's default."""
    import llama_cpp

    if len(prompts) > 1:
        raise Unsupported("its Python interface makes one sample at a time")
    if dtype == "bfloat16":
        raise Unsupported("no bfloat16 here")
    if device == "gpu" and not llama_cpp.llama_supports_gpu_offload():
        raise Unsupported("this build has no GPU")
    threads = os.cpu_count()
    model = llama_cpp.Llama(
        str(converted.gguf(dtype)),
        n_ctx=converted.hparams.n_ctx,
        n_threads=threads,
        n_threads_batch=threads,
        n_gpu_layers=-1 if device == "gpu" else 0,
        verbose=False,
    )

    def sample(length):
        model.reset()  # or it would keep the prompt's keys and values from the last time
        made = model.generate(list(prompts[0]), top_k=top_k, top_p=1.0, min_p=0.0, temp=1.0, repeat_penalty=1.0)
        for _ in range(length):
            next(made)

    return sample


# Name: the function that makes it, and the modules that it needs.
PEERS = {
    "transformers": (transformers, ("torch", "transformers")),
    "ctranslate2": (ctranslate2, ("ctranslate2", "torch", "transformers")),
    "llama_cpp": (llama_cpp, ("llama_cpp", "gguf")),
}


def missing_modules(name: str) -> list[str]:
    """The modules of a peer that are not installed."""
    return [module for module in PEERS[name][1] if importlib.util.find_spec(module) is None]
