"""Every error EdgeSpec raises on purpose.

EdgeSpecError
├── ModelFileError            the file is missing, damaged, or contradicts itself
│   ├── UnsupportedModelError the file is sound, but holds something this build cannot run
│   └── HubError              a model cannot be listed or downloaded, or other bytes came
├── BudgetError               the plan does not fit the memory budget
├── ContextOverflowError      the prompt (plus one token) is longer than the context
├── TemplateError             the file's chat template is broken or unsafe
├── StoreError                a datastore is missing, damaged, or made for another vocabulary
├── KvFileError               saved keys and values are missing, damaged, or another model's
├── TranscriptError           a log of replies is missing, damaged, or for another vocabulary
├── ExportError               a model cannot be written in another format
├── AdaptError                an adapter cannot be fitted to these texts
├── BackendError              a backend cannot be opened or failed while running
└── OptionError               an argument has an invalid value (exit code 2 on the CLI)

A message is one sentence: what was asked, what was found, what to type next.
"""

from __future__ import annotations

_MOST_CHARACTERS = 980


class EdgeSpecError(Exception):
    """Base of all errors raised on purpose; the CLI prints it and exits with `exit_code`."""

    exit_code = 1

    def __str__(self) -> str:
        """The sentence; names from damaged files may be long, and are cut."""
        said = super().__str__()
        if len(said) <= _MOST_CHARACTERS:
            return said
        half = _MOST_CHARACTERS // 2
        return f"{said[:half]} ... {said[-half:]}"


class ModelFileError(EdgeSpecError):
    """The model file is missing, damaged, or contradicts itself."""


class UnsupportedModelError(ModelFileError):
    """The model file is sound but uses an architecture or type this build cannot run."""


class HubError(ModelFileError):
    """A hub is out of reach, lacks the model, or sent other bytes than it lists."""


class BudgetError(EdgeSpecError):
    """The requested plan does not fit the memory budget."""


class ContextOverflowError(EdgeSpecError):
    """The prompt does not fit the context."""


class TemplateError(EdgeSpecError):
    """The model's chat template is broken or tried something it may not do."""


class StoreError(EdgeSpecError):
    """A datastore file is missing, damaged, or made for another vocabulary."""


class KvFileError(EdgeSpecError):
    """A file of keys and values is missing, damaged, or made by another model."""


class TranscriptError(EdgeSpecError):
    """A log of replies is missing, damaged, or made for another vocabulary."""


class ExportError(EdgeSpecError):
    """A model cannot be written in another format."""


class AdaptError(EdgeSpecError):
    """An adapter cannot be fitted: the texts are missing, damaged or too few."""


class BackendError(EdgeSpecError):
    """A backend cannot be opened or failed while running."""


class OptionError(EdgeSpecError):
    """An argument has an invalid value."""

    exit_code = 2
