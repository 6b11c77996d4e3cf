"""`python -m saywhy`, which is what torchrun starts."""

from saywhy.cli import main

if __name__ == "__main__":
    main()
