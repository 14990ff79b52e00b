"""The training of a head: its trunk is frozen, and what the trunk expects is what it learns."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.device import autocast, place
from training.heads.eagle import EagleHead
from training.heads.head import Head, HeadShape
from training.heads.mtp import MtpBlock
from training.heads.unroll import unroll
from training.model import TinyLlama
from training.muon import Muon
from training.train import Stream, is_hidden_matrix

LOG_STEPS = 20


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """How to train a head."""

    steps: int = 20_000
    rows: int = 12
    sequence_tokens: int = 256
    unroll_steps: int = 4
    single_steps: int = 200  # without a second step ahead, which is cheaper
    step_decay: float = 0.8  # weight of a step's loss beside that of the step before
    temperature: float = 1.0  # at which head and trunk are to agree; lower: on what is likely
    warmup_steps: int = 50
    matrix_lr: float = 2e-3
    other_lr: float = 1e-3
    weight_decay: float = 0.05
    average: float = 0.99  # what is exported is a running mean of the weights: no rate has to fall
    own_share: float = 0.7  # of the trunk's own text, where there is some
    books_share: float = 0.1
    read_weight: float = 0.25  # loss weight of tokens that the trunk only reads
    use_bf16: bool = True  # slower than f32 on processors without AMX tiles
    save_seconds: float = 120.0
    seed: int = 1

    def num_steps(self, step: int) -> int:
        return 1 if step < self.single_steps else self.unroll_steps


def own_stream(shape: str) -> str:
    """Return the name of the stream of what a trunk wrote itself."""
    return f"own-{shape}"


def new_head(trunk: TinyLlama, shape: HeadShape, draft_ids: Tensor | None) -> Any:
    """Return a head that has learnt nothing yet; `draft_ids` are those of `EagleHead`."""
    if shape.kind == "mtp":
        return MtpBlock(trunk, shape)
    return EagleHead(trunk, shape, draft_ids)


def load_head(trunk: TinyLlama, checkpoint: Path) -> Any:
    """Return the averaged head of a checkpoint, ready to use."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    head = new_head(trunk, HeadShape(**state["shape"]), state["average"].get("d2t"))
    head.load_state_dict(state["average"])
    head.eval()
    return head


def most_frequent(stream: Stream, count: int) -> Tensor:
    """Return the ids of the `count` tokens that the stream asks for most often, in order of id."""
    counts = np.bincount(stream.ids[stream.asked])
    return place(np.sort(np.argsort(-counts, kind="stable")[:count]))


def lesson_losses(
    head: Head,
    features: Tensor,
    embedded: Tensor,
    shares: Tensor,
    weights: Tensor,
    steps: int,
    temperature: float = 1.0,
) -> Tensor:
    """Return the cross entropy of each step, in nats; [steps] f32.

    shares f32 [batch, tokens, draft tokens] are the trunk's probabilities of what comes next, at
    `temperature`, weights [batch, tokens] those of its places; the rest is as in `unroll`.
    """
    losses = []
    for ahead, state in enumerate(unroll(head, features, embedded, steps)):
        logits = head.logits(state[:, ahead:]) / temperature
        wanted, weight = shares[:, 1 + ahead :], weights[:, 1 + ahead :]
        each = wanted.sum(-1) * logits.logsumexp(-1) - (wanted * logits).sum(-1)
        losses.append((each * weight).sum() / weight.sum())
    return torch.stack(losses)


