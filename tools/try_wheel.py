"""Install a built wheel into an empty environment, and run the quickstart of the documentation there.

    python tools/try_wheel.py dist build/wheel

The environment is made anew in the second folder, with the versions of constraints.txt. The quickstart runs in a
temporary folder and in isolated mode: nothing of the checkout can be imported.
"""

from __future__ import annotations

__all__ = ["cells", "main"]

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "docs" / "tutorials" / "quickstart.md"
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What the code sees first: the package comes from the environment.
BEFORE = "import sys, equipoise\nassert equipoise.__file__.startswith(sys.prefix), equipoise.__file__\n"


def cells(text: str) -> list[str]:
    """The code of a MyST notebook, cell by cell, without the options of the cells.

    Example:
        >>> cells("Text.\\n```{code-cell} ipython3\\n:tags: [hide-input]\\nprint(1)\\n```\\n")
        ['print(1)\\n']
    """
    return [re.sub(r"\A(?:---\n.*?\n---\n|(?::[^\n]*\n)+)", "", code, flags=re.DOTALL) for code in CELL.findall(text)]


def main(dist: str, folder: str) -> int:
    wheels = sorted(Path(dist).glob("equipoise-*.whl"))
    if len(wheels) != 1:
        print(f"{dist} holds {len(wheels)} wheels of equipoise; build one with `python -m build`")
        return 1
    code = cells(QUICKSTART.read_text(encoding="utf-8"))
    venv.create(folder, clear=True, with_pip=True)
    python = Path(folder).absolute() / ("Scripts" if os.name == "nt" else "bin") / "python"
    wanted = f"equipoise[all] @ {wheels[0].absolute().as_uri()}"
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wanted]
    subprocess.run(install, check=True)
    with tempfile.TemporaryDirectory() as empty:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"MPLBACKEND": "Agg"}
        script = Path(empty) / "quickstart.py"
        script.write_text(BEFORE + "\n".join(code), encoding="utf-8")
        subprocess.run([python, "-I", script], check=True, cwd=empty, env=environment)
        subprocess.run([python.parent / "equipoise", "methods"], check=True, cwd=empty, env=environment)
    print(f"{wheels[0].name}: installed into {folder}, and the {len(code)} cells of the quickstart ran")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
