"""The command line as a program: `tsdfm`, or `python -m tsdfm` for torchrun."""

import os
import signal
import sys

from tsdfm import start


def main() -> int:
    """Run the command. What it needs is loaded only once Ctrl-C and the streams are seen to."""
    signal.signal(signal.SIGINT, start.interrupt)
    try:
        start.open_streams()
        from tsdfm.cli import main as run

        return run()
    except KeyboardInterrupt:  # before the command had begun
        os.write(2, b"tsdfm: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
