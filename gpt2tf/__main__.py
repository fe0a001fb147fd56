"""`python -m gpt2tf` is `gpt2tf`, whatever modules lie in the working directory, which Python would look into first."""

import os
import sys

if __name__ == "__main__":
    if sys.path[0] == os.path.abspath(".") != os.path.dirname(os.path.dirname(__file__)):
        del sys.path[0]

    from gpt2tf.cli import main

    main()
