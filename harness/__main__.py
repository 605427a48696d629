"""``python -m harness`` is ``stormproof``."""

from stormproof.__main__ import main

if __name__ == "__main__":
    main()
