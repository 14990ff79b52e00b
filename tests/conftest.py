"""For all tests: the repository on the path, and real model files beside the checkout."""

from __future__ import annotations

import gc
import os
import random
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is slow, not wrong; kernels that are not compiled are a hundred times as slow.
settings.register_profile("any machine", deadline=None)
settings.register_profile("not compiled", deadline=None, max_examples=15)
UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
settings.load_profile("not compiled" if UNCOMPILED else "any machine")

# Kernels that tests make are compiled beside those of the package, wherever a library of it is.
os.environ.setdefault("EDGESPEC_KERNELS", "jit")

# Threads of OpenMP (llama.cpp, PyTorch) sleep while they wait: others that test have work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # `tests.support.gguf_models` is importable however pytest is started


def pytest_configure() -> None:
    """Threads of a pass that wait for each other sleep soon, too."""
    from edgespec.system import power

    power.SPINS = 100  # before a team of threads takes it as its default


def pytest_collection_finish() -> None:
    """Thousands of tests, and modules as large, are not looked through by every collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What engines keep between runs stays out of the user's folder."""
    before = os.environ.get("EDGESPEC_DATA")
    os.environ["EDGESPEC_DATA"] = str(tmp_path_factory.mktemp("data"))
    yield
    if before is None:
        del os.environ["EDGESPEC_DATA"]
    else:
        os.environ["EDGESPEC_DATA"] = before


@pytest.fixture(scope="session", autouse=True)
def files_that_are_known() -> Iterator[None]:
    """Engines of others run in this process, where tests can look at them, unless a test asks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgespec.backends.isolated.known.is_known", lambda *_: True)
        yield


@pytest.fixture(autouse=True)
def seeds_of_the_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply whose seed a test does not name draws the same in every run of that test."""
    drawn = random.Random(request.node.nodeid)
    monkeypatch.setattr(secrets, "randbits", drawn.getrandbits)


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of third-party model files beside the checkout; absent on most machines."""
    folder = ROOT.parent / "shared" / "data" / "models"
    if not folder.is_dir():
        pytest.skip(f"no third-party models: {folder} does not exist")
    return folder


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """The model that is shipped in the package."""
    from edgespec.models import registry

    found = ROOT / "edgespec" / "models" / "bundled" / registry.BUNDLED[registry.DEFAULT]
    if not found.exists():
        pytest.skip("this build bundles no model")
    return found
