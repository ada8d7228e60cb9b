"""The one training loop: transformers.Trainer, with snapshots, a loss curve, and a state to go on from.

Everything of a run lies in one folder. `state/` holds the Trainer's checkpoints while it is trained: a run that was
killed goes on from the last whole one and ends as if it had not been. `snapshots/` holds native checkpoints, and
`losses.csv` the curves.

Several processes train one run (`ranks`) as one would: they share the examples of a step, average their gradients
(DistributedDataParallel), and stop after the same step. The first writes all files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_model
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import SAFE_WEIGHTS_NAME
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from qkgeom.errors import TransientFault, UsageError
from qkgeom.files import write_bytes, write_json
from qkgeom.training import ranks
from qkgeom.training.losses import HELDOUT, mean_loss, write_losses
from qkgeom.training.parts import WEIGHT, part
from qkgeom.training.progress import Progress
from qkgeom.training.schedule import Schedule
from qkgeom.training.snapshots import disk_faults, snapshot_folder, write_checkpoint
from qkgeom.training.state import STATE, seal_state, state_to_go_on_from
from qkgeom.training.stopping import StopRequest

if TYPE_CHECKING:
    import torch

    from qkgeom.training.families.base import Data

STATES_KEPT = 2
UNLOGGED = "unlogged.json"


@dataclass(frozen=True)
class Outcome:
    """How training ended: `ok` or `diverged`, after how many steps, with which held-out loss."""

    status: str
    steps: int
    heldout_loss: float | None


class _Indices:
    """The training set as the Trainer wants it: example i is its number; the batch is made from the numbers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class _Trainer(Trainer):
    """A Trainer whose checkpoints are sealed, and hold the losses since the last point of the curve.

    The newest are kept by their steps: the Trainer itself goes by time, and where the clock has jumped back since the last
    one it would remove the one that it has just written.
    """

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with disk_faults(checkpoint):
            super()._save_checkpoint(model, trial)
        sums = ranks.gathered(self._tr_loss.item())
        if ranks.is_first():
            write_json(checkpoint / UNLOGGED, {"sums": sums, "since": self._globalstep_last_logged})
            seal_state(checkpoint)
            rotate_checkpoints(str(checkpoint.parent), STATES_KEPT)
        ranks.gathered(None)  # the others stay until it is sealed: once one has ended, none goes on

    def _save_rng_state(self, output_dir: str) -> None:
        """Lets the first process write every process's: what another writes, it might not see at once (NFS)."""
        if ranks.count() == 1:
            return super()._save_rng_state(output_dir)
        with TemporaryDirectory() as own:
            super()._save_rng_state(own)
            states = ranks.gathered({path.name: path.read_bytes() for path in Path(own).iterdir()})
        for name, content in (item for state in states for item in state.items() if ranks.is_first()):
            write_bytes(Path(output_dir) / name, content)

    def _save(self, output_dir: str, state_dict: Mapping[str, torch.Tensor] | None = None) -> None:
        """Saves the weights under the names by which they are loaded; `save_pretrained` gives some models (BEiT) others."""
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        save_model(self.model, str(Path(output_dir) / SAFE_WEIGHTS_NAME))

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The loss as the Trainer computes it, weighed if the examples are a part of a batch."""
        weight = inputs.pop(WEIGHT, None)
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return loss if weight is None else loss * weight

    def restore_unlogged(self, checkpoint: Path) -> None:
        """Puts those losses back, which the Trainer itself forgets; their mean if the processes were more or fewer."""
        unlogged = json.loads((checkpoint / UNLOGGED).read_text(encoding="utf-8"))
        sums = unlogged["sums"]
        self._tr_loss.fill_(sums[ranks.rank()] if len(sums) == ranks.count() else sum(sums) / len(sums))
        self._globalstep_last_logged = unlogged["since"]


class _Watch(TrainerCallback):
    """Keeps snapshots and held-out losses, and ends a run that diverges or is told to stop."""

    def __init__(
        self,
        trainer: _Trainer,
        resume: Path | None,
        snapshot: Callable[[int], float | None],
        steps: Sequence[int],
        stop: StopRequest,
    ) -> None:
        self.trainer, self.resume, self.snapshot, self.steps, self.stop = trainer, resume, snapshot, steps, stop
        self.diverged = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if ranks.rank():  # else each would drop the same units of its own examples; a state gone on from has its own
            set_seed(args.seed + ranks.rank())
        if self.resume is None:
            self._look(state)
        else:
            self.trainer.restore_unlogged(self.resume)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        self._look(state)
        if any(ranks.gathered(self.stop.requested)):
            control.should_save = control.should_training_stop = True
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            self.diverged = control.should_training_stop = True
            control.should_save = False  # a run that went on from here would end at a later step
        return control

    def _look(self, state: TrainerState) -> None:
        if state.global_step in self.steps:
            state.log_history.append({HELDOUT: self.snapshot(state.global_step), "step": state.global_step})


def train(
    model: torch.nn.Module,
    data: Data,
    folder: Path,
    schedule: Schedule,
    seed: int,
    keep: Callable[[str], bool],
    definition: Mapping[str, object],
) -> Outcome:
    """Trains a model, or goes on where a killed run stopped.

    Args:
        model: freshly built; a state to go on from replaces its weights.
        data: training and held-out examples.
        folder: of the run.
        schedule: how long, how fast, what to keep.
        seed: of everything random that is not in `data`.
        keep: which tensors, by name, a snapshot that need not be whole holds.
        definition: all that the result depends on, as JSON, for the run's record; a state left under another one is
            not used.

    Raises:
        TransientFault: it was told to stop (SIGTERM, Ctrl-C) and its state is saved, or the disk refuses a write.
    """
    disable_progress_bar()  # of saving; we have our own
    set_verbosity_error()
    resume = ranks.of_first(lambda: state_to_go_on_from(folder, definition, schedule.snapshots))

    heldout = data.heldout_batches(schedule.batch, schedule.heldout_batches)

    def snapshot(step: int) -> float | None:
        whole = step in (*schedule.whole, schedule.steps)
        if ranks.is_first():
            write_checkpoint(snapshot_folder(folder, step), model, (lambda _: True) if whole else keep)
        return mean_loss(model, heldout)

    with StopRequest() as stop, Progress(folder.name) as progress:
        trainer = _trainer(model, data, _arguments(folder / STATE, schedule, seed), schedule)
        watch = _Watch(trainer, resume, snapshot, schedule.snapshots, stop)
        if ranks.is_first():
            trainer.add_callback(progress)
        trainer.add_callback(watch)
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    done = trainer.state.global_step
    if done < schedule.steps and not watch.diverged:
        if not ranks.is_first():
            raise SystemExit(TransientFault.exit_code)  # one message is enough
        raise TransientFault(
            "training was told to stop", where=folder, found=f"step {done} of {schedule.steps}, saved", fix="run it again"
        )
    if ranks.is_first():
        write_losses(folder, trainer.state.log_history)
    last = [entry[HELDOUT] for entry in trainer.state.log_history if HELDOUT in entry][-1]
    heldout_loss = None if watch.diverged else last
    return Outcome("diverged" if heldout_loss is None else "ok", done, heldout_loss)


def _trainer(
    model: torch.nn.Module,
    data: Data,
    arguments: TrainingArguments,
    schedule: Schedule,
) -> _Trainer:
    if arguments.n_gpu > 1:  # the Trainer would multiply the batch
        raise UsageError(
            "training uses one GPU, and several are visible",
            found=arguments.n_gpu,
            fix="set CUDA_VISIBLE_DEVICES to one of them",
        )
    examples = _Indices(schedule.steps * schedule.batch * schedule.accumulation)
    trainer = _Trainer(model, arguments, data_collator=partial(part, data, schedule.batch), train_dataset=examples)
    trainer.remove_callback(PrinterCallback)
    # Models that take a loss's keywords are trusted to divide by the accumulation, and BertForMaskedLM does not.
    trainer.model_accepts_loss_kwargs = False
    return trainer


def _arguments(state: Path, schedule: Schedule, seed: int) -> TrainingArguments:
    batch, accumulation = schedule.share(ranks.count())
    return TrainingArguments(
        str(state),
        max_steps=schedule.steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        learning_rate=schedule.learning_rate,
        warmup_steps=schedule.warmup,
        weight_decay=schedule.weight_decay,
        logging_steps=schedule.log_every,
        logging_nan_inf_filter=False,
        save_steps=schedule.save_every,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not schedule.device.startswith("cuda"),
        seed=seed,
        **_precision(schedule.device),
    )


def _precision(device: str) -> dict[str, bool]:
    """Mixed precision on a GPU: bf16 where its hardware has it, else fp16, whose losses the Trainer scales.

    The Trainer puts it on the model itself, so held-out losses are computed in it, too.
    """
    import torch

    if not device.startswith("cuda"):
        return {}
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return {"bf16": bf16, "fp16": not bf16}
