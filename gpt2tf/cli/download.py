"""`gpt2tf download`: fetch a published model."""

from __future__ import annotations

from gpt2tf.cli import flags
from gpt2tf.cli.process import UsageError, silence_tensorflow
from gpt2tf.hparams import PUBLISHED, check_name


def add_flags(parser) -> None:
    """The flags of the command."""
    parser.description = "Fetch a published model into models_dir, verified; what was interrupted is resumed."
    parser.add_argument("model_name", metavar="MODEL", help=f"one of {', '.join(PUBLISHED)}")
    flags.models_dir(parser)
    parser.add_argument("--base_url", metavar="URL", help="address of a mirror, with the folders of the original's")
    parser.set_defaults(run=run, prog=parser.prog)


def run(args) -> None:
    """Run the command; args are the parsed flags."""
    from gpt2tf import download

    try:
        name = check_name(args.model_name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    silence_tensorflow()
    download.download_model(name, args.models_dir, args.base_url or download.BASE_URL)
