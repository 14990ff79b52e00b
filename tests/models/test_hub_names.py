"""Names of models on a hub, and which file of a repository is meant."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import HubError, OptionError
from edgespec.models.hub.listing import choose, models_of, quantisation
from edgespec.models.hub.names import name_model, own_names, recommended, reference_of
from edgespec.models.hub.reference import HubReference, is_safe_name, parse_reference
from edgespec.models.registry import NotPulledError, resolve
from edgespec.system.size import GIB, parse_size

FILES = [
    "README.md",
    "model-Q4_K_M.gguf",
    "model-UD-Q4_K_XL.gguf",
    "model-IQ4_XS.gguf",
    "model-Q8_0.gguf",
    "BF16/model-BF16-00001-of-00002.gguf",
    "BF16/model-BF16-00002-of-00002.gguf",
    "Q6_K/model-Q6_K-00001-of-00002.gguf",
    "mmproj-F16.gguf",
    "model-imatrix.gguf",
]


@pytest.mark.parametrize(
    ("name", "repo", "wanted"),
    [
        ("hf:org/repo", "org/repo", ""),
        ("hf:org/repo-GGUF:Q4_K_M", "org/repo-GGUF", "Q4_K_M"),
        ("hf:org/repo:sub/file.gguf", "org/repo", "sub/file.gguf"),
        ("hf.co/org/repo:Q8_0", "org/repo", "Q8_0"),
        ("https://huggingface.co/org/repo", "org/repo", ""),
        ("https://huggingface.co/org/repo/blob/main/a-Q4_0.gguf", "org/repo", "a-Q4_0.gguf"),
        ("https://huggingface.co/org/repo/resolve/main/a.gguf?download=true", "org/repo", "a.gguf"),
    ],
)
def test_a_reference_is_read(name: str, repo: str, wanted: str) -> None:
    assert parse_reference(name) == HubReference(repo, wanted)
    assert parse_reference(str(HubReference(repo, wanted))) == HubReference(repo, wanted)


@pytest.mark.parametrize(
    "name",
    ["hf:", "hf:org", "hf:org/repo/more", "hf:../repo", "hf:org/..", "hf:org/repo:../x.gguf",
     "hf:org/repo:/etc/passwd", "hf:a b/c", "hf:org/repo:x\\y.gguf", "hf:-o/repo"],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="cannot read the model name"):
        parse_reference(name)


@given(st.text(max_size=40))
def test_a_safe_name_stays_in_its_folder(name: str) -> None:
    if is_safe_name(name):
        root = Path("/folder")
        assert root in (root / name).parents
        assert not {".", ".."} & set(name.split("/"))


@pytest.mark.parametrize("name", ["a\x1b]0;b\x07.gguf", "a\nb.gguf", "a\u202eb.gguf", "a\0.gguf"])
def test_a_safe_name_says_nothing_to_a_terminal(name: str) -> None:
    assert not is_safe_name(name)


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("", ["model-Q4_K_M.gguf"]),
        ("q8_0", ["model-Q8_0.gguf"]),
        ("UD-Q4_K_XL", ["model-UD-Q4_K_XL.gguf"]),
        ("model-IQ4_XS.gguf", ["model-IQ4_XS.gguf"]),
        ("*IQ4*.gguf", ["model-IQ4_XS.gguf"]),
        ("BF16", FILES[5:7]),
    ],
)
def test_the_model_that_is_meant(wanted: str, chosen: list[str]) -> None:
    assert choose(HubReference("org/repo", wanted), FILES) == chosen


def test_a_missing_one_is_told_with_what_there_is() -> None:
    with pytest.raises(HubError, match="no model called Q3_K_M; choose .*Q4_K_M.*Q8_0"):
        choose(HubReference("org/repo", "Q3_K_M"), FILES)
    with pytest.raises(HubError, match="2 models called"):
        choose(HubReference("org/repo", "model-Q*.gguf"), FILES)
    with pytest.raises(HubError, match="no GGUF file"):
        choose(HubReference("org/repo"), ["README.md", "mmproj-F16.gguf"])


def test_models_are_whole() -> None:
    """Five of them: what has lost a part, or belongs to another model, is none."""
    assert len(models_of(FILES)) == 5


def test_quantisations_in_names() -> None:
    assert quantisation("a/Q8_0/model-7B-IQ3_XXS.gguf") == "IQ3_XXS"
    assert quantisation("gpt-oss-20b-mxfp4.gguf") == "MXFP4"
    assert quantisation("model.gguf") == ""


def test_recommended_models_can_be_named() -> None:
    names = [one.name for one in recommended()]
    assert len(set(names)) == len(names) >= 8
    sizes = [parse_size(one.memory) for one in recommended()]
    assert sizes == sorted(sizes) and sizes[0] <= GIB
    for one in recommended():
        assert reference_of(one.name) == parse_reference(one.reference)
        assert parse_size(one.download.replace(" ", "")) < parse_size(one.memory)
        assert one.licence and one.why


def test_a_name_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    name_model("mine", HubReference("org/repo", "Q4_0"))
    assert own_names() == {"mine": "hf:org/repo:Q4_0"}
    assert reference_of("mine") == HubReference("org/repo", "Q4_0")
    with pytest.raises(NotPulledError, match="edgespec pull mine"):
        resolve("mine")
    name_model("mine", None)
    assert reference_of("mine") is None
    with pytest.raises(OptionError, match="is no name"):
        name_model("../mine", HubReference("org/repo"))
    for damaged in ("[]", "{", '{"mine": 3}', '{"mine": "/etc/passwd"}'):
        (tmp_path / "names.json").write_text(damaged)
        assert own_names() == {}


def test_names_given_at_the_same_time_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    names = [f"mine-{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: name_model(name, HubReference("org/repo", "Q4_0")), names))
    assert own_names() == dict.fromkeys(names, "hf:org/repo:Q4_0")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: name_model(name, None), names[1:]))
    assert list(own_names()) == names[:1]
