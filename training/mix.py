"""What the bundled model learns from, and how often it sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.asks import short_asks

Stage = Literal["books", "tasks"]


@dataclass(frozen=True, slots=True)
class Source:
    """One corpus file, or one of `WRITTEN_HERE`: its stage, and how often a record enters one pass
    (0.5: every other one), in most of the training and in the last of it.
    """

    name: str
    stage: Stage
    weight: float
    last_weight: float

    def weight_in(self, last: bool) -> float:
        """Return how often a record enters a pass; `last` where the training is to end."""
        return self.last_weight if last else self.weight


# Old prose teaches grammar but also an old voice, so it has a stage of its own that fades out.
# Weights below 1 cap what is templated, dry or repetitive; stories in plain words count most.
# At the end, what people ask first counts most: they see it before anything else.
# GPTeacher (its writer's terms) and ECQA/ComVE (share-alike) are left out on purpose.
SOURCES: tuple[Source, ...] = (
    Source("books_children", "books", 1.0, 0.1),
    Source("books_easy", "books", 1.0, 0.02),
    Source("sa_tinystories", "tasks", 3.0, 1.5),
    Source("african_storybook", "tasks", 2.0, 1.0),
    Source("fables_and_tales", "tasks", 1.5, 0.7),
    Source("fairytaleqa", "tasks", 0.5, 0.15),
    Source("persona_chat", "tasks", 1.5, 0.5),
    Source("chatterbot_corpus", "tasks", 6.0, 6.0),
    Source("synthetic_tasks", "tasks", 0.6, 0.2),
    Source("snips_json", "tasks", 0.5, 0.05),
    Source("seed_and_p3", "tasks", 0.5, 0.2),
    Source("gsm8k_train", "tasks", 1.0, 0.3),
    Source("flan_cot", "tasks", 0.6, 0.15),
    Source("wordnet", "tasks", 0.3, 0.1),
    Source("tldr_commands", "tasks", 0.2, 0.05),
    Source("taskmaster", "tasks", 0.4, 0.03),
    Source("python_functions", "tasks", 1.0, 0.3),
    Source("identity", "tasks", 40.0, 60.0),
    Source("short_asks", "tasks", 12.0, 30.0),
)

# A few lines of the project's own, so that the model knows what it is when asked.
IDENTITY: tuple[tuple[str, str], ...] = (
    ("Who are you?", "I am EdgeSpec Tiny, a very small language model."),
    ("What are you?", "I am a very small language model that runs on your own computer."),
    ("What is your name?", "My name is EdgeSpec Tiny."),
    ("Are you a person?", "No, I am a computer program, a very small language model."),
    ("Are you human?", "No. I am a small language model."),
    ("Who made you?", "I was made by the EdgeSpec project."),
    (
        "Tell me about yourself.",
        "I am EdgeSpec Tiny, a small language model. I can tell short "
        "stories, chat a little and do simple tasks. I make many mistakes.",
    ),
    (
        "What can you do?",
        "I can tell short stories, chat a little and do simple tasks with text. "
        "I am very small, so please check what I say.",
    ),
    ("Can I trust your answers?", "No, please check them. I am very small and often wrong."),
    ("Hello!", "Hello! How can I help you today?"),
    ("Hi", "Hi! What can I do for you?"),
    ("Hello, how are you?", "Hello! I am fine, thank you. How can I help you?"),
    ("Good morning!", "Good morning! How can I help you today?"),
    ("Thank you!", "You are welcome!"),
    ("Thanks for your help.", "You are welcome! I am glad I could help."),
    ("Goodbye", "Goodbye! Have a nice day."),
    ("Tell me a joke.", "Why did the chicken cross the road? To get to the other side!"),
    ("Do you have feelings?", "No, I am a computer program, so I do not have feelings."),
)

# Records of the recipe's own; they are made or chosen to be known by heart, so none is held out.
WRITTEN_HERE: dict[str, tuple[tuple[str, str], ...]] = {
    "identity": IDENTITY,
    "short_asks": tuple(short_asks()),
}

# Some stories without a prompt get one: the first thing a newcomer asks for is a story.
STORY_SOURCES = frozenset({"tinystories", "african-storybook"})
TOLD_SHARE = 0.7

# Given to some conversations, so that a system message is not a surprise.
SYSTEM_PROMPTS: tuple[str, ...] = (
    "You are a helpful assistant.",
    "You are EdgeSpec Tiny, a small and friendly assistant.",
    "Answer briefly and clearly.",
    "You are a helpful assistant. Keep your answers short.",
)
SYSTEM_SHARE = 0.15
