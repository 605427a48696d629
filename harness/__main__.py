"""Entry point of ``python -m harness``, an alias of ``stormproof``."""

from stormproof.__main__ import main

if __name__ == "__main__":
    main()