class Lessons:
    """A head, its trunk, and its place in the data."""

    def __init__(
        self,
        trunk: TinyLlama,
        tokens: Path,
        out: Path,
        shape: HeadShape,
        settings: HeadSettings,
        own: str,
    ) -> None:
        torch.manual_seed(settings.seed)
        self.trunk, self.out, self.settings, self.step = trunk, out, settings, 0
        trunk.requires_grad_(False)
        out.mkdir(parents=True, exist_ok=True)
        self.own = own
        names = [own, "tasks", "books"]
        self.streams = {
            name: Stream(tokens, name, settings.seed)
            for name in names
            if (tokens / f"{name}.ids.npy").exists()
        }
        draft_ids = None
        if shape.kind == "eagle3" and shape.draft_vocab:
            written = self.streams.get(own, self.streams["tasks"])
            draft_ids = most_frequent(written, shape.draft_vocab)
        self.head = new_head(trunk, shape, draft_ids)
        self.average = {name: value.clone() for name, value in self.head.state_dict().items()}
        named = list(self.head.named_parameters())
        matrices = [p for name, p in named if is_hidden_matrix(name, p) and name != "output.weight"]
        chosen = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in chosen]
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (
                Muon(matrices, weight_decay=settings.weight_decay, use_bf16=settings.use_bf16),
                settings.matrix_lr,
            ),
            (
                torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
                settings.other_lr,
            ),
        ]

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint.pt"

    def save(self) -> None:
        """Write everything needed to go on, atomically."""
        state = {
            "step": self.step,
            "shape": asdict(self.head.shape),
            "head": self.head.state_dict(),
            "average": self.average,
            "optimizers": [optimizer.state_dict() for optimizer, _ in self.optimizers],
            "positions": {name: stream.position for name, stream in self.streams.items()},
        }
        part = self.checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.checkpoint)

    def load(self) -> None:
        """Go on from the last checkpoint."""
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        self.step = state["step"]
        for name, values in state["average"].items():
            self.average[name].copy_(values)
        self.head.load_state_dict(state["head"])
        for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for name, position in state["positions"].items():
            self.streams[name].position = position

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return ids and loss weights, both [rows, tokens]; a weight is that of the token after."""
        settings = self.settings
        rng = np.random.default_rng((settings.seed, self.step))
        rows = []
        for _ in range(settings.rows):
            draw = rng.random()
            name = "books" if draw < settings.books_share else "tasks"
            if draw > 1 - settings.own_share and self.own in self.streams:
                name = self.own
            rows.append(self.streams[name].take(settings.sequence_tokens))
        ids = place(np.stack([row[0] for row in rows]))
        asked = place(np.stack([row[1] for row in rows]))[:, 1:]
        return ids[:, :-1].contiguous(), torch.where(asked, 1.0, settings.read_weight)

    def teach(self, losses_of: Callable[..., Tensor]) -> list[float]:
        """Do one step; return the loss of each step ahead."""
        settings = self.settings
        ids, weights = self.batch()
        num_steps = settings.num_steps(self.step)
        with autocast(settings.use_bf16):
            with torch.no_grad():
                states, _ = self.trunk.hidden(ids)
                features, embedded = self.head.features(states), self.trunk.token_embd(ids)
                shares = (self.trunk.logits(states[-1]) / settings.temperature).softmax(-1)
                if "d2t" in self.average:
                    shares = shares[..., self.head.d2t]
            losses = losses_of(
                self.head, features, embedded, shares, weights, num_steps, settings.temperature
            )
        decays = settings.step_decay ** torch.arange(num_steps)
        ((losses * decays).sum() / decays.sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for optimizer, peak in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * min(1.0, (self.step + 1) / settings.warmup_steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        kept = min(settings.average, self.step / (self.step + 10))
        for name, parameter in self.head.named_parameters():
            self.average[name].lerp_(parameter.detach(), 1 - kept)
        found: list[float] = losses.tolist()
        return found


def teach(
    trunk: TinyLlama,
    tokens: Path,
    out: Path,
    shape: HeadShape,
    settings: HeadSettings,
    own: str,
    compiled: bool = True,
) -> None:
    """Train to the last step, going on from a checkpoint in `out` if there is one.

    `own` names the stream of what the trunk wrote itself, which may be missing. SIGTERM ends the
    run after the current step, with a checkpoint.
    """
    lessons = Lessons(trunk, tokens, out, shape, settings, own)
    if lessons.checkpoint.exists():
        lessons.load()
    losses_of = torch.compile(lesson_losses, dynamic=False) if compiled else lesson_losses
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    saved_s, cpu_s, sums = time.monotonic(), time.process_time(), np.zeros(settings.unroll_steps)
    batch_tokens, since = settings.rows * settings.sequence_tokens, lessons.step
    while lessons.step < settings.steps and not stop.is_set():
        losses = lessons.teach(losses_of)
        if not all(map(math.isfinite, losses)):
            raise FloatingPointError(f"losses are {losses} at step {lessons.step}")
        sums[: len(losses)] += losses
        if lessons.step % LOG_STEPS == 0 or lessons.step == settings.steps:
            num_steps = lessons.step - since
            line = {
                "step": lessons.step,
                "tokens": lessons.step * batch_tokens,
                "losses": (sums[: len(losses)] / num_steps).round(4).tolist(),
                "tokens_per_cpu_second": round(
                    num_steps * batch_tokens / (time.process_time() - cpu_s)
                ),
            }
            with (out / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
            sums[:], cpu_s, since = 0.0, time.process_time(), lessons.step
        if time.monotonic() - saved_s > settings.save_seconds:
            lessons.save()
            saved_s = time.monotonic()
    lessons.save()
