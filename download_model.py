"""Fetch a published model. The same as `gpt2tf download`."""

from gpt2tf.cli import main

if __name__ == "__main__":
    main(command="download")
