"""An editor's agent, aider, through a conversation against the server."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec
from tests.support.http_server import Served, serving

AIDER = os.environ.get("EDGESPEC_AIDER") or shutil.which("aider")
"""It wants an environment of its own: `pip install aider-chat` brings old versions of much."""
EDIT = r'greeting\.py\n```\nGREETING = "[a-z]{3,12}"\n```\n'
"""So small a model knows nothing of edits, so what it writes is bound to be one."""
SAID = ("/add greeting.py", "Choose another greeting.", "And another.", "/exit")

pytestmark = pytest.mark.skipif(AIDER is None, reason="aider is not installed")


@pytest.fixture(scope="module")
def roomy(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The bundled model, said to be good for a context that an agent's instructions fit in."""
    key = b".context_length" + struct.pack("<I", 4)  # a number of 32 bits follows
    content = bytearray(bundled_model.read_bytes())
    place = content.index(key) + len(key)
    content[place : place + 4] = struct.pack("<I", 8192)
    path = tmp_path_factory.mktemp("roomy") / "tiny.gguf"
    path.write_bytes(content)
    with edgespec.load(path, context=8192) as engine, serving(engine) as found:
        yield found


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_aider_edits_a_file(roomy: Served, tmp_path: Path, stream: bool) -> None:
    file, log = tmp_path / "greeting.py", tmp_path / "llm.log"
    file.write_text('GREETING = "x"\n')
    settings = tmp_path / "settings.yml"
    params = {"extra_body": {"regex": EDIT, "seed": 1}, "max_tokens": 400}
    model = {"name": "openai/tiny", "edit_format": "whole", "streaming": stream,
             "use_temperature": False, "extra_params": params}  # fmt: skip
    settings.write_text(json.dumps([model]))  # which is YAML
    assert AIDER is not None
    done = subprocess.run(
        [
            AIDER, "--model", "openai/tiny", "--openai-api-base", f"{roomy.url}/v1",
            "--openai-api-key", "none", "--model-settings-file", str(settings), "--no-git",
            "--yes-always", "--no-pretty", "--no-fancy-input", "--no-check-update",
            "--no-show-model-warnings", "--analytics-disable", "--no-show-release-notes",
            "--map-tokens", "0", "--no-detect-urls", "--no-suggest-shell-commands",
            "--llm-history-file", str(log), "--stream" if stream else "--no-stream",
        ],
        input="\n".join(SAID) + "\n", capture_output=True, text=True, timeout=300, cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    replies = re.findall(r'GREETING = "[a-z]{3,12}"', log.read_text())
    assert len(replies) >= 2, done.stdout
    assert done.stdout.count("Applied edit to greeting.py") == 2, done.stdout
    assert re.fullmatch(r'GREETING = "[a-z]{3,12}"\n', file.read_text())
