"""Print samples from a model. The same as `gpt2tf sample`."""

from gpt2tf.cli import main

if __name__ == "__main__":
    main(command="sample")
