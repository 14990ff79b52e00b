"""What `--cpu-moe` asks for: experts here, whoever has the rest of their layers."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.errors import OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.memory.plan.placement import Device, ModelUnits
from edgespec.models.file import ModelFile
from edgespec.system.size import is_auto

_NONE = ("off", "0")
_BACKENDS = ("auto", "llamacpp")


def is_asked_for(options: LoadOptions) -> bool:
    """Whether experts are to stay here, and not only where that is better."""
    return not is_auto(options.cpu_moe) and _word(options) not in _NONE


def layers_on_cpu(file: ModelFile, options: LoadOptions) -> int | None:
    """Of how many layers, the first ones, the experts stay here; None where sizes decide.

    Raises OptionError for what means nothing, or nothing for this model and this backend.
    """
    asked = _word(options)
    if is_auto(asked):
        return None
    if asked in _NONE:
        return 0
    most = file.spec.num_layers
    count = most if asked == "all" else int(asked) if asked.isdecimal() else 0
    if not 1 <= count <= most:
        raise OptionError(
            f"unknown cpu_moe {options.cpu_moe!r}; choose auto, off, all or a number of layers "
            f"from 1 to {most}"
        )
    told = f"--cpu-moe {asked} was asked for, and"
    if options.backend not in _BACKENDS:
        raise OptionError(
            f"{told} the {options.backend} backend puts nothing on devices; leave out --cpu-moe, "
            "or use --backend llamacpp"
        )
    if not mixes_experts(file):
        raise OptionError(
            f"{told} {file.spec.name or 'this model'} is not a mixture of experts; leave out "
            "--cpu-moe"
        )
    return count


def mixes_experts(file: ModelFile) -> bool:
    """Whether a file has experts that can be kept apart from their layers."""
    return bool(ModelUnits.of(file.spec, file.tensors.values()).experts)


def check_devices(options: LoadOptions, devices: Sequence[Device]) -> None:
    """Raises OptionError where experts were to stay here and nothing can go anywhere else."""
    if is_asked_for(options) and not devices:
        raise OptionError(
            f"--cpu-moe {_word(options)} was asked for, and there is no GPU or worker to hold the "
            "rest of the layers; leave out --cpu-moe, or name devices with --vram or --workers"
        )


def _word(options: LoadOptions) -> str:
    return str(options.cpu_moe).strip().lower()
