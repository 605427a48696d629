"""``scripts/prose`` finds odd sentences in docstrings, comments, messages and pages, and holds packages to a limit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "prose"

MODULE = '''"""Return the registered owner. ``Whoever is odd`` is code."""

NAME = "x"  # whoever has promised a newer epoch
"""What is kept of it."""


def refuse(name: str) -> None:
    raise ValueError(f"{name}: nobody can tell this one")
'''
PAGE = """# Title

Who comes first is master. The master writes to its log.

```
what is in a block is code
```
"""


def prose(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/prose", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)


def test_findings_and_limit(tmp_path: Path) -> None:
    for folder in ("scripts", "harness", "tests"):
        (tmp_path / folder).mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    (tmp_path / "harness" / "one.py").write_text(MODULE)
    (tmp_path / "tests" / "one.py").write_text(MODULE)
    (tmp_path / "README.md").write_text(PAGE)
    result = prose(tmp_path, "--list", "9")
    shares = [line.split() for line in result.stdout.splitlines() if line.startswith(("kind", "package"))]
    assert {" ".join(words[:2]): (int(words[2]), int(words[4])) for words in shares} == {
        "kind comment": (1, 1), "kind docstring": (1, 3), "kind message": (1, 1), "kind page": (1, 2),
        "package README.md": (1, 2), "package harness": (3, 5),
    }  # fmt: skip
    assert "harness/one.py:3: whoever has promised a newer epoch" in result.stdout and result.returncode == 0
    assert prose(tmp_path, "--limit", "60").returncode == 0
    limited = prose(tmp_path, "--limit", "50")
    assert limited.returncode == 1 and "package harness: 60.0 %" in limited.stdout.splitlines()[-1]
    assert prose(tmp_path, "--limit", "50", "README.md").returncode == 0
