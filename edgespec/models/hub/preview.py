"""A model looked at before it is downloaded: its header, by ranged requests.

The header is put at the start of an otherwise empty (sparse) file of the model's size, so that
whatever reads model files reads this one: what it is, what it takes, whether it fits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgespec.errors import HubError, ModelFileError
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import read_header
from edgespec.models.hub.library import library, sentence
from edgespec.models.hub.listing import HubFile, HubModel

_FIRST_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 28


@contextmanager
def previewed(model: HubModel) -> Iterator[Path]:
    """Where the model can be read meanwhile, except for its weights, which are zeros.

    Raises HubError; ModelFileError for a file whose header is damaged.
    """
    with tempfile.TemporaryDirectory(prefix="edgespec-preview-") as folder:
        places = [Path(folder) / file.name.rpartition("/")[2] for file in model.files]
        try:
            for file, place in zip(model.files, places, strict=True):
                _write_header(file, place)
        except OSError as error:
            raise HubError(
                f"cannot keep the header of {model.name} in {folder}: {error.strerror or error}; "
                "make room, or pull it with --no-plan"
            ) from None
        yield places[0]


def _write_header(file: HubFile, place: Path) -> None:
    """Fetch more and more of the file until its header is whole."""
    with place.open("wb") as out:
        out.truncate(file.size_bytes)
    done, wanted = 0, _FIRST_BYTES
    while True:
        wanted = min(wanted, file.size_bytes)
        data = _range(file, done, wanted)
        with place.open("r+b") as out:
            out.seek(done)
            out.write(data)
        done = wanted
        try:
            with FileSource(place) as source:
                header = read_header(source)
            begins = [info.offset for info in header.tensors.values()]
            if min(begins, default=header.keys_end) <= done:
                return
        except ModelFileError:
            if done == file.size_bytes or done >= _MAX_HEADER_BYTES:
                raise
        wanted = 2 * done


def _range(file: HubFile, begin: int, end: int) -> bytes:
    """The bytes `begin` to `end` of a file; raises HubError."""
    hub = library()
    url = hub.hf_hub_url(file.repo, file.name, revision=file.commit)
    headers = hub.utils.build_hf_headers() | {"Range": f"bytes={begin}-{end - 1}"}
    data = bytearray()
    try:
        session = hub.utils.get_session()
        with session.stream("GET", url, headers=headers, follow_redirects=True) as answer:
            answer.raise_for_status()
            if answer.status_code != 206 and begin:
                raise HubError(
                    f"the hub does not send parts of {file.name}; pull it with --no-plan"
                )
            for chunk in answer.iter_bytes():  # a server that ignores ranges sends the whole file
                data += chunk
                if len(data) >= end - begin:
                    break
    except HubError:
        raise
    except Exception as error:
        raise HubError(f"cannot read the header of {file.name}: {sentence(error)}") from error
    if len(data) < end - begin:
        raise HubError(f"the hub sent {len(data)} bytes of {end - begin} of {file.name}; try again")
    return bytes(data[: end - begin])
