"""`python -m offtrace` is `offtrace`."""

from offtrace.cli import main

if __name__ == "__main__":
    main()
