"""What a reply may need is compiled before there are weights, whatever course the reply takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edgespec.drafting.registry import DRAFTERS

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
            is_kernel = re.search(rf"@kernel(\\(.*\\))?\\ndef {key}\\(", text)
            if own and is_kernel and not one.signatures:
                print(found.name, key)
"""
ONLY_IN_OTHERS = {
    "edgespec.control.accounts is_cheap",
    "edgespec.control.accounts usual",
    "edgespec.control.accounts earn_probe",
    "edgespec.drafting.tables.followers count_text",
    "edgespec.drafting.text.automaton find_edge",
}
"""What only others call."""


@pytest.mark.parametrize(
    ("drafters", "where"),
    [("suffix-automaton,trigram,early-exit", "steps"), (",".join(DRAFTERS), "stores")],
    ids=["steps", "stores"],
)
def test_no_kernel_is_left_to_be_compiled_among_the_weights(drafters: str, where: str) -> None:
    """Each that a reply's course alone decides about was one that brought a first start over its
    budget: the compiler takes 60 MiB, and what loads a kernel that is cached 10.
    """
    found = subprocess.run(
        [sys.executable, "-c", LIST, drafters, where],
        capture_output=True, text=True, env=os.environ,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert set(found.stdout.splitlines()) <= ONLY_IN_OTHERS
