"""The command line. `main` runs a command."""


def main(command=None, argv=None):
    from gpt2tf.cli import process

    process.main(command, argv)
