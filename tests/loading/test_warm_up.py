"""What a reply may need is compiled before there are weights, whatever course the reply takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LIST = """
import importlib, pkgutil, re, sys
from edgespec.loading.warm_up import warm_up_drafter
import edgespec.control, edgespec.drafting.market, edgespec.drafting.model
import edgespec.drafting.tables, edgespec.drafting.text
for name in sys.argv[1].split(","):
    warm_up_drafter(name)
packages = [edgespec.control, edgespec.drafting.market, edgespec.drafting.model]
if sys.argv[2] == "stores":
    packages = [edgespec.drafting.tables, edgespec.drafting.text]
for package in packages:
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        module = importlib.import_module(found.name)
        text = open(module.__file__, encoding="utf-8").read()
        for key, one in vars(module).items():
            own = hasattr(one, "signatures") and one.py_func.__module__ == found.name
            if own and re.search(rf"@kernel(\\(.*\\))?\\ndef {key}\\(", text) and not one.signatures:
                print(found.name, key)
"""
ONLY_IN_OTHERS = {
    "edgespec.control.accounts is_cheap",
    "edgespec.control.accounts usual",
    "edgespec.control.accounts earn_probe",
}
"""Rules that only other rules call."""


@pytest.mark.parametrize("drafters", ["suffix-automaton,trigram,early-exit"])
def test_no_kernel_is_left_to_be_compiled_among_the_weights(drafters: str) -> None:
    """Each that a reply's course alone decides about was one that brought a first start over its
    budget: the compiler takes 60 MiB.
    """
    found = subprocess.run(
        [sys.executable, "-c", LIST, drafters], capture_output=True, text=True, env=os.environ
    )
    assert found.returncode == 0, found.stderr
    assert set(found.stdout.splitlines()) <= ONLY_IN_OTHERS
