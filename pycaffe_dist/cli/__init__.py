"""The command line: a module with a ``run`` function is a command; ``main`` finds and runs it.

A command module is cheap to import (``run`` imports heavy modules) and has::

    '''Score a model.'''                                  # the first line is its help text

    def add_flags(parser: FlagParser) -> None: …          # see flags.py
    def run(options: argparse.Namespace) -> int: …        # the exit status; raises PcaffeError
"""
