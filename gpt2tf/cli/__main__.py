"""`python -m gpt2tf.cli` is `gpt2tf`."""

from gpt2tf.cli import main

if __name__ == "__main__":
    main()
