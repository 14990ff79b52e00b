"""Greedy replies of engines that live in another Python: transformers, OpenVINO GenAI, ONNX Runtime
GenAI.

That Python runs this as a file: it imports nothing of the checkout. Standard input is a JSON object
(`Request`); standard output a line for each prompt: the reply's tokens and how many of them were
accepted drafts, or, in the mode `rows`, what `compare_rows` finds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Any, NamedTuple

PLAIN, LOOKUP, DRAFT_MODEL, ROWS = "plain", "prompt lookup", "draft model", "rows"
DRAFTS, MATCH = 10, 3
"""Tokens that prompt lookup proposes at most, and that it looks up."""
MODEL_DRAFTS = 5
"""Tokens that a draft model proposes where an engine wants a number."""
WIDTH = 8
"""Tokens of the pass whose logits are compared with those of passes over one."""
Found = dict[str, Any]
Write = Callable[[list[int]], Found]


class Request(NamedTuple):
    """What is to be written, and how."""

    engine: str
    mode: str
    model: str
    draft: str
    folder: str
    """For what engines make of these files."""
    threads: int
    tokens: int
    prompts: list[list[int]]


def compare_rows(alone: Any, beside: Any) -> Found:
    """Logits [n, vocab] of the same tokens, computed one by one and in one pass."""
    return {
        "rows": len(alone),
        "changed": int((alone != beside).any(axis=1).sum()),
        "greatest": float(abs(alone - beside).max()),
        "favourites": int((alone.argmax(1) != beside.argmax(1)).sum()),
        "deviation": float(alone.std()),
    }


def _transformers(kind: str, asked: Request) -> Write:
    import torch

    torch.set_num_threads(asked.threads)
    model = _torch_model(asked.model, kind)
    if asked.mode == ROWS:
        return partial(_rows, model)
    more: Found = {}
    if asked.mode == LOOKUP:
        more = {"prompt_lookup_num_tokens": DRAFTS}
    if asked.mode == DRAFT_MODEL:
        more = {"assistant_model": _torch_model(asked.draft, kind)}
    passes: list[None] = []
    model.register_forward_pre_hook(lambda *_: passes.append(None))

    def write(ids: list[int]) -> Found:
        passes.clear()
        prompt = torch.tensor([ids])
        options = {"attention_mask": torch.ones_like(prompt), "do_sample": False}
        found = model.generate(prompt, max_new_tokens=asked.tokens, **options, **more)
        tokens = found[0, len(ids) :].tolist()
        return {"tokens": tokens, "accepted": len(tokens) - len(passes)}

    return write


def _torch_model(path: str, kind: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    folder, name = os.path.split(path)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=getattr(torch, kind))
    model.generation_config.eos_token_id = None  # past the reply's end
    model.generation_config.pad_token_id = 0
    return model.eval()


def _rows(model: Any, ids: list[int]) -> Found:
    import torch

    past, last = torch.tensor([ids[:-WIDTH]]), torch.tensor([ids[-WIDTH:]])
    with torch.no_grad():
        cache = model(past, use_cache=True).past_key_values
        beside = model(last, past_key_values=cache).logits[0]
        cache = model(past, use_cache=True).past_key_values
        alone = [model(last[:, i : i + 1], past_key_values=cache).logits[0] for i in range(WIDTH)]
    return compare_rows(torch.cat(alone).float().numpy(), beside.float().numpy())


def _openvino(asked: Request) -> Write:
    import numpy as np
    import openvino
    import openvino_genai

    more: Found = {"INFERENCE_NUM_THREADS": asked.threads}
    settings: Found = {"max_new_tokens": asked.tokens, "ignore_eos": True, "do_sample": False}
    if asked.mode == LOOKUP:
        more["prompt_lookup"] = True
        settings |= {"num_assistant_tokens": DRAFTS, "max_ngram_size": MATCH}
    if asked.mode == DRAFT_MODEL:
        more["draft_model"] = openvino_genai.draft_model(str(_openvino_folder(asked)), "CPU")
        settings |= {"num_assistant_tokens": MODEL_DRAFTS}
    pipeline = openvino_genai.LLMPipeline(asked.model, "CPU", **more)
    config = openvino_genai.GenerationConfig(**settings)

    def write(ids: list[int]) -> Found:
        found = pipeline.generate(openvino.Tensor(np.array([ids], np.int64)), config)
        passes = len(found.perf_metrics.raw_metrics.token_infer_durations)
        tokens = list(found.tokens[0])
        return {"tokens": tokens, "accepted": len(tokens) - passes}

    return write


def _openvino_folder(asked: Request) -> Path:
    """The draft model in OpenVINO's format: it takes no other as a draft."""
    import openvino_genai

    made = Path(asked.folder) / f"openvino-{Path(asked.draft).stem}"
    if not (made / "openvino_model.xml").exists():
        made.mkdir(parents=True, exist_ok=True)
        copy = made / "model.gguf"
        copyfile(asked.draft, copy)
        openvino_genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)
    return made


def _onnx_runtime(asked: Request) -> Write:
    import onnxruntime_genai

    config = onnxruntime_genai.Config(str(_onnx_folder(asked)))
    session = {"session_options": {"intra_op_num_threads": asked.threads}}
    config.overlay(json.dumps({"model": {"decoder": session}}))
    model = onnxruntime_genai.Model(config)

    def write(ids: list[int]) -> Found:
        length = len(ids) + asked.tokens
        settings = onnxruntime_genai.GeneratorParams(model)
        settings.set_search_options(max_length=length, min_length=length, do_sample=False)
        if asked.mode == LOOKUP:
            settings.set_speculative_options(ngram_size=MATCH, max_draft_tokens=DRAFTS)
        generator = onnxruntime_genai.Generator(model, settings)
        generator.append_tokens(ids)
        while not generator.is_done():
            generator.generate_next_token()
        tokens = [int(one) for one in generator.get_sequence(0)][len(ids) :]
        told = generator.get_speculative_stats() if asked.mode == LOOKUP else {}
        return {"tokens": tokens, "accepted": told.get("draft_tokens_accepted", 0)}

    return write


def _onnx_folder(asked: Request) -> Path:
    """The model as ONNX Runtime GenAI's own builder writes it, in f32."""
    made = Path(asked.folder) / f"onnx-{Path(asked.model).stem}"
    if not (made / "genai_config.json").exists():
        from transformers import AutoTokenizer

        source, (folder, name) = made / "source", os.path.split(asked.model)
        model = _torch_model(asked.model, "float32")
        model.hf_quantizer = None  # its values are floats by now
        del model.config.quantization_config
        model.save_pretrained(source)
        AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(source)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source)]
        command += ["-o", str(made), "-c", str(made / "cache"), "-p", "fp32", "-e", "cpu"]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return made


ENGINES: dict[str, tuple[Callable[[Request], Write], tuple[str, ...]]] = {
    "transformers, f32": (partial(_transformers, "float32"), (LOOKUP, DRAFT_MODEL)),
    "transformers, bf16": (partial(_transformers, "bfloat16"), (LOOKUP, DRAFT_MODEL)),
    "OpenVINO GenAI": (_openvino, (LOOKUP, DRAFT_MODEL)),
    "ONNX Runtime GenAI": (_onnx_runtime, (LOOKUP,)),
}
"""Who writes, and the ways to draft that it has for a model like ours."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is no answer
    asked = Request(**json.load(sys.stdin))
    write = ENGINES[asked.engine][0](asked)
    for ids in asked.prompts:
        print(json.dumps(write(ids)), file=answers, flush=True)


if __name__ == "__main__":
    main()
