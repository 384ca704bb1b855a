"""`python -m offtrace.cli` is `offtrace`."""

from offtrace.cli import main

if __name__ == "__main__":
    main()
