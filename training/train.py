"""The training loop: seeded, resumable after any interruption, logged as JSON lines."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.device import autocast, place
from training.model import TinyLlama
from training.muon import Muon
from training.shape import Shape
from training.start import load_weights

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LOG_STEPS = 20


@dataclass(frozen=True, slots=True)
class Settings:
    """How to train; steps and batches are counted in tokens, so the clock decides nothing."""

    steps: int = 2400
    batch_tokens: int = 6144
    sequence_tokens: int = 256  # attention is a third of the time at 512 on a CPU
    long_share: float = 0.1  # the last part runs at the model's full context length
    warmup_steps: int = 60
    decay_share: float = 0.7
    matrix_lr: float = 2e-3
    other_lr: float = 2e-3
    weight_decay: float = 0.1
    read_weight: float = 0.25  # loss weight of tokens the model only reads (prompts)
    layer_dropout: float = 0.1  # of the last layer; earlier ones less, the first never
    exit_weight: float = 0.3
    balance_weight: float = 0.01  # of experts that are used unevenly
    exit_share: float = 0.25  # of the rows of a batch, each at an exit of its own
    books_first: float = 0.6  # share of book text at the first step, falling linearly ...
    books_last: float = 0.0  # ... to this at the last
    use_bf16: bool = True  # slower than f32 on processors without AMX tiles
    save_seconds: float = 150.0
    seed: int = 1


AnySettings = TypeVar("AnySettings", bound="DataclassInstance")


def changed(settings: AnySettings, changes: list[str]) -> AnySettings:
    """Return the settings with `name=value` changes, each value a JSON number."""
    names = {field.name for field in fields(settings)}
    values: dict[str, Any] = {}
    for change in changes:
        name, _, value = change.partition("=")
        if name not in names:
            raise SystemExit(
                f"no setting is called {name!r}; there are: {', '.join(sorted(names))}"
            )
        values[name] = json.loads(value)
    return replace(settings, **values)


class Stream:
    """A token stream cut into windows that are visited in a seeded order, pass after pass."""

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        self.ids: NDArray[np.uint16] = np.load(folder / f"{name}.ids.npy", mmap_mode="r")
        self.asked: NDArray[np.bool_] = np.load(folder / f"{name}.asked.npy", mmap_mode="r")
        self.seed = seed
        self.position = 0  # tokens handed out so far; all the state there is

    def take(self, tokens: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the next window's ids [tokens + 1] and asked marks [tokens + 1]."""
        num_windows = (len(self.ids) - 1) // tokens
        turn, index = divmod(self.position // tokens, num_windows)
        order = np.random.default_rng((self.seed, turn, tokens)).permutation(num_windows)
        start = int(order[index]) * tokens
        self.position += tokens
        window = slice(start, start + tokens + 1)
        return self.ids[window].astype(np.int64), np.asarray(self.asked[window])


def learning_rate(step: int, settings: Settings) -> float:
    """Return the factor on the peak rate: warm up, hold, then fall linearly to almost zero."""
    decay_steps = max(1, int(settings.steps * settings.decay_share))
    left = (settings.steps - step) / decay_steps
    return min(1.0, (step + 1) / settings.warmup_steps, max(0.01, left))


def start_cooling(source: Path, target: Path, steps: int) -> None:
    """Write a checkpoint from which `steps` more steps bring the rate down to almost zero.

    A run at a constant rate can go on for ever; what is exported is a copy of it, cooled: its loss
    is much lower ("MiniCPM: Unveiling the Potential of Small Language Models with Scalable
    Training Strategies", section 4). The last third runs at the model's full context.
    """
    state = torch.load(source, map_location="cpu", weights_only=True)
    last = state["step"] + steps
    share = steps / last
    state["settings"] |= {"steps": last, "decay_share": share, "long_share": share / 3}
    target.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, target)


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether a parameter is one matrix that turns hidden states into hidden states."""
    others = ("token_embd", "ssm_conv1d", "ssm_alpha", "ssm_beta", "ffn_gate_inp", "_exps")
    return parameter.dim() == 2 and not any(part in name for part in others)


class Trainer:
    """A model, its two optimizers and its place in the data."""

    def __init__(self, tokens: Path, out: Path, shape: Shape, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.out, self.settings, self.step = out, settings, 0
        out.mkdir(parents=True, exist_ok=True)
        self.model = TinyLlama(shape)
        self.streams = {name: Stream(tokens, name, settings.seed) for name in ("books", "tasks")}
        # Muon (Jordan et al.: orthogonalised momentum) learns faster per token than AdamW and
        # suits hidden matrices only; the embedding and the norms stay with AdamW.
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if is_hidden_matrix(name, p)]
        others = [p for name, p in named if not is_hidden_matrix(name, p)]
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
            "shape": asdict(self.model.shape),
            "settings": asdict(self.settings),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer, _ in self.optimizers],
            "positions": {name: stream.position for name, stream in self.streams.items()},
        }
        part = self.checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.checkpoint)

    def load(self) -> None:
        """Go on from the last checkpoint; the number of steps may have been changed since."""
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for name, position in state["positions"].items():
            self.streams[name].position = position

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, targets and loss weights, each [rows, tokens]."""
        settings, done = self.settings, self.step / self.settings.steps
        is_long = done >= 1 - settings.long_share
        tokens = self.model.shape.context_tokens if is_long else settings.sequence_tokens
        books = settings.books_first + done * (settings.books_last - settings.books_first)
        rng = np.random.default_rng((settings.seed, self.step))
        rows = [
            self.streams["books" if rng.random() < books else "tasks"].take(tokens)
            for _ in range(settings.batch_tokens // tokens)
        ]
        ids = place(np.stack([row[0] for row in rows]))
        asked = place(np.stack([row[1] for row in rows]))[:, 1:]
        weights = torch.where(asked, 1.0, settings.read_weight)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weights

    def draw_layers(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return which layers each row keeps [rows, layers] and where the first ones exit."""
        settings, layers = self.settings, self.model.shape.num_layers
        rng = np.random.default_rng((settings.seed, self.step, 1))
        # LayerSkip, equation 1: from 0 at the first layer to the full rate at the last.
        rates = settings.layer_dropout * (np.exp2(np.arange(layers) / max(1, layers - 1)) - 1)
        kept = rng.random((rows, layers)) >= rates
        exits = rng.integers(layers - 1, size=max(1, int(rows * settings.exit_share)))
        return (
            place(kept.astype(np.float32)),
            place(np.eye(layers, dtype=np.float32)[exits]),
        )

    def train_step(
        self, forward: Callable[..., tuple[Tensor, Tensor, Tensor]]
    ) -> tuple[float, float]:
        """Do one step; return the loss at the end and at the exits, in nats per token."""
        settings = self.settings
        ids, targets, weights = self.batch()
        kept, exit_at = self.draw_layers(len(ids))
        with autocast(settings.use_bf16):
            loss, exit_loss, penalty = forward(ids, targets, weights, kept, exit_at)
        extra = settings.exit_weight * exit_loss + settings.balance_weight * penalty
        (loss + extra).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = learning_rate(self.step, settings)
        for optimizer, peak in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item(), exit_loss.item()


class Meter:
    """Losses and speed since the last line of the log."""

    def __init__(self, path: Path, batch_tokens: int) -> None:
        self.path, self.batch_tokens = path, batch_tokens
        self.restart()

    def restart(self) -> None:
        self.wall_s, self.cpu_s = time.monotonic(), time.process_time()
        self.loss = self.exit_loss = 0.0
        self.num_steps = 0

    def add(self, loss: float, exit_loss: float) -> None:
        self.loss += loss
        self.exit_loss += exit_loss
        self.num_steps += 1

    def log(self, step: int, lr_factor: float) -> None:
        """Append one JSON line, show it, and start again."""
        tokens = self.num_steps * self.batch_tokens
        line = json.dumps(
            {
                "step": step,
                "tokens": step * self.batch_tokens,
                "loss": round(self.loss / self.num_steps, 4),
                "exit_loss": round(self.exit_loss / self.num_steps, 4),
                "lr_factor": round(lr_factor, 4),
                "tokens_per_second": round(tokens / (time.monotonic() - self.wall_s)),
                "tokens_per_cpu_second": round(tokens / (time.process_time() - self.cpu_s)),
            }
        )
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)
        self.restart()


def run(
    tokens: Path,
    out: Path,
    shape: Shape,
    settings: Settings,
    compile_model: bool = True,
    start: Path | None = None,
    upcycle: bool = False,
) -> TinyLlama:
    """Train to the last step, going on from a checkpoint in `out` if there is one.

    Without one, it starts from the weights of the GGUF file `start`, or else from random ones;
    with `upcycle`, every expert starts as the feed-forward net of `start`.
    SIGTERM ends the run after the current step, with a checkpoint.
    """
    trainer = Trainer(tokens, out, shape, settings)
    if trainer.checkpoint.exists():
        trainer.load()
    elif start is not None:
        load_weights(trainer.model, start, tokens / "tokenizer.json", upcycle)
    forward: Callable[..., tuple[Tensor, Tensor, Tensor]] = trainer.model
    if compile_model:
        forward = torch.compile(trainer.model, dynamic=False)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    meter = Meter(out / "log.jsonl", settings.batch_tokens)
    saved_s = time.monotonic()
    while trainer.step < settings.steps and not stop.is_set():
        loss, exit_loss = trainer.train_step(forward)
        if not math.isfinite(loss):
            raise FloatingPointError(f"loss is {loss} at step {trainer.step}; lower the rates")
        meter.add(loss, exit_loss)
        if trainer.step % LOG_STEPS == 0 or trainer.step == settings.steps:
            meter.log(trainer.step, learning_rate(trainer.step, settings))
        if time.monotonic() - saved_s > settings.save_seconds:
            trainer.save()
            saved_s = time.monotonic()
    trainer.save()
    return trainer.model
