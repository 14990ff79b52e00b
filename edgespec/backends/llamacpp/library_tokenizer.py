"""llama.cpp's tokenizers, for the kinds that ours do not know."""

from __future__ import annotations

import ctypes
from typing import Any

from edgespec.backends.llamacpp.model import Model
from edgespec.errors import BackendError
from edgespec.models.file import ModelFile
from edgespec.models.gguf.keys import Keys
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.models.tokenizers.vocabulary import Vocabulary

_MOST_PIECE_BYTES = 512


class LlamaTokenizer(Tokenizer):
    """Special tokens and their shields are ours; plain text is cut by llama.cpp.

    Works as long as the model is open.
    """

    def __init__(self, file: ModelFile, model: Model) -> None:
        api = model.library.api
        bos, eos = (int(api.llama_vocab_bos(model.vocab)), int(api.llama_vocab_eos(model.vocab)))
        vocabulary = Vocabulary(
            Keys(file.path, file.metadata),
            default_bos=bos if bos >= 0 else None,
            default_eos=eos if eos >= 0 else None,
        )
        super().__init__(vocabulary, add_bos=bool(api.llama_vocab_get_add_bos(model.vocab)))
        ends = (
            token for token in range(len(vocabulary)) if api.llama_vocab_is_eog(model.vocab, token)
        )
        vocabulary.end_ids |= frozenset(ends)
        self._model = model

    def token_bytes(self, token_id: int) -> bytes:
        self._vocabulary.text(token_id)  # an id out of range is an IndexError
        piece = ctypes.create_string_buffer(_MOST_PIECE_BYTES)
        size = self._api().llama_token_to_piece(
            self._model.vocab, token_id, piece, _MOST_PIECE_BYTES, 0, False
        )
        return piece.raw[: max(0, size)]

    def _encode_text(self, text: str, after_special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 16
        while True:
            ids = (ctypes.c_int32 * room)()
            count = self._api().llama_tokenize(
                self._model.vocab, data, len(data), ids, room, False, False
            )
            if count >= 0:
                return ids[:count]
            room = -count

    def _api(self) -> Any:
        if self._model.vocab is None:
            raise BackendError("this tokenizer belongs to a model that was closed; load it again")
        return self._model.library.api
