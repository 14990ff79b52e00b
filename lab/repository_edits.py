"""Makes transcripts of the edits of a repository, and the folder that they were made in.

    python -m lab.repository_edits OUT --repository FOLDER --since COMMIT [--files 24] [--ends .py]

OUT gets `before`, the repository's files at that commit, to build a datastore from; `added.jsonl`,
files that came since, of 30 to 250 lines, after their first four; `edited.jsonl`, files that have
changed since, after what they were. Then:

    edgespec store build OUT/before --out OUT/s.store
    edgespec replay OUT/added.jsonl --store OUT/s.store --drafters trigram,hierarchy
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path

from lab.harness import Asked, Rows, Script, option

LEAST_LINES, MOST_LINES, FIRST_LINES = 30, 250, 4
script = Script(__doc__)


def git(repository: Path, *words: str) -> bytes:
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def lines_of(repository: Path, commit: str, path: str) -> list[str]:
    return git(repository, "show", f"{commit}:{path}").decode().splitlines(keepends=True)


@script.command(
    option("out", type=Path),
    option("--repository", type=Path, required=True),
    option("--since", required=True),
    option("--files", type=int, default=24),
    option("--ends", default=".py"),
)
def repository_edits(asked: Asked) -> Rows:
    """Files spread evenly over those there are, in order of their names."""
    asked.out.mkdir(parents=True, exist_ok=True)
    archive = git(asked.repository, "archive", asked.since)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(asked.out / "before", filter="data")
    for name, letter in (("added", "A"), ("edited", "M")):
        changed = git(
            asked.repository, "diff", "--no-renames", f"--diff-filter={letter}", "--name-only",
            asked.since, "HEAD",
        ).decode().split("\n")  # fmt: skip
        found = []
        for path in sorted(one for one in changed if one.endswith(asked.ends)):
            new = lines_of(asked.repository, "HEAD", path)
            if LEAST_LINES <= len(new) <= MOST_LINES:
                old = lines_of(asked.repository, asked.since, path) if letter == "M" else []
                prompt = old or new[:FIRST_LINES]
                found.append((path, prompt, new if old else new[FIRST_LINES:]))
        chosen = found[:: max(len(found) // asked.files, 1)][: asked.files]
        with open(asked.out / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for path, prompt, output in chosen:
                line = {"path": path, "prompt": "".join(prompt), "output": "".join(output)}
                file.write(json.dumps(line) + "\n")
        yield {"set": name, "transcripts": len(chosen), "of": len(found)}


if __name__ == "__main__":
    script.run()
