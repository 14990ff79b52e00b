"""What llama.cpp makes of a head: the logits of drafts, in a process of its own.

It drives the library's own contexts of EAGLE-3 heads, MTP blocks and Gemma 4's assistants as its
`common/speculative.cpp` does. The functions that hand over hidden states are exported as C++, hence
the names.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.llama_peer import PeerError

Rows = NDArray[np.float32]
_ASSISTANT = "gemma4-assistant"


def drafted(
    trunk: Path, head: Path | None, ids: Sequence[int], starts: Sequence[int], depth: int
) -> Rows:
    """Return the logits of `depth` drafts at each start; [starts, depth, vocab] f32.

    The first draft at t has read the trunk up to t and the token t + 1, each further one a token of
    `ids` more. Without a head, the trunk's own MTP block drafts. Raises PeerError.
    """
    request = {"trunk": str(trunk), "head": None if head is None else str(head)}
    whole = request | {"ids": list(ids), "starts": list(starts), "depth": depth}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        line = [sys.executable, "-m", __name__, json.dumps(whole), str(out)]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode != 0:
            raise PeerError(f"llama.cpp ended with {done.returncode}: {done.stderr[-2000:]}")
        found: Rows = np.load(out)
        return found


class Library:
    """llama.cpp with the few calls that are needed here."""

    def __init__(self) -> None:
        import llama_cpp.llama_cpp as library

        self.api: Any = library
        library.llama_backend_init()

    def private(self, name: str, result: Any, *arguments: Any) -> Any:
        """Return a function by its C++ name."""
        function = getattr(self.api._lib, name)
        function.restype, function.argtypes = result, arguments
        return function

    def model(self, path: str) -> Any:
        parameters = self.api.llama_model_default_params()
        parameters.load_mtp = True
        model = self.api.llama_model_load_from_file(path.encode(), parameters)
        if not model:
            raise SystemExit(f"llama.cpp cannot read {path}")
        return model

    def architecture(self, model: Any) -> str:
        said = ctypes.create_string_buffer(64)
        key = b"general.architecture"
        self.api.llama_model_meta_val_str(model, key, said, len(said))
        return said.value.decode()

    def context(self, model: Any, other: Any = None, is_mtp: bool = False) -> Any:
        parameters = self.api.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 512, 512, 512
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.flash_attn_type = 0
        parameters.type_k = parameters.type_v = 0  # F32
        if other is not None:
            parameters.ctx_other = other
        if is_mtp:
            parameters.ctx_type = self.api.LLAMA_CONTEXT_TYPE_MTP
        context = self.api.llama_init_from_model(model, parameters)
        if not context:
            raise SystemExit("llama.cpp makes no context")
        return context

    def process(
        self, context: Any, tokens: Sequence[int] | None, states: Rows | None, first: int
    ) -> None:
        """Decode tokens, with states beside them, or encode states alone; all rows are put out."""
        api = self.api
        batch = api.llama_batch_ext_init(context)
        kept = []
        for row in range(len(states) if tokens is None else len(tokens)):  # type: ignore[arg-type]
            embd = None
            if states is not None:
                values = np.ascontiguousarray(states[row], np.float32)
                pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
                embd = api.llama_embd(pointer, 1, len(values))
                kept.append(values)
            if tokens is None:
                index = api.llama_batch_ext_add_embd(batch, 0, embd)
            else:
                index = api.llama_batch_ext_add_token(batch, 0, tokens[row])
                if embd is not None:
                    assert api.llama_batch_ext_set_embd_token(batch, index, embd)
            assert index == row
            api.llama_batch_ext_set_pos(batch, index, ctypes.byref(ctypes.c_int32(first + row)))
            api.llama_batch_ext_set_output_logits(batch, index, True)
        # 0 encodes, 1 decodes.
        code = api.llama_process(context, int(tokens is not None), batch)
        api.llama_batch_ext_free(batch)
        if code != 0:
            raise SystemExit(f"llama.cpp's pass ended with {code}")

    def rows(self, pointer: Any, count: int, width: int) -> Rows:
        return np.ctypeslib.as_array(pointer, (count, width)).copy()


class Drafting:
    """A trunk's context and that of what drafts for it."""

    def __init__(self, trunk: str, head: str | None) -> None:
        self.library = library = Library()
        api, floats = library.api, ctypes.POINTER(ctypes.c_float)
        pointer, number = ctypes.c_void_p, ctypes.c_uint32
        target = library.model(trunk)
        self.width = api.llama_model_n_embd(target)
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(target))
        self.target = library.context(target)
        nextn = library.private(
            "_Z26llama_set_embeddings_nextnP13llama_contextbb",
            None,
            pointer,
            ctypes.c_bool,
            ctypes.c_bool,
        )
        self.states = library.private(
            "_Z26llama_get_embeddings_nextnP13llama_context", floats, pointer
        )
        self.taps: list[int] = []
        model = None if head is None else library.model(head)
        self.is_assistant = model is not None and library.architecture(model) == _ASSISTANT
        self.is_mtp = head is None or self.is_assistant
        if self.is_mtp:
            self.draft = library.context(model or target, self.target, is_mtp=head is None)
            nextn(self.target, True, False)
        else:
            self.draft = library.context(model, self.target)
            layers = library.private(
                "_Z28llama_model_target_layer_idsPK11llama_model",
                ctypes.POINTER(ctypes.c_int32),
                pointer,
            )(model)
            self.taps = layers[:3]
            extract = library.private(
                "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
                None,
                pointer,
                number,
                ctypes.c_bool,
            )
            for layer in self.taps:
                extract(self.target, layer, True)
            self.tap = library.private(
                "_Z30llama_get_embeddings_layer_inpP13llama_contextj", floats, pointer, number
            )
        nextn(self.draft, True, True)

    def read(self, ids: Sequence[int]) -> Rows:
        """Return what a head starts from, for each token; [tokens, width]."""
        library, count = self.library, len(ids)
        library.process(self.target, ids, None, 0)
        if self.is_mtp:
            return library.rows(self.states(self.target), count, self.width)
        taps = [library.rows(self.tap(self.target, tap), count, self.width) for tap in self.taps]
        library.process(self.draft, None, np.concatenate(taps, 1), 0)
        return library.rows(self.states(self.draft), count, self.width)

    def chain(self, ids: Sequence[int], states: Rows, start: int, depth: int) -> Rows:
        """Return the logits of the drafts from one start, before all that were asked; [depth,
        vocab].
        """
        library, api = self.library, self.library.api
        given, tokens, first = states[: start + 1], list(ids[1 : start + 2]), 0
        if self.is_assistant:  # which keeps nothing, and sees what the trunk has
            assert api.llama_memory_seq_rm(api.llama_get_memory(self.target), 0, start + 1, -1)
            given, tokens, first = given[start:], tokens[start:], start + 1
        else:
            api.llama_memory_clear(api.llama_get_memory(self.draft), True)
        found = []
        for ahead in range(depth):
            library.process(self.draft, tokens, given, first)
            logits = library.rows(api.llama_get_logits(self.draft), len(tokens), self.vocab_size)
            found.append(logits[-1])
            given = library.rows(self.states(self.draft), len(tokens), self.width)[-1:]
            first += 0 if self.is_assistant else len(tokens)
            tokens = [ids[start + 2 + ahead]]
        return np.stack(found)


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.argv[1])
    drafting = Drafting(request["trunk"], request["head"])
    ids, depth = request["ids"], request["depth"]
    states = drafting.read(ids)
    starts = sorted(request["starts"], reverse=True)
    rows = {start: drafting.chain(ids, states, start, depth) for start in starts}
    np.save(sys.argv[2], np.stack([rows[start] for start in request["starts"]]))


if __name__ == "__main__":
    main()
