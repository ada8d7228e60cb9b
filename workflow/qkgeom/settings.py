"""The user's knobs (config.yaml) and the preset they name, both checked against their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qkgeom.errors import UsageError
from qkgeom.schemas import require_valid, schema

PRESETS = Path(__file__).parents[1] / "presets"


@dataclass(frozen=True)
class Example:
    """A layer that figure `wqk_examples` shows."""

    model: str
    layer: int


@dataclass(frozen=True)
class Settings:
    """config.yaml, described there, and the preset's data."""

    preset: str
    device: str
    threads: int
    gpus_per_run: int
    nodes_per_run: int
    heads: bool
    structure: bool
    keep_weights: bool
    allow_missing: bool
    only: tuple[str, ...]
    package_index: bool
    hub_slots: int
    download_here: bool
    jigsaw_zip: str
    longest_job: int
    published_trajectories: str
    published_way: tuple[str, ...]
    examples: Mapping[str, Example]
    training: Mapping[str, Mapping[str, object]]
    scoring_jobs: int


def read_settings(config: Mapping[str, object], presets: Path = PRESETS) -> Settings:
    """Checks the knobs and reads the preset they name.

    Args:
        config: config.yaml with what the command line changed.
        presets: folder of the presets.

    Raises:
        UsageError: an unknown key or preset, or a value that is not allowed.
    """
    config = {key: _typed(key, value) for key, value in config.items()}
    require_valid(config, "config", "config.yaml (or --config)")
    if config["gpus_per_run"] % config["nodes_per_run"]:
        raise UsageError(
            "the GPUs of a run cannot be spread over its nodes",
            where="config.yaml (or --config)",
            found=f"gpus_per_run {config['gpus_per_run']}, nodes_per_run {config['nodes_per_run']}",
            expected="a multiple",
        )
    preset = read_preset(str(config["preset"]), presets)
    only = config["only"]
    patterns = only.split(",") if isinstance(only, str) else only  # --config only=a,b arrives as one string
    return Settings(
        **{key: value for key, value in config.items() if key != "only"},
        only=tuple(pattern.strip() for pattern in patterns if pattern.strip()),
        examples={role: Example(**example) for role, example in preset.get("examples", {}).items()},
        training=preset.get("training", {}),
        scoring_jobs=preset.get("scoring_jobs", 0),
        published_way=tuple(preset.get("published_way", ())),
    )


def preset_names(presets: Path = PRESETS) -> list[str]:
    """The presets there are."""
    return sorted(file.stem for file in presets.glob("*.yaml"))


def read_preset(name: str, presets: Path = PRESETS) -> dict[str, object]:
    """What a preset says.

    Raises:
        UsageError: there is none of this name, or it does not fit its schema.
    """
    import yaml

    path = presets / f"{name}.yaml"
    if name not in preset_names(presets):
        expected, fix = ", ".join(preset_names(presets)), f"choose one of them, or add {path.name}"
        raise UsageError(f"there is no preset {name}", where="config key or option `preset`", expected=expected, fix=fix)
    preset = yaml.safe_load(path.read_text(encoding="utf-8"))
    require_valid(preset, "preset", path)
    return preset


def _typed(key: str, value: object) -> object:
    """`--config heads=true` arrives as the text `true`; a knob that is a truth value or a number is read as YAML."""
    import yaml

    kind = schema("config")["properties"].get(key, {}).get("type")
    return yaml.safe_load(value) if isinstance(value, str) and kind in ("boolean", "integer") else value
