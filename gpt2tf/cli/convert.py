"""`gpt2tf convert`: a model in another format."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from gpt2tf.cli import flags
from gpt2tf.cli.process import UsageError, silence_tensorflow
from gpt2tf.files import refuse_taken, replacing
from gpt2tf.hparams import read_hparams
from gpt2tf.locate import ModelFiles

# What writes a model to a path.
WRITERS = {
    "openai": "gpt2tf.checkpoint:save_checkpoint",
    "hf": "gpt2tf.formats.hugging_face:write_hugging_face",
    "keras": "gpt2tf.formats.keras_file:write_keras",
    "saved_model": "gpt2tf.formats.saved_model:write_saved_model",
}


def add_flags(parser) -> None:
    """The flags of the command."""
    parser.description = "Write a model in another format, to a new folder or file that appears when it is complete."
    parser.add_argument("source", metavar="SRC", help="a model: its name in models_dir, or a folder of either kind")
    parser.add_argument("target", metavar="DST", type=flags.some, help="the new folder, or .keras file")
    parser.add_argument(
        "--to",
        choices=WRITERS,
        required=True,
        help="openai is the original's checkpoint, hf a folder for transformers, keras a .keras file",
    )
    flags.models_dir(parser)
    parser.set_defaults(run=run, prog=parser.prog)


def run(args) -> None:
    """Run the command; args are the parsed flags."""
    try:
        refuse_taken(args.target)
    except FileExistsError as error:
        raise UsageError(str(error)) from None
    if args.to == "keras" and not args.target.endswith(".keras"):
        raise UsageError(f"{args.target} must end in .keras, by which Keras knows the format")
    files = ModelFiles.find(args.source, args.models_dir)
    silence_tensorflow()
    from gpt2tf.checkpoint import load_model

    module, _, write = WRITERS[args.to].partition(":")
    model = files.load(load_model)
    getattr(importlib.import_module(module), write)(model, args.target)
    hparams = os.path.join(files.folder, "hparams.json")
    if args.to in ("openai", "hf") and os.path.exists(hparams) and read_hparams(hparams) == model.hparams:
        with replacing(os.path.join(args.target, "hparams.json")) as file:
            file.write(Path(hparams).read_bytes())  # as the user has it, with all its fields
