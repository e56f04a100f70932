"""`python -m edgepeer` is the command line."""

from edgepeer.cli import main

if __name__ == "__main__":
    main()
