"""`python -m saywhy`: the same as the command `saywhy`; torchrun starts this module."""

from saywhy.cli import main

if __name__ == "__main__":
    main()
